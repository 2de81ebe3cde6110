"""What outlives a crash: a small file that is replaced whole or not at all, and paths that are on the disk."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, *, is_synced: bool = True) -> None:
    """Put a file of mode 0600 in the place of what is there. Errors: OSError.

    Synced it is that also after a crash of the machine, once this returns.
    """
    unfinished = path.with_name(f".{path.name}.new")
    with open(unfinished, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
        if is_synced:
            file.flush()
            os.fsync(file.fileno())
    unfinished.replace(path)
    if is_synced:
        sync_path(path.parent)


def sync_path(path: Path) -> None:
    """Make a file, or the names in a folder, outlive a crash of the machine. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
