"""What is typed: `backup FILE`, `backup --check FILE` and `restore FILE`, and what they answer."""

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gpufleet.config.file_store import file_store_place
from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import sync_path

from ..blobs.opening import FOLDER as BLOBS_FOLDER
from . import archive, checking, losses, restoring
from .making import make
from .manifest import Manifest

TO_PIPE = "-"


def backup(settings: SchedulerSettings, to: str, *, replaces: bool, has_output: bool = False) -> int:
    """Write a backup to a file, or with - to standard output, and say what is in it; the exit code."""
    told = sys.stdout
    try:
        if to == TO_PIPE:
            if sys.stdout.isatty():
                raise GpufleetError(
                    Reason.INVALID_ARGUMENT,
                    "a backup is nothing for a terminal",
                    next_step="Give a file in place of -.",
                )
            made, told = make(settings, sys.stdout.buffer, has_output=has_output), sys.stderr
        else:
            with new_file(Path(to), replaces=replaces) as file:
                made = make(settings, file, has_output=has_output)
    except OSError as problem:
        raise _failed(problem, to) from None
    manifest = made.manifest
    rows = sum(table.rows for table in manifest.tables.values())
    print(
        f"{_what(manifest)}\n"
        f"{rows:,} rows, {len(made.keys)} keys and tokens, and a list of {manifest.output_pieces:,} pieces of output"
        f" ({manifest.output_bytes:,} bytes, which are {'' if manifest.has_output else 'not '}in it)\n"
        f"{made.bytes:,} bytes in {made.seconds:.1f} s\n"
        f"not in it: files that people uploaded and that jobs left, in {_files_place(settings)}",
        file=told,
    )
    return 0


def check(path: Path) -> int:
    """Say whether a file is a whole backup; the exit code."""
    try:
        with archive.opened(path) as opened:
            checking.check(opened)
            problems, manifest = checking.problems(opened), opened.manifest
    except OSError as problem:
        raise _failed(problem, str(path)) from None
    if problems:
        print("\n".join(problems))
        print(f"{path} is not what a scheduler stores, and is not restored. Take another backup.", file=sys.stderr)
        return 1
    print(f"{path} is whole: {_what(manifest)}")
    return 0


def restore(settings: SchedulerSettings, path: Path, *, replaces: bool) -> int:
    """Put a backup in the place of what the settings name, and say what is lost; the exit code."""
    try:
        with archive.opened(path) as opened:
            restored = restoring.restore(settings, opened, replaces=replaces)
            print(f"restored: {_what(opened.manifest)}")
            for kept in restored.kept:
                print(f"kept: {kept}")
            if opened.manifest.has_output:
                print(f"put back: {restored.output_bytes:,} bytes of output that were not there")
            print(f"files of jobs are not in a backup: they are looked for in {_files_place(settings)}")
            for loss in losses.losses(settings, opened, restored):
                print(loss)
            if restored.jobs_above:
                print(f"jobs that are submitted now get numbers above {restored.jobs_above:,}")
            else:
                print("nothing is lost: it is as new as the database that was here")
    except OSError as problem:
        raise _failed(problem, str(settings.data)) from None
    return 0


@contextmanager
def new_file(path: Path, *, replaces: bool) -> Iterator[BinaryIO]:
    """A file of mode 0600 that has its name once it is whole and durable, and is gone otherwise.

    Errors: INVALID_ARGUMENT where something has the name, BACKUP_FAILED where another backup is being written to it.
    """
    if path.exists() and not path.is_file():
        raise GpufleetError(Reason.INVALID_ARGUMENT, f"{path} is no file", next_step="Give the name of a file, or -.")
    if path.exists() and not replaces:
        raise GpufleetError(
            Reason.INVALID_ARGUMENT, f"{path} is there already", next_step="Give another name, or say --force."
        )
    unfinished = path.with_name(f".{path.name}.unfinished")
    descriptor = os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise GpufleetError(
                Reason.BACKUP_FAILED, f"another backup is being written to {path}", next_step="Wait for its end."
            ) from None
        try:
            os.fchmod(descriptor, 0o600)
            os.ftruncate(descriptor, 0)
            yield file
            file.flush()
            os.fsync(descriptor)
            unfinished.replace(path)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
    sync_path(path.parent)


def _files_place(settings: SchedulerSettings) -> str:
    return str(file_store_place(settings.files.store) or settings.data / BLOBS_FOLDER)


def _what(manifest: Manifest) -> str:
    return (
        f"backup of {manifest.made_at} by release {manifest.release}, from {manifest.database}: "
        f"term {manifest.term}, record {manifest.sequence:,}, jobs up to {manifest.next_job - 1:,}"
    )


def _failed(problem: OSError, name: str) -> GpufleetError:
    return GpufleetError(Reason.BACKUP_FAILED, f"{problem.filename or name}: {problem.strerror}")
