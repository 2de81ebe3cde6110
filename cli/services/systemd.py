"""The systemd of this machine: whether there is one, where units lie, and what it is told."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason

ANSWER_SECONDS_MAX = 30
START_SECONDS_MAX = 150
"""Longer than any unit but the scheduler's may take to be ready."""

VERSION_MIN = 250
"""It knows credentials, and where they lie in a command line."""


@dataclass(frozen=True, slots=True)
class Systemd:
    """That of the machine, or of this account."""

    is_of_user: bool

    @property
    def folder(self) -> Path:
        """Where its units lie."""
        if not self.is_of_user:
            return Path("/etc/systemd/system")
        config = os.environ.get("XDG_CONFIG_HOME", "")
        return (Path(config) if config.startswith("/") else Path.home() / ".config") / "systemd" / "user"

    @property
    def words(self) -> tuple[str, ...]:
        """What its command begins with."""
        return ("systemctl", "--user") if self.is_of_user else ("systemctl",)

    def version(self) -> int:
        """Its version. Raises NO_SYSTEMD where there is none that could run a service here, with what to do instead."""
        if shutil.which("systemctl") is None or not Path("/run/systemd/system").is_dir():
            raise GpufleetError(Reason.NO_SYSTEMD, "this machine is not run by systemd")
        if self.is_of_user and self.run("show-environment").returncode != 0:
            raise GpufleetError(
                Reason.NO_SYSTEMD,
                "no systemd of your account answers",
                next_step="Log in as that account, not by su or sudo, and type: loginctl enable-linger",
            )
        found = re.match(r"systemd (\d+)", self.run("--version").stdout)
        version = int(found[1]) if found else 0
        if version < VERSION_MIN:
            raise GpufleetError(Reason.NO_SYSTEMD, f"the systemd of this machine is {version}; {VERSION_MIN} is needed")
        return version

    def must_be_allowed(self, line: str) -> None:
        """Raises PERMISSION_DENIED where this account may not; `line` is what it typed."""
        if not self.is_of_user and os.geteuid() != 0:
            raise GpufleetError(
                Reason.PERMISSION_DENIED,
                "a service of the machine is root's to change",
                next_step=f"Type: sudo {line}, or have a service of your account with --user",
            )

    def run(self, *words: str, seconds: float = ANSWER_SECONDS_MAX) -> subprocess.CompletedProcess[str]:
        """What it says to that; a command that takes too long has failed."""
        command = (*self.words, *words)
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(command, 1, "", f"no answer within {seconds} s")

    def is_active(self, unit: str) -> bool:
        """Whether it runs."""
        return self.run("is-active", unit).stdout.strip() == "active"

    def is_enabled(self, unit: str) -> bool:
        """Whether it starts with the machine."""
        return self.run("is-enabled", unit).stdout.strip() == "enabled"
