"""`gpuctl cp`: brings here what a job left."""

from __future__ import annotations

import sys

from gpufleet.errors import invalid
from gpufleet.fleet.client import connected
from gpufleet.fleet.named_jobs import only_id, read_selection
from gpufleet.fleet.results import bring
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.units import counted, format_size

HOW = "Write it as 41:out/model.pt, or 41: for all that it left."


def copy(settings: Settings, source: str, target: str, rank: int) -> None:
    """Bring a file, a folder or all. Errors: FILE_NOT_FOUND, INVALID_ARGUMENT, and those of DownloadFile."""
    which, colon, path = source.partition(":")
    if not colon or not which:
        raise invalid("JOB:[PATH]", f"{source!a} names no file of a job", next_step=HOW)
    with connected(settings) as client:
        job_id = only_id(client, read_selection([which]))
        found, places = bring(client, job_id, path, target, rank, on_wait=lambda why: _tell_wait(job_id, why))
    size = format_size(sum(file.size_bytes for file, _ in places))
    print(f"gpuctl: {counted(len(places), 'file')}, {size}, of job {job_id}", file=sys.stderr)
    for problem in found.problems:
        print(f"gpuctl: not among them: {clean(problem)}", file=sys.stderr)


def _tell_wait(job_id: int, why: str) -> None:
    print(f"gpuctl: waiting for what job {job_id} left: {clean(why)}; Ctrl-C leaves", file=sys.stderr)
