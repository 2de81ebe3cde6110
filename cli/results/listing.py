"""What a job left, as a table."""

from __future__ import annotations

from collections.abc import Iterator

from gpufleet.v1 import files_pb2

from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.named_jobs import only_id, read_selection
from gpufleet.fleet.results import left_by
from gpufleet.fleet.running_files import RunningFolder, runs
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.units import format_size

from .. import screen
from ..printing import print_list
from ..render.table import Column, Look, draw
from ..render.words import clock

Row = tuple[files_pb2.RankFiles, files_pb2.FolderEntry]


def show_files(settings: Settings, which: str) -> None:
    """Print what a job left. Errors: FILE_NOT_FOUND where it is to leave nothing."""
    selection = read_selection([which])
    with connected(settings) as client:
        job_id = only_id(client, selection)
        if runs(client, job_id):
            show_running(settings, client, job_id)
            return
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


def show_running(settings: Settings, client: Client, job_id: int) -> None:
    """Print what is in the folder of rank 0 of a job that runs. Errors: those of AccessFiles."""
    entries, left_out = RunningFolder(client, job_id, 0).list("")
    answer = files_pb2.FolderAnswer(entries=entries, left_out=left_out)
    columns: list[Column[files_pb2.FolderEntry]] = [
        Column("SIZE", _size_of, is_right=True),
        Column("PATH", lambda each: clean(f"{each.path} -> {each.link_target}" if each.link_target else each.path)),
    ]

    def lines(look: Look) -> Iterator[str]:
        if entries:
            yield from draw(columns, entries, look)
        else:
            yield f"The folder of job {job_id} is empty."
        yield from (f"Not among them: {clean(each)}" for each in left_out)

    print_list(settings.format, entries, whole=answer, name=lambda each: clean(each.path), lines=lines)
    if settings.format in ("table", "wide") and entries:
        screen.tell(f"Bring them here with: gpuctl cp {job_id}: .")


def _size_of(entry: files_pb2.FolderEntry) -> str:
    return "-" if entry.link_target or entry.is_empty_folder else format_size(entry.size_bytes)


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
        elif rank.HasField("store_time"):
            now = screen.local_now()
            kept = f", kept until {clock(rank.drop_time, now)}" if rank.HasField("drop_time") else ""
            yield f"Stored{of} at {clock(rank.store_time, now)}{kept}."
        for problem in rank.problems:
            yield f"Not among them{of}: {clean(problem)}"
