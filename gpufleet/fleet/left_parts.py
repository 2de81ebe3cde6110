"""Whose files are meant: of one job its own, of a gang those of each rank, of an array those of each item.

Several parts get a folder each: `rank-0`, `item-3`, `item-3/rank-0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from .client import Client, all_pages
from .named_jobs import IDS_MAX, NamedJob
from .reading import wrong

RANK_FOLDER = "rank-{}"
ITEM_FOLDER = "item-{}"
RUNS = (job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_STOPPING)


@dataclass(frozen=True, slots=True)
class LeftPart:
    """One rank of a job whose files are meant. `words` call it, `typed` names its job in a command.

    `folder` is where its files go, empty where it is the only part. `trouble` says why there are none.
    """

    job_id: int
    rank: int
    words: str
    typed: str
    folder: str = ""
    trouble: str = ""

    def inside(self, target: str) -> str:
        """Where its files go, of a target for all parts."""
        return f"{target.rstrip('/') or '/'}/{self.folder}/" if self.folder else target


def running_parts(named: NamedJob, rank: int | None = None) -> list[LeftPart]:
    """The ranks whose folders can be reached, as the job runs; none of a job that does not. Raises INVALID_ARGUMENT."""
    if named.is_array or named.job.state not in RUNS or not named.job.attempts:
        return []
    return list(_parts(named, len(named.job.attempts[-1].ranks), rank))


def left_parts(client: Client, named: NamedJob, rank: int | None = None) -> list[LeftPart]:
    """The ranks that have left something, or will. Errors: FILE_NOT_FOUND where the job is to leave nothing."""
    if not named.is_array:
        return list(_parts(named, max(1, len(left_by(client, named).ranks)), rank))
    return [part for item in items_left(client, named) for part in _parts_of_item(named, item, rank)]


def left_by(client: Client, named: NamedJob) -> files_pb2.ListFilesResponse:
    """What a job left so far; of an array what its items left. Errors: FILE_NOT_FOUND where it is to leave nothing."""
    if named.is_array:
        return files_pb2.ListFilesResponse(items=items_left(client, named))
    answer = client.call(client.scheduler.ListFiles, files_pb2.ListFilesRequest(job_id=named.job.id))
    if not answer.ranks:
        _check_leaves(named)
    return answer


def items_left(client: Client, named: NamedJob) -> list[files_pb2.ItemFiles]:
    """What items of an array left. Errors: FILE_NOT_FOUND, ITEM_NOT_FOUND, INVALID_ARGUMENT for too many of them."""
    _check_leaves(named)
    found: dict[int, files_pb2.ItemFiles] = {}
    for first, last in named.items or ((None, None),):
        before = len(found)
        request = files_pb2.ListFilesRequest(job_id=named.job.id, first_index=first, last_index=last)
        for page in all_pages(client, client.scheduler.ListFiles, request):
            found |= {item.index: item for item in page.items}
            if len(found) > IDS_MAX:
                step = f"Name fewer, in several commands, such as {named.job.id}.1-{IDS_MAX}."
                raise wrong(f"{named.words} has more than {IDS_MAX:,} items", step)
        if len(found) == before and first is not None:
            _check_has(client, named, first, last or first)
    return [found[index] for index in sorted(found)]


def _check_has(client: Client, named: NamedJob, first: int, last: int) -> None:
    """Tell items that were named twice from those that there are not. Errors: ITEM_NOT_FOUND."""
    request = scheduler_pb2.ListArrayItemsRequest(job_id=named.job.id, first_index=first, last_index=last, page_size=1)
    if not client.call(client.scheduler.ListArrayItems, request).items:
        which = f"item {first}" if first == last else f"items {first}-{last}"
        step = f"See which it has with: gpuctl job {named.job.id}"
        raise GpufleetError(Reason.ITEM_NOT_FOUND, f"array {named.job.id} has no {which}", next_step=step)


def _check_leaves(named: NamedJob) -> None:
    if not named.job.spec.results:
        raise GpufleetError(
            Reason.FILE_NOT_FOUND,
            f"{named.words} was submitted without --download, and left no files",
            next_step="Submit it again with what it is to leave, for instance: --download 'out/**'",
        )


def _parts(named: NamedJob, count: int, rank: int | None) -> Iterator[LeftPart]:
    ranks: Iterable[int] = range(count) if rank is None else (rank,)
    if rank is not None and rank >= count:
        raise invalid("--rank", f"{named.words} has ranks 0 to {count - 1}", next_step="Name one, or none for all.")
    for each in ranks:
        words = named.words if count == 1 else f"rank {each} of {named.words}"
        folder = RANK_FOLDER.format(each) if rank is None and count > 1 else ""
        yield LeftPart(named.job.id, each, words, named.typed, folder)


def _parts_of_item(named: NamedJob, item: files_pb2.ItemFiles, rank: int | None) -> Iterator[LeftPart]:
    typed, folder = f"{named.job.id}.{item.index}", ITEM_FOLDER.format(item.index)
    words, count = f"job {typed}", len(item.ranks)
    if not count:
        yield LeftPart(item.job_id, rank or 0, words, typed, folder, f"{words} left nothing: {item.message}")
    elif rank is not None:
        trouble = f"{words} has ranks 0 to {count - 1}" if rank >= count else ""
        yield LeftPart(item.job_id, rank, words if count == 1 else f"rank {rank} of {words}", typed, folder, trouble)
    else:
        for each in range(count):
            inner = f"{folder}/{RANK_FOLDER.format(each)}" if count > 1 else folder
            yield LeftPart(item.job_id, each, words if count == 1 else f"rank {each} of {words}", typed, inner)


def folders_in_words(parts: Sequence[LeftPart]) -> str:
    """The folders of parts that get one each: `rank-0, rank-1` or `item-1, item-2, …`."""
    shown = [part.folder for part in parts[:3]]
    return ", ".join(shown) + (", …" if len(parts) > len(shown) else "")
