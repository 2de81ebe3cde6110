"""What a job left, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.v1 import files_pb2

from gpufleet.fleet.client import connected
from gpufleet.fleet.named_jobs import only_id, read_selection
from gpufleet.fleet.results import left_by
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.units import format_size

from .. import screen
from ..printing import print_list
from ..render.table import Column, Look, draw

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
        yield f"Job {job_id} has no attempt that ran and has ended; what it leaves is stored then."
    for rank in answer.ranks:
        of = f" of rank {rank.rank}" if len(answer.ranks) > 1 else ""
        if not rank.is_stored:
            is_coming = rank.state in (files_pb2.RESULTS_STATE_COMING, files_pb2.RESULTS_STATE_UNSPECIFIED)
            what = "is not stored yet" if is_coming else "is not there"
            yield f"What attempt {rank.attempt}{of} left {what}{f': {clean(rank.message)}' if rank.message else ''}."
        elif not rank.files and not rank.problems:
            yield f"Attempt {rank.attempt}{of} left nothing that --download chooses."
        for problem in rank.problems:
            yield f"Not among them{of}: {clean(problem)}"
