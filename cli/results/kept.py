"""Asks the scheduler to store what a running job keeps."""

from __future__ import annotations

from gpufleet.v1 import files_pb2

from gpufleet.errors import invalid
from gpufleet.fleet.client import connected
from gpufleet.fleet.named_jobs import only_id, read_selection
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import format_size

from .. import screen

KEEP_SECONDS = 3_700.0
"""How long it is waited for: longer than the scheduler does."""


def keep_files(settings: Settings, which: str, rank: int) -> None:
    """Have a rank's files stored. Errors: those of KeepFiles."""
    if not which:
        raise invalid("JOB", "is missing, as this is no job", next_step="Give a job's id, as shown by: gpuctl queue")
    selection = read_selection([which])
    with connected(settings) as client:
        job_id = only_id(client, selection)
        request = files_pb2.KeepFilesRequest(job_id=job_id, rank=rank)
        answer = client.call_again(client.scheduler.KeepFiles, request, timeout_s=KEEP_SECONDS)
    files = "1 file" if answer.file_count == 1 else f"{answer.file_count:,} files"
    screen.tell(f"stored {files}, {format_size(answer.size_bytes)}, of attempt {answer.attempt} of job {job_id}")
