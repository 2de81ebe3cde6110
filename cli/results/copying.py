"""`gpuctl cp`: brings here what a job left or has, and copies into one that runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.named_jobs import only_id, read_selection
from gpufleet.fleet.results import bring, left_by
from gpufleet.fleet.running_files import runs
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted, format_size

from .running import bring_running, send_running

HOW = "Write one of them as 41:out/model.pt, or 41: for all; a file here whose name has a colon as ./a:b."
LEFT_OUT_SHOWN = 20
RANK_FOLDER = "rank-{}"
"""Where `run --download` puts what a rank of a job on several nodes left."""


def copy(settings: Settings, source: str, target: str, rank: int) -> None:
    """Bring a file, a folder or all from a job, or into one that runs.

    Errors: FILE_NOT_FOUND, INVALID_ARGUMENT, and those of DownloadFile and AccessFiles.
    """
    if (there := job_in(target)) and not job_in(source):
        which, path = there
        with connected(settings) as client:
            job_id = only_id(client, read_selection([which]))
            _tell_copied(job_id, "into", *send_running(client, job_id, source, path, rank))
        return
    named = job_in(source)
    if named is None or there:
        raise invalid("JOB:[PATH]", f"neither or both of {source!a} and {target!a} name a job", next_step=HOW)
    which, path = named
    with connected(settings) as client:
        job_id = only_id(client, read_selection([which]))
        if runs(client, job_id):
            _tell_copied(job_id, "of", *bring_running(client, job_id, path, target, rank))
            return
        _copy_left(client, job_id, path, target, rank, f"job {job_id}")


def copy_all_ranks(settings: Settings, job_id: int, target: str) -> None:
    """Bring all that a job left: of a job on several nodes what each rank left, in a folder of its own.

    Errors: FILE_NOT_FOUND if a rank's files are missing; those of the other ranks are there by then.
    """
    with connected(settings) as client:
        ranks = range(max(1, len(left_by(client, job_id).ranks)))
        if len(ranks) == 1:
            _copy_left(client, job_id, "", target, 0, f"job {job_id}")
            return
        print(f"gpuctl: what each rank left comes into a folder of its own: {RANK_FOLDER.format(0)} …", file=sys.stderr)
        missing: list[str] = []
        for rank in ranks:
            try:
                _copy_left(
                    client, job_id, "", f"{target}/{RANK_FOLDER.format(rank)}", rank, f"rank {rank} of job {job_id}"
                )
            except GpufleetError as problem:
                missing.append(f"of rank {rank}: {problem.message}")
        if missing:
            raise GpufleetError(Reason.FILE_NOT_FOUND, "; ".join(missing))


def _copy_left(client: Client, job_id: int, path: str, target: str, rank: int, whose: str) -> None:
    """Bring what a rank left, and say how much that is. Errors: those of `bring`."""
    found, places = bring(client, job_id, path, target, rank, on_wait=lambda why: _tell_wait(job_id, why))
    size = format_size(sum(file.size_bytes for file, _ in places))
    if not places:
        print(f"gpuctl: {whose} left no file that its --download chooses", file=sys.stderr)
    else:
        print(f"gpuctl: {counted(len(places), 'file')}, {size}, of {whose}", file=sys.stderr)
    for problem in found.problems:
        print(f"gpuctl: not among them: {clean(problem)}", file=sys.stderr)


def job_in(text: str) -> tuple[str, str] | None:
    """The job and the path of `41:out/model.pt`; None for a path of this machine, such as `./41:x` and `/a:b`."""
    which, colon, path = text.partition(":")
    return (which, path) if colon and which and "/" not in which and not which.startswith(".") else None


def _tell_copied(job_id: int, where: str, count: int, size: int, left_out: Sequence[str]) -> None:
    print(f"gpuctl: {counted(count, 'file')}, {format_size(size)}, {where} job {job_id}", file=sys.stderr)
    for each in left_out[:LEFT_OUT_SHOWN]:
        print(f"gpuctl: not among them: {clean(each)}", file=sys.stderr)
    if len(left_out) > LEFT_OUT_SHOWN:
        print(f"gpuctl: not among them: {len(left_out) - LEFT_OUT_SHOWN:,} more", file=sys.stderr)


def _tell_wait(job_id: int, why: str) -> None:
    print(f"gpuctl: waiting for what job {job_id} left: {clean(why)}; Ctrl-C leaves", file=sys.stderr)
