"""Where a reader of output begins that does not want all of it: the newest lines, or what is newer than a time."""

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import invalid

from ...output_hub import StreamKey
from ...ports import Gap, OutputStore
from ...state.units import SECOND, Instant
from ...wire.validate import instant_of

READ_BYTES = 256 * 1024
TAIL_BYTES_MAX = 4 * 1024 * 1024
"""How far back newest lines are looked for."""
TAIL_LINES_MAX = 1_000_000
LINE_BYTES_MAX = 64 * 1024
"""How far back the beginning of a line is looked for that was unfinished at a time."""
AHEAD_SECONDS_MAX = 60
"""A time may be in the future by this much, since the clocks of two machines differ."""

YEAR_1_SECONDS = -62_135_596_800
"""The earliest time, as the contract of a Timestamp says."""


def since_of(request: scheduler_pb2.StreamOutputRequest, now: Instant) -> Instant | None:
    """The time that a reader asks from; None for no time. `now` is by the wall clock. Errors: INVALID_ARGUMENT."""
    if not request.HasField("since_time"):
        return None
    since = instant_of(request.since_time, YEAR_1_SECONDS)
    if since is None:
        raise invalid("since_time", "is no time between the years 1 and 9999")
    ahead = (since - now) / SECOND
    if ahead > AHEAD_SECONDS_MAX:
        raise invalid(
            "since_time",
            f"is {ahead:,.0f} s in the future by the scheduler's clock",
            next_step="Give a time that has passed; gpuctl doctor compares the clocks.",
        )
    return since


def beginning(store: OutputStore, key: StreamKey, *, since: Instant | None, lines: int | None) -> int:
    """The offset at which a reader of one stream begins: with both, the newest lines of what is new enough."""
    start = 0 if since is None else since_start(store, key, since)
    return start if lines is None else max(start, tail_start(store, key, lines))


def since_start(store: OutputStore, key: StreamKey, since: Instant) -> int:
    """The offset from which on to read all that arrived at a time or later: the beginning of a line, if it is near.

    It may be in a gap, which a reader is then told of.
    """
    offset = store.arrived_before(*key, since)
    if offset >= store.end(*key):
        return offset
    start = max(0, offset - LINE_BYTES_MAX)
    data, data_start = _read(store, key, start, offset)
    newline = data.rfind(b"\n")
    if newline >= 0:
        return data_start + newline + 1
    return 0 if data_start == 0 and data else offset


def tail_start(store: OutputStore, key: StreamKey, lines: int) -> int:
    """The offset at which the newest `lines` lines of a stream begin."""
    end = store.end(*key)
    if lines == 0:
        return end
    data, start = _read(store, key, max(0, end - TAIL_BYTES_MAX), end)
    position = len(data) - 1 if data.endswith(b"\n") else len(data)
    for _ in range(lines):
        position = data.rfind(b"\n", 0, position)
        if position < 0:
            return start
    return start + position + 1


def _read(store: OutputStore, key: StreamKey, start: int, end: int) -> tuple[bytearray, int]:
    """The bytes up to `end` that are in one piece, from `start` or a later offset on; and that offset."""
    data = bytearray()
    offset = start
    while offset < end:
        found = store.read(*key, offset, min(READ_BYTES, end - offset))
        if found is None:
            break
        if isinstance(found, Gap):
            data.clear()
            offset = start = found.end
        else:
            data += found.data
            offset += len(found.data)
    return data, start
