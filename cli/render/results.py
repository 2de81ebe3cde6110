"""What became of what a job was to leave, and what it keeps for its next attempt, in words."""

from __future__ import annotations

from gpufleet.v1 import files_pb2, job_pb2

from gpufleet.text.cleaning import clean
from gpufleet.text.units import format_size

STATES = {
    files_pb2.RESULTS_STATE_COMING: "still coming",
    files_pb2.RESULTS_STATE_STORED: "stored",
    files_pb2.RESULTS_STATE_INCOMPLETE: "stored in part",
    files_pb2.RESULTS_STATE_LOST: "lost",
    files_pb2.RESULTS_STATE_DROPPED: "dropped",
    files_pb2.RESULTS_STATE_UNKNOWN: "cannot be told now",
}


def results_in_words(job: job_pb2.Job) -> str:
    """Such as `stored; see: gpuctl files 41`, or `lost: node n1 was not heard for 15 min`; empty for none."""
    state, message = job.results.state, job.results.message
    if state not in STATES:
        return ""
    is_there = state in (files_pb2.RESULTS_STATE_STORED, files_pb2.RESULTS_STATE_INCOMPLETE)
    why = f": {clean(message)}" if message else ""
    return f"{STATES[state]}{why}" + (f"; see: gpuctl files {job.id}" if is_there else "")


def kept_in_words(job: job_pb2.Job) -> str:
    """Such as `3 files, 12MB, of attempt 2 for the next one`; empty for none. Of several ranks the sum."""
    if not job.kept:
        return ""
    count = sum(each.file_count for each in job.kept)
    files = "1 file" if count == 1 else f"{count:,} files"
    attempts = ", ".join(map(str, sorted({each.attempt for each in job.kept})))
    return f"{files}, {format_size(sum(each.size_bytes for each in job.kept))}, of attempt {attempts} for the next one"
