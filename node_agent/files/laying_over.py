"""Lays a stored folder over the files that a rank has already: a file of the same name is replaced.

What lies there came from somebody with a token, links as well, and the agent may be root. So the folder is written
beside it, where nothing is, and each file is moved by open folders, of which none is reached by a link. No process of
the job has been in there yet.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path

from gpufleet.jobs.runs import RankKey

from ..core.launch import InputFolder
from .job_folders import Cache, lay_out_folder

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def lay_over(cache: Cache, key: RankKey, folder: InputFolder, place: Path) -> None:
    """Put all that is stored of a folder into one that is there. Errors: those of `lay_out_folder`."""
    beside = place.with_name(f"{place.name}.beside")
    await asyncio.to_thread(shutil.rmtree, beside, ignore_errors=True)
    beside.mkdir(mode=0o700)
    try:
        await lay_out_folder(cache, key, folder, beside)
        await asyncio.to_thread(_move_all, beside, place)
    finally:
        await asyncio.to_thread(shutil.rmtree, beside, ignore_errors=True)


def _move_all(source: Path, target: Path) -> None:
    """Move what is in one folder into another, over what is there."""
    source_fd = os.open(source, FOLDER_FLAGS)
    try:
        target_fd = os.open(target, FOLDER_FLAGS)
        try:
            _move_into(source_fd, target_fd)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def _move_into(source: int, target: int) -> None:
    for name in sorted(os.listdir(source)):
        if not stat.S_ISDIR(os.stat(name, dir_fd=source, follow_symlinks=False).st_mode):
            _make_way(target, name, for_folder=False)
            os.rename(name, name, src_dir_fd=source, dst_dir_fd=target)
            continue
        _make_way(target, name, for_folder=True)
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=target)
        inner = os.open(name, FOLDER_FLAGS, dir_fd=source)
        try:
            inner_target = os.open(name, FOLDER_FLAGS, dir_fd=target)
            try:
                _move_into(inner, inner_target)
            finally:
                os.close(inner_target)
        finally:
            os.close(inner)


def _make_way(target: int, name: str, *, for_folder: bool) -> None:
    """Remove an entry of this name that has another kind than the new one: a link for a folder, a folder for a file."""
    with suppress(FileNotFoundError):
        is_folder = stat.S_ISDIR(os.stat(name, dir_fd=target, follow_symlinks=False).st_mode)
        if is_folder and not for_folder:
            shutil.rmtree(name, dir_fd=target)
        elif not is_folder and for_folder:
            os.unlink(name, dir_fd=target)
