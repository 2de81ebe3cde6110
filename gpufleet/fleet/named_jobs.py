"""From what a person names to jobs: `41`, `40-45`, `41.3` and `41.3-7` (items of an array), `last`, `all`, a name.

What only the scheduler knows (the newest, all of mine, a name) is asked there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gpufleet.errors import GpufleetError, Reason
from gpufleet.v1 import job_pb2, scheduler_pb2

from .client import Client, all_pages
from .reading import wrong

JOB_ID_MAX = 2**63 - 1
IDS_MAX = 10_000
"""Ids that one command may name."""

_ID = re.compile(r"\d{1,19}")
_RANGE = re.compile(r"(\d{1,19})-(\d{1,19})")
_ITEMS = re.compile(r"(\d{1,19})\.(\d{1,10})(?:-(\d{1,10}))?")
INDEX_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Selection:
    """What a command names: ids as they were given, whether the newest job and all jobs are meant, and names.

    `items` are items of arrays: (array, first index, last index) each.
    """

    job_ids: tuple[int, ...] = ()
    last: bool = False
    all_mine: bool = False
    names: tuple[str, ...] = ()
    items: tuple[tuple[int, int, int], ...] = ()

    @property
    def asks_scheduler(self) -> bool:
        """Whether only the scheduler knows the ids of some that are named."""
        return self.last or self.all_mine or bool(self.names or self.items)


def read_selection(words: Sequence[str]) -> Selection:
    """Read the words; ids keep their order and appear once. Raises INVALID_ARGUMENT."""
    ids: dict[int, None] = {}
    names: dict[str, None] = {}
    items: dict[tuple[int, int, int], None] = {}
    for word in words:
        for part in word.split(","):
            if found := _RANGE.fullmatch(part):
                ids |= dict.fromkeys(_range(part, int(found[1]), int(found[2])))
            elif found := _ITEMS.fullmatch(part):
                items[_items(part, int(found[1]), int(found[2]), int(found[3] or found[2]))] = None
            elif _ID.fullmatch(part):
                ids[_id(part, int(part))] = None
            elif part not in ("last", "all"):
                names[_name(part)] = None
    if len(ids) > IDS_MAX:
        raise wrong(f"{len(ids):,} jobs are more than {IDS_MAX:,} at once", "Name fewer, in several commands.")
    given = {part for word in words for part in word.split(",")}
    return Selection(tuple(ids), "last" in given, "all" in given, tuple(names), tuple(items))


def _items(part: str, array: int, first: int, last: int) -> tuple[int, int, int]:
    _id(part, array)
    if last < first:
        raise wrong(f'"{part}" ends before it begins', f"Write it as {array}.{last}-{first}.")
    if last > INDEX_MAX:
        raise wrong(f'"{part}" is beyond the highest index of an item', f"See its items with: gpuctl job {array}")
    return array, first, last


def _range(part: str, first: int, last: int) -> range:
    _id(part, first)
    _id(part, last)
    if last < first:
        raise wrong(f'"{part}" ends before it begins', f"Write it as {last}-{first}.")
    if last - first >= IDS_MAX:
        raise wrong(f'"{part}" names more than {IDS_MAX:,} jobs', "Name fewer, in several commands.")
    return range(first, last + 1)


def _id(part: str, number: int) -> int:
    if not 1 <= number <= JOB_ID_MAX:
        raise wrong(f'"{part}" is not a job id: ids begin with 1', "See the ids with: gpuctl queue -a")
    return number


def _name(part: str) -> str:
    if not part:
        raise wrong(
            "a job's name or id is empty",
            "Write ids, a range such as 40-45, an item such as 41.3, last, all, or a name.",
        )
    if part.startswith("-"):
        raise wrong(f'"{part}" is not a job id', "See the ids with: gpuctl queue -a")
    return part


PAGE_SIZE = 1000


def selectors_of(client: Client, selection: Selection) -> list[scheduler_pb2.JobSelector]:
    """Selectors for a call that changes jobs; a call takes one name, so there is one selector a name."""
    ids = [*selection.job_ids, *(item.job_id for item in chosen_items(client, selection))]
    if selection.last:
        ids.append(newest_job(client).id)
    selectors = []
    if ids or selection.all_mine:
        selectors.append(scheduler_pb2.JobSelector(job_ids=ids, all_mine=selection.all_mine))
    return selectors + [scheduler_pb2.JobSelector(name=name) for name in selection.names]


def ids_of(client: Client, selection: Selection) -> list[int]:
    """Ids for a command that reads: a name stands for the newest job with it, `all` for mine that have not ended."""
    ids = [*selection.job_ids, *(item.job_id for item in chosen_items(client, selection))]
    if selection.last:
        ids.append(newest_job(client).id)
    for name in selection.names:
        ids.append(client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(name=name)).job.id)
    if selection.all_mine:
        ids += [job.id for job in my_jobs(client)]
    return list(dict.fromkeys(ids))


def chosen_items(client: Client, selection: Selection) -> Iterator[scheduler_pb2.ArrayItem]:
    """The items of arrays that are named. Raises ITEM_NOT_FOUND where a name stands for none, and NOT_AN_ARRAY."""
    found = 0
    for array, first, last in selection.items:
        request = scheduler_pb2.ListArrayItemsRequest(
            job_id=array, first_index=first, last_index=last, page_size=PAGE_SIZE
        )
        before = found
        for page in all_pages(client, client.scheduler.ListArrayItems, request):
            found += len(page.items)
            if found > IDS_MAX:
                raise wrong(
                    f"more than {IDS_MAX:,} items are named",
                    "Name fewer, in several commands, or the whole array by its id.",
                )
            yield from page.items
        if found == before:
            which = f"item {first}" if first == last else f"items {first}-{last}"
            raise GpufleetError(
                Reason.ITEM_NOT_FOUND,
                f"array {array} has no {which}",
                next_step=f"See which it has with: gpuctl job {array}",
            )


def only_id(client: Client, selection: Selection) -> int:
    """The one job of a command that takes one."""
    ids = ids_of(client, selection)
    if len(ids) != 1:
        raise wrong(
            f"{len(ids) or 'no'} jobs are named, and this shows one", "Name one job; see the ids with: gpuctl queue -a"
        )
    return ids[0]


@dataclass(frozen=True, slots=True)
class NamedJob:
    """One job that a word names, or some items of an array; `typed` is that word where it is an id."""

    job: job_pb2.Job
    typed: str
    items: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, job: job_pb2.Job) -> NamedJob:
        """A job by its id."""
        return cls(job, str(job.id))

    @property
    def words(self) -> str:
        """What to call it: `job 41`, `job 41.3`, `array 41`."""
        return f"array {self.typed}" if self.is_array else f"job {self.typed}"

    @property
    def is_array(self) -> bool:
        """Whether it is an array, or several items of one."""
        return bool(self.job.spec.array.indices)


def one_named(client: Client, word: str) -> NamedJob:
    """The job, the array, or the items of one array, for a command that takes one. Raises INVALID_ARGUMENT."""
    selection = read_selection([word])
    arrays = {array for array, _, _ in selection.items}
    is_only_items = not (selection.job_ids or selection.last or selection.all_mine or selection.names)
    ranges = tuple((first, last) for _, first, last in selection.items)
    if is_only_items and len(arrays) == 1 and sum(last - first + 1 for first, last in ranges) > 1:
        (array,) = arrays
        return NamedJob(_job(client, array), word, ranges)
    job = _job(client, only_id(client, selection))
    return NamedJob(job, str(job.id) if selection.last or selection.all_mine or selection.names else word)


def _job(client: Client, job_id: int) -> job_pb2.Job:
    return client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id)).job


def newest_job(client: Client) -> job_pb2.Job:
    """The caller's newest job."""
    return client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(last=True)).job


def each_once(jobs: Iterable[job_pb2.Job]) -> list[job_pb2.Job]:
    """Jobs of several pages; of one that moved on meanwhile, such as by its end, what was read last."""
    found: dict[int, job_pb2.Job] = {}
    for job in jobs:
        found.pop(job.id, None)
        found[job.id] = job
    return list(found.values())


def my_jobs(client: Client) -> Iterator[job_pb2.Job]:
    """The caller's jobs that have not ended."""
    user = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
    request = scheduler_pb2.QueueRequest(user=user, page_size=PAGE_SIZE, omit_env=True)
    for page in islice(all_pages(client, client.scheduler.Queue, request), IDS_MAX // PAGE_SIZE):
        yield from page.jobs
