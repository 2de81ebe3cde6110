"""What a job left, or has in its folder, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpufleet.v1 import files_pb2

from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.left_parts import LeftPart, left_by, running_parts
from gpufleet.fleet.named_jobs import NamedJob, one_named
from gpufleet.fleet.running_files import RunningFolder
from gpufleet.fleet.settings import Settings
from gpufleet.text.cleaning import clean
from gpufleet.text.units import format_size

from .. import screen
from ..printing import print_list
from ..render.table import Column, Look, draw
from ..render.words import clock

TROUBLES_SHOWN = 20
"""Items of an array of which it is said why they left nothing."""


@dataclass(frozen=True, slots=True)
class _Left:
    """What a rank left; `item` is its index in an array."""

    ranks: files_pb2.RankFiles
    item: int | None = None


Row = tuple[_Left, files_pb2.FolderEntry]


def show_files(settings: Settings, which: str) -> None:
    """Print what a job left. Errors: FILE_NOT_FOUND where it is to leave nothing."""
    with connected(settings) as client:
        named = one_named(client, which)
        if parts := running_parts(named):
            _show_running(settings, client, named, parts)
            return
        answer = left_by(client, named)
    left = [_Left(rank) for rank in answer.ranks]
    left += [_Left(rank, item.index) for item in answer.items for rank in item.ranks]

    def lines(look: Look) -> Iterator[str]:
        return _lines(named, answer, left, look)

    if named.is_array:
        print_list(settings.format, answer.items, whole=answer, name=_names_of_item, lines=lines)
    else:
        print_list(settings.format, answer.ranks, whole=answer, name=_names, lines=lines)
    _tell_how(settings, named, any(each.ranks.files for each in left))


def _names(each: files_pb2.RankFiles) -> str:
    return "\n".join(clean(file.path) for file in each.files)


def _names_of_item(each: files_pb2.ItemFiles) -> str:
    return "\n".join(filter(None, map(_names, each.ranks)))


def _show_running(settings: Settings, client: Client, named: NamedJob, parts: Sequence[LeftPart]) -> None:
    """Print what is in the folder of each rank of a job that runs. Errors: those of AccessFiles."""
    whole = files_pb2.ListFilesResponse()
    for part in parts:
        entries, left_out = RunningFolder(client, part.job_id, part.rank).list("")
        whole.ranks.add(rank=part.rank, files=entries, problems=left_out)
    rows = [(_Left(rank), file) for rank in whole.ranks for file in rank.files]

    def lines(look: Look) -> Iterator[str]:
        if rows:
            yield from draw(_columns(rows, len(parts) > 1), rows, look)
        else:
            yield f"The folder of {named.words} has no file for you: it is empty, or none is chosen by --download."
        for rank in whole.ranks:
            of = f" of rank {rank.rank}" if len(parts) > 1 else ""
            yield from (f"Not among them{of}: {clean(each)}" for each in rank.problems)

    (first, *others) = whole.ranks
    if others:
        print_list(settings.format, whole.ranks, whole=whole, name=_names, lines=lines)
    else:
        answer = files_pb2.FolderAnswer(entries=first.files, left_out=first.problems)
        print_list(settings.format, first.files, whole=answer, name=lambda each: clean(each.path), lines=lines)
    _tell_how(settings, named, bool(rows))


def _tell_how(settings: Settings, named: NamedJob, has_files: bool) -> None:
    if settings.format in ("table", "wide") and has_files:
        screen.tell(f"Bring them here with: gpuctl cp {named.typed}: .")


def _columns(rows: Sequence[Row], is_gang: bool) -> list[Column[Row]]:
    columns: list[Column[Row]] = [
        Column("SIZE", lambda row: _size_of(row[1]), is_right=True),
        Column("PATH", lambda row: clean(_path_of(row[1]))),
    ]
    if is_gang:
        columns.insert(0, Column("RANK", lambda row: str(row[0].ranks.rank), is_right=True))
    if any(left.item is not None for left, _ in rows):
        columns.insert(0, Column("ITEM", lambda row: str(row[0].item), is_right=True))
    return columns


def _path_of(entry: files_pb2.FolderEntry) -> str:
    return f"{entry.path} -> {entry.link_target}" if entry.link_target else entry.path


def _size_of(entry: files_pb2.FolderEntry) -> str:
    return "-" if entry.link_target or entry.is_empty_folder else format_size(entry.size_bytes)


def _lines(named: NamedJob, answer: files_pb2.ListFilesResponse, left: Sequence[_Left], look: Look) -> Iterator[str]:
    is_gang = any(each.ranks.rank > 0 for each in left)
    rows = [(each, file) for each in left for file in each.ranks.files]
    if rows:
        yield from draw(_columns(rows, is_gang), rows, look)
    if not left and not named.is_array:
        yield f"{named.words.capitalize()} has no attempt that ran and has ended; what it leaves is stored then."
    for each in left:
        of = "" if each.item is None else f" of item {each.item}"
        yield from _notes(each.ranks, of + (f" of rank {each.ranks.rank}" if is_gang else ""), named.is_array)
    without = [item for item in answer.items if not item.ranks]
    yield from (f"Item {item.index} left nothing: {clean(item.message)}." for item in without[:TROUBLES_SHOWN])
    if len(without) > TROUBLES_SHOWN:
        yield f"{len(without) - TROUBLES_SHOWN:,} more items left nothing."


def _notes(rank: files_pb2.RankFiles, of: str, is_short: bool) -> Iterator[str]:
    """What became of the files of a rank. With `is_short` a rank that left all of its files has no sentence."""
    if not rank.is_stored:
        is_coming = rank.state in (files_pb2.RESULTS_STATE_COMING, files_pb2.RESULTS_STATE_UNSPECIFIED)
        what = "is not stored yet" if is_coming else "is not there"
        yield f"What attempt {rank.attempt}{of} left {what}{f': {clean(rank.message)}' if rank.message else ''}."
    elif not rank.files and not rank.problems:
        yield f"Attempt {rank.attempt}{of} left nothing that --download chooses."
    elif rank.HasField("store_time") and not is_short:
        now = screen.local_now()
        kept = f", kept until {clock(rank.drop_time, now)}" if rank.HasField("drop_time") else ""
        yield f"Stored{of} at {clock(rank.store_time, now)}{kept}."
    for problem in rank.problems:
        yield f"Not among them{of}: {clean(problem)}"
