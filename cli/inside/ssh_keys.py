"""The keys by which this account and its jobs know each other, made here and kept where nobody else reads them.

    STATE/gpuctl/ssh/id_ed25519        by which this account is let into its jobs
    STATE/gpuctl/ssh/SCHEDULER/job-41  a job's host key, with .pub, and .known for ssh
    STATE/gpuctl/ssh/config            what `ssh-config --install` wrote

A job's host key goes to it by the same way as all that is typed to it, so that ssh knows from the first time whom it
speaks with, and a job can be taken for no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpufleet.config.paths import state_dir
from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import replace_file

HOST_KEYS_MAX = 1_000
"""Host keys of one scheduler's jobs that are kept; beyond them the oldest go, and are made anew."""

KEY = "id_ed25519"


@dataclass(frozen=True, slots=True)
class HostKeys:
    """How one job is known. `name` is what it is called to ssh."""

    name: str
    folder: Path

    @property
    def private(self) -> Path:
        """The host key."""
        return self.folder / self.name

    @property
    def known_hosts(self) -> Path:
        """What ssh knows it by."""
        return self.folder / f"{self.name}.known"


def ssh_folder() -> Path:
    """Where all of it lies, made when it is missing."""
    folder = state_dir("gpuctl") / "ssh"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def own_key() -> Path:
    """The key of this account, made when it is missing. Errors: EXTRA_MISSING."""
    path = ssh_folder() / KEY
    _make(path, "gpuctl")
    return path


def host_keys(scheduler: str, name: str) -> HostKeys:
    """The host key of a job, made when it is missing. Errors: EXTRA_MISSING."""
    folder = ssh_folder() / hashlib.sha256(scheduler.encode()).hexdigest()[:16]
    folder.mkdir(mode=0o700, exist_ok=True)
    keys = HostKeys(name, folder)
    if _make(keys.private, name):
        _forget_oldest(folder)
    kind, key, *_ = keys.private.with_suffix(".pub").read_text().split()
    line = f"{name} {kind} {key}\n"
    if not keys.known_hosts.exists() or keys.known_hosts.read_text() != line:
        replace_file(keys.known_hosts, line.encode(), is_synced=False)
    return keys


def _make(path: Path, comment: str) -> bool:
    """Make a key that is missing, whoever else does so at the same time; answers whether it was."""
    public = path.with_suffix(".pub")
    if path.exists() and public.exists():
        return False
    program = shutil.which("ssh-keygen")
    if program is None:
        raise no_program("ssh-keygen")
    with _locked(path.parent), tempfile.TemporaryDirectory(dir=path.parent) as folder:
        if path.exists() and public.exists():
            return False
        made = Path(folder, KEY)
        words = [program, "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(made)]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        made.rename(path)
        made.with_suffix(".pub").rename(public)
    return True


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def no_program(name: str) -> GpufleetError:
    """What is said where a program of OpenSSH is missing here."""
    return GpufleetError(
        Reason.EXTRA_MISSING, f"{name} is not installed here", next_step="Install the OpenSSH client (openssh-client)."
    )


def _forget_oldest(folder: Path) -> None:
    keys = [each for each in folder.iterdir() if not each.suffix and each.is_file()]
    for old in sorted(keys, key=lambda each: each.stat().st_mtime)[:-HOST_KEYS_MAX]:
        for path in (old, old.with_suffix(".pub"), old.with_suffix(".known")):
            path.unlink(missing_ok=True)
