"""A small file that is replaced whole or not at all: after a crash of the program it is the old one or the new one."""

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
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
