"""What a job left, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.v1 import files_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.text.units import format_size

from .. import screen
from ..client import Client, connected
from ..jobs.named_jobs import only_id, read_selection
from ..printing import print_list
from ..render.table import Column, Look, clean, draw
from ..settings import Settings

Row = tuple[files_pb2.RankFiles, files_pb2.FolderEntry]


def show_files(settings: Settings, which: str) -> None:
    """Print what a job left. Errors: FILE_NOT_FOUND where it is to leave nothing."""
    selection = read_selection([which])
    with connected(settings) as client:
        job_id = only_id(client, selection)
        answer = left_by(client, job_id)
    print_list(
        settings.format,
        answer.ranks,
        whole=answer,
        name=lambda rank: "\n".join(clean(each.path) for each in rank.files),
        lines=lambda look: _lines(job_id, answer, look),
    )
    if settings.format in ("table", "wide") and any(rank.files for rank in answer.ranks):
        screen.tell(f"Bring them here with: gpuctl cp {job_id}: .")


def left_by(client: Client, job_id: int) -> files_pb2.ListFilesResponse:
    """What a job left so far. Errors: FILE_NOT_FOUND where it is to leave nothing."""
    answer = client.call(client.scheduler.ListFiles, files_pb2.ListFilesRequest(job_id=job_id))
    if not answer.ranks:
        job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id)).job
        if not job.spec.results:
            raise GpufleetError(
                Reason.FILE_NOT_FOUND,
                f"job {job_id} was submitted without --download, and left no files",
                next_step="Submit it again with what it is to leave, for instance: --download 'out/**'",
            )
    return answer


def _lines(job_id: int, answer: files_pb2.ListFilesResponse, look: Look) -> Iterator[str]:
    rows = [(rank, file) for rank in answer.ranks for file in rank.files]
    columns: list[Column[Row]] = [
        Column("SIZE", lambda row: format_size(row[1].size_bytes), is_right=True),
        Column("PATH", lambda row: clean(row[1].path)),
    ]
    if len(answer.ranks) > 1:
        columns.insert(0, Column("RANK", lambda row: str(row[0].rank), is_right=True))
    if rows:
        yield from draw(columns, rows, look)
    if not answer.ranks:
        yield f"Job {job_id} has no attempt that has ended; what it leaves is stored then."
    for rank in answer.ranks:
        of = f" of rank {rank.rank}" if len(answer.ranks) > 1 else ""
        if not rank.is_stored:
            yield f"What attempt {rank.attempt}{of} left is not stored yet."
        elif not rank.files and not rank.problems:
            yield f"Attempt {rank.attempt}{of} left nothing that --download chooses."
        for problem in rank.problems:
            yield f"Not among them{of}: {clean(problem)}"
