"""The items of an array as a person writes them, checked."""

import re

from gpufleet.v1 import job_pb2

from gpufleet.errors import invalid

from ..state.indices import Indices
from ..state.jobs import Items

ARRAY_ITEMS_MAX = 1_000_000
INDEX_MAX = 2**31 - 1
INDICES_CHARS_MAX = 65_536
HOW = "write it as 1-100, 1,3,5-9 or 0-30:10"
_PART = re.compile(r"(?P<first>[0-9]{1,19})(-(?P<last>[0-9]{1,19})(:(?P<step>[0-9]{1,19}))?)?")


def items_of(spec: job_pb2.JobSpec, path: str) -> Items | None:
    """The items of a spec's array; None without one. Errors: INVALID_ARGUMENT with the path."""
    if not spec.HasField("array"):
        return None
    array, path = spec.array, f"{path}.array"
    for name, number in (("max_active_count", array.max_active_count), ("max_fails", array.max_fails)):
        if number < 0:
            raise invalid(f"{path}.{name}", f"is {number}; it must be 1 or more, or left out")
    indices = indices_of(array.indices, f"{path}.indices")
    return Items(indices=indices, active_max=array.max_active_count, failures_max=array.max_fails)


def indices_of(text: str, path: str) -> Indices:
    """The indices that a text names. Errors: INVALID_ARGUMENT with the path."""
    if not text.strip():
        raise invalid(path, "names no index", next_step=HOW)
    if len(text) > INDICES_CHARS_MAX:
        raise invalid(path, f"is longer than {INDICES_CHARS_MAX:,} characters", next_step="name fewer in one array")
    ranges = [_range(part.strip(), path) for part in text.split(",")]
    total = sum(map(len, ranges))
    if total > ARRAY_ITEMS_MAX:
        raise invalid(path, f"names {total:,} items; at most {ARRAY_ITEMS_MAX:,} are one array")
    try:
        return Indices.of_ranges(ranges)
    except ValueError as problem:
        raise invalid(path, f"{problem} in {_short(text)}", next_step="name each index once") from None


def _range(part: str, path: str) -> range:
    found = _PART.fullmatch(part)
    if found is None:
        what = "an index is missing" if not part else f"{_short(part)} is no index and no range of them"
        raise invalid(path, what, next_step=HOW)
    first, last, step = (
        int(found[name] or default) for name, default in (("first", 0), ("last", found["first"]), ("step", 1))
    )
    if last < first:
        raise invalid(path, f"{_short(part)} ends before it begins", next_step=f"write it as {last}-{first}")
    if last > INDEX_MAX:
        raise invalid(path, f"{_short(part)} is beyond the highest index, {INDEX_MAX:,}")
    if step < 1:
        raise invalid(path, f"{_short(part)} has a step of 0", next_step=HOW)
    return range(first, last + 1, step)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}…")
