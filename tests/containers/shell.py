"""A shell in which `podman` is that of a test's own folder, in a network of its own: lines are typed as on a page."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.containers.engine import BEGIN, EngineOfTests, environment

LINE_SECONDS_MAX = 600.0
"""How long a line may take: far more than it takes."""

PODMAN = """#!/bin/sh
# What an engine on a machine without systemd, whose control groups are not all there, needs to be told.
verb=$1; shift
case $verb in
    build) set -- --isolation chroot --network host --layers=false "$@" ;;
esac
exec {podman} {options} "$verb" "$@"
"""

HOLD = "ip link set lo up; echo up; exec sleep infinity"


class PodmanShell:
    """Types lines in a folder; `engine` is where its images and containers are."""

    def __init__(self, engine: EngineOfTests, holder: int, folder: Path) -> None:
        self._inside = ("nsenter", "--target", str(holder), "--mount", "--net", f"--wd={folder}")
        self._environment = environment(engine.folder) | {
            "PATH": f"{engine.folder}/bin:{os.environ['PATH']}",
            # Without a systemd there is nothing that would ask again and again whether a container is well.
            "DISABLE_HC_SYSTEMD": "true",
        }

    def type(self, line: str, *, code: int = 0) -> str:
        """What the line printed; it must end with this code."""
        done = subprocess.run(
            [*self._inside, "sh", "-c", line],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            env=self._environment,
            timeout=LINE_SECONDS_MAX,
        )
        assert done.returncode == code, f"{line}\n{done.returncode}: {done.stdout}\n{self._logs()}"
        return done.stdout

    def _logs(self) -> str:
        line = "for each in $(podman ps --all --format '{{.Names}}'); do podman logs --tail 20 $each; done"
        done = subprocess.run(
            [*self._inside, "sh", "-c", line], capture_output=True, text=True, check=False, env=self._environment
        )
        return done.stdout + done.stderr


@contextmanager
def podman_shell(engine: EngineOfTests, folder: Path) -> Iterator[PodmanShell]:
    """One that types in this folder. What its lines left running is the engine's to end."""
    podman = shutil.which("podman")
    program = engine.folder / "bin" / "podman"
    program.parent.mkdir()
    program.write_text(PODMAN.format(podman=podman, options=" ".join(engine.options)))
    program.chmod(0o755)
    holder = subprocess.Popen(
        ["unshare", "--mount", "--net", "sh", "-c", BEGIN, "sh", "sh", "-c", HOLD], stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout is not None and holder.stdout.readline() == b"up\n", sys.executable
        yield PodmanShell(engine, holder.pid, folder)
    finally:
        holder.kill()
        holder.wait()
        if holder.stdout is not None:
            holder.stdout.close()
