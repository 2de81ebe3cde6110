"""`gpuctl cp`: brings here what a job left or has, and copies into one that runs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from gpufleet.errors import invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.left_parts import LeftPart, folders_in_words, left_parts, running_parts
from gpufleet.fleet.named_jobs import NamedJob, one_named, only_id, read_selection
from gpufleet.fleet.results import Brought, bring_all, try_each
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted, format_size

from .running import bring_running, send_running

HOW = "Write one of them as 41:out/model.pt, or 41: for all; a file here whose name has a colon as ./a:b."
LEFT_OUT_SHOWN = 20
PARTS_SHOWN = 20
"""Parts of which each is said how much came; of more only the sum."""


def copy(settings: Settings, source: str, target: str, rank: int | None) -> None:
    """Bring a file, a folder or all from a job, or into one that runs.

    Errors: FILE_NOT_FOUND, INVALID_ARGUMENT, and those of DownloadFile and AccessFiles.
    """
    if (there := job_in(target)) and not job_in(source):
        which, path = there
        with connected(settings) as client:
            job_id = only_id(client, read_selection([which]))
            count, size, left_out = send_running(client, job_id, source, path, rank or 0)
            print(f"gpuctl: {counted(count, 'file')}, {format_size(size)}, into job {job_id}", file=sys.stderr)
            _tell_left_out(left_out)
        return
    named = job_in(source)
    if named is None or there:
        raise invalid("JOB:[PATH]", f"neither or both of {source!a} and {target!a} name a job", next_step=HOW)
    which, path = named
    with connected(settings) as client:
        job = one_named(client, which)
        if parts := running_parts(job, rank):
            _copy_running(client, job, parts, path, target)
        else:
            _copy_left(client, job, left_parts(client, job, rank), path, target)


def copy_all(settings: Settings, job_id: int, target: str) -> None:
    """Bring all that a job left: of a job on several nodes what each rank left, in a folder of its own.

    Errors: FILE_NOT_FOUND if a rank's files are missing; those of the other ranks are there by then.
    """
    with connected(settings) as client:
        job = one_named(client, str(job_id))
        _copy_left(client, job, left_parts(client, job), "", target)


def _copy_running(client: Client, job: NamedJob, parts: Sequence[LeftPart], path: str, target: str) -> None:
    tally = _Tally(job, parts, nothing="0 files, 0B, of {}")

    def bring_one(part: LeftPart) -> None:
        tally.add(part, *bring_running(client, part.job_id, path, part.inside(target), part.rank))

    try:
        try_each(parts, bring_one)
    finally:
        tally.tell()


def _copy_left(client: Client, job: NamedJob, parts: Sequence[LeftPart], path: str, target: str) -> None:
    tally = _Tally(job, parts, nothing="{} left no file that its --download chooses")

    def tell(brought: Brought) -> None:
        size = sum(file.size_bytes for file, _ in brought.places)
        tally.add(brought.part, len(brought.places), size, brought.left.problems)

    try:
        bring_all(client, parts, path, target, tell, _tell_wait)
    finally:
        tally.tell()


class _Tally:
    """What came of the parts, as it is said: of each where they are few, and of all together where they are many.

    `nothing` is what to say of a part without files.
    """

    def __init__(self, job: NamedJob, parts: Sequence[LeftPart], nothing: str) -> None:
        self._nothing = nothing
        self._job = job
        self._parts = parts
        self._is_each_told = len(parts) <= PARTS_SHOWN
        self._count = self._size = 0
        self._left_out: list[str] = []
        if len(parts) > 1:
            whose = "item" if job.is_array else "rank"
            folders = folders_in_words(parts)
            print(f"gpuctl: the files of each {whose} come into a folder of its own: {folders}", file=sys.stderr)

    def add(self, part: LeftPart, count: int, size: int, left_out: Iterable[str]) -> None:
        """These files of a part are here."""
        self._count, self._size = self._count + count, self._size + size
        several = f"{part.words}: " if len(self._parts) > 1 else ""
        self._left_out += [f"{several}{each}" for each in left_out]
        if self._is_each_told:
            self._tell(part.words, count, size)

    def tell(self) -> None:
        """Say of all together what was not said of each."""
        if not self._is_each_told:
            self._tell(f"{len(self._parts):,} folders of {self._job.words}", self._count, self._size)
        _tell_left_out(self._left_out)

    def _tell(self, whose: str, count: int, size: int) -> None:
        came = f"{counted(count, 'file')}, {format_size(size)}, of {whose}" if count else self._nothing.format(whose)
        print(f"gpuctl: {came}", file=sys.stderr)


def job_in(text: str) -> tuple[str, str] | None:
    """The job and the path of `41:out/model.pt`; None for a path of this machine, such as `./41:x` and `/a:b`."""
    which, colon, path = text.partition(":")
    return (which, path) if colon and which and "/" not in which and not which.startswith(".") else None


def _tell_left_out(left_out: Sequence[str]) -> None:
    for each in left_out[:LEFT_OUT_SHOWN]:
        print(f"gpuctl: not among them: {clean(each)}", file=sys.stderr)
    if len(left_out) > LEFT_OUT_SHOWN:
        print(f"gpuctl: not among them: {len(left_out) - LEFT_OUT_SHOWN:,} more", file=sys.stderr)


def _tell_wait(part: LeftPart, why: str) -> None:
    print(f"gpuctl: waiting for what {part.words} left: {clean(why)}; Ctrl-C leaves", file=sys.stderr)
