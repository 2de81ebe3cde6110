"""Naming jobs: `41`, `40-45`, `41.3` and `41.3-7` (items of an array), `last`, `all`, a name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, Reason

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
        raise _wrong(f"{len(ids):,} jobs are more than {IDS_MAX:,} at once", "Name fewer, in several commands.")
    given = {part for word in words for part in word.split(",")}
    return Selection(tuple(ids), "last" in given, "all" in given, tuple(names), tuple(items))


def _items(part: str, array: int, first: int, last: int) -> tuple[int, int, int]:
    _id(part, array)
    if last < first:
        raise _wrong(f'"{part}" ends before it begins', f"Write it as {array}.{last}-{first}.")
    if last > INDEX_MAX:
        raise _wrong(f'"{part}" is beyond the highest index of an item', f"See its items with: gpuctl job {array}")
    return array, first, last


def _range(part: str, first: int, last: int) -> range:
    _id(part, first)
    _id(part, last)
    if last < first:
        raise _wrong(f'"{part}" ends before it begins', f"Write it as {last}-{first}.")
    if last - first >= IDS_MAX:
        raise _wrong(f'"{part}" names more than {IDS_MAX:,} jobs', "Name fewer, in several commands.")
    return range(first, last + 1)


def _id(part: str, number: int) -> int:
    if not 1 <= number <= JOB_ID_MAX:
        raise _wrong(f'"{part}" is not a job id: ids begin with 1', "See the ids with: gpuctl queue -a")
    return number


def _name(part: str) -> str:
    if not part:
        raise _wrong(
            "a job's name or id is empty",
            "Write ids, a range such as 40-45, an item such as 41.3, last, all, or a name.",
        )
    if part.startswith("-"):
        raise _wrong(f'"{part}" is not a job id', "See the ids with: gpuctl queue -a")
    return part


def _wrong(message: str, next_step: str) -> GpufleetError:
    return GpufleetError(Reason.INVALID_ARGUMENT, message, next_step=next_step)
