"""The folder that people and nodes share: which one it is, and how somebody shows to see the same.

    ROOT/.gpufleet-shared-root      32 hexadecimal digits, which no other folder has unless it is a copy of this one
    ROOT/.gpufleet-probe-…          what a person has just written, for nodes to read; removed at once

The name of a folder says nothing of it, and neither does its number on one machine say anything on another. So a node
counts as seeing a folder once it has read there what was not in any folder a moment ago.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from pathlib import Path

MARKER = ".gpufleet-shared-root"
PROBE = ".gpufleet-probe-"
PROBE_BYTES_MAX = 64 * 2**20
PATHS_MAX = 1_000
"""Files of one check."""
MARKER_BYTES_MAX = 64

_ID = re.compile(r"[0-9a-f]{32}")


class RootUnusable(Exception):
    """A folder cannot be shared, or not be read; the text says why, for people."""


def is_root_id(text: str) -> bool:
    """Whether it is the id of a shared folder."""
    return _ID.fullmatch(text) is not None


def is_probe(path: str) -> bool:
    """Whether a path names a probe."""
    name = path.rpartition("/")[2]
    return name.startswith(PROBE) and is_root_id(name.removeprefix(PROBE))


def new_probe() -> str:
    """A name that no probe ever had."""
    return PROBE + os.urandom(16).hex()


def id_of(root: Path) -> str:
    """The id of a shared folder; one that has none is given one. Errors: RootUnusable."""
    try:
        try:
            return _read(root)
        except FileNotFoundError:
            _mark(root)
            return _read(root)
    except OSError as problem:
        raise RootUnusable(f"{root / MARKER}: {problem.strerror or problem}") from None


def _read(root: Path) -> str:
    descriptor = os.open(root / MARKER, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise RootUnusable(f"{root / MARKER} is no plain file")
        text = os.read(descriptor, MARKER_BYTES_MAX).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)
    if not is_root_id(text):
        raise RootUnusable(f"{root / MARKER} does not hold the id of a shared folder, 32 hexadecimal digits")
    return text


def _mark(root: Path) -> None:
    """Give it an id. It has its name once it is whole, and whoever comes second finds that of the first."""
    if not root.is_dir():
        raise RootUnusable(f"{root} is no folder")
    unfinished = root / f"{MARKER}.{os.urandom(8).hex()}"
    write_new(unfinished, os.urandom(16).hex().encode() + b"\n")
    try:
        with suppress(FileExistsError):
            os.link(unfinished, root / MARKER)
    finally:
        unfinished.unlink()


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there, for everybody to read, and have it on the disk. OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(descriptor, 0o644)
        file.write(content)
        file.flush()
        os.fsync(descriptor)
