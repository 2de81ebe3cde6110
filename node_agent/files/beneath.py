"""Opens a file of a folder that others may write to: inside it, through no link, and nothing but a plain file."""

from __future__ import annotations

import os
import stat

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class NotPlain(Exception):
    """What is there is no plain file of the folder; the text says what it is."""


def open_folder(path: str) -> int:
    """A descriptor to look below a folder with; the path is whose who set it, and may lead through links. OSError."""
    return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


def open_beneath(folder: int, path: str) -> int:
    """A descriptor to read a file with, which lies below this folder. Errors: NotPlain, OSError.

    `path` is relative and without empty parts, "." and ".." (`trouble_with_path`). It is walked part by part, and no
    part may be a link: so no name leads out, whatever others rename meanwhile. What is no plain file is not opened,
    as opening a device may do something, and a pipe waits.
    """
    *folders, name = path.split("/")
    descriptor = os.dup(folder)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    try:
        if what := _other_than_plain(os.fstat(found).st_mode):
            raise NotPlain(what)
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    finally:
        os.close(found)


def _other_than_plain(mode: int) -> str:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
    return "" if stat.S_ISREG(mode) else kinds.get(stat.S_IFMT(mode), "a device")
