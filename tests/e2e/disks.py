"""Small disks that a test can fill: a tmpfs of its own, mounted where this account, or sudo, may mount one."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

BALLAST = "ballast"


class Disk:
    """A mounted folder; `fill` takes all its room, `make_room` gives it back."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        """Leave not a byte."""
        with (self.path / BALLAST).open("ab", buffering=0) as file:
            for size in (65_536, 4_096, 1):
                try:
                    while file.write(bytes(size)):
                        pass
                except OSError:
                    continue

    def make_room(self) -> None:
        """Take the ballast away again."""
        (self.path / BALLAST).unlink()


@contextmanager
def small_disk(size_bytes: int) -> Iterator[Disk]:
    """A disk of this size, outside pytest's folders: those of other sessions are swept while this one runs."""
    path = Path(tempfile.mkdtemp(prefix="gpufleet-disk-"))
    options = f"size={size_bytes},mode=0700,uid={os.getuid()},gid={os.getgid()}"
    as_root = [] if os.geteuid() == 0 else ["sudo", "--non-interactive"]
    if as_root and shutil.which("sudo") is None:
        pytest.skip("no tmpfs can be mounted here: neither root nor sudo")
    mounted = subprocess.run(
        [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        path.rmdir()
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        yield Disk(path)
    finally:
        subprocess.run([*as_root, "umount", str(path)], check=True)
        path.rmdir()
