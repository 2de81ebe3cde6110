"""States, times and places in words and colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, node_pb2

from gpufleet.text.units import format_duration

from .table import Cell, Colour

_JOB_COLOURS = {
    job_pb2.JOB_STATE_QUEUED: Colour.WARNING,
    job_pb2.JOB_STATE_HELD: Colour.WARNING,
    job_pb2.JOB_STATE_STARTING: Colour.GOOD,
    job_pb2.JOB_STATE_RUNNING: Colour.GOOD,
    job_pb2.JOB_STATE_STOPPING: Colour.WARNING,
    job_pb2.JOB_STATE_FAILED: Colour.BAD,
    job_pb2.JOB_STATE_TIMED_OUT: Colour.BAD,
}
_NODE_COLOURS = {
    node_pb2.NODE_STATE_READY: Colour.GOOD,
    node_pb2.NODE_STATE_SUSPECT: Colour.WARNING,
    node_pb2.NODE_STATE_DRAINING: Colour.WARNING,
    node_pb2.NODE_STATE_LOST: Colour.BAD,
}


def job_state(state: job_pb2.JobState.ValueType) -> Cell:
    """`running`, `timed out`; a state of a newer server by its own name."""
    return Cell(_word(job_pb2.JobState, state, "JOB_STATE_"), _JOB_COLOURS.get(state))


def node_state(state: node_pb2.NodeState.ValueType) -> Cell:
    """`ready`, `suspect`, `lost`, `draining`."""
    return Cell(_word(node_pb2.NodeState, state, "NODE_STATE_"), _NODE_COLOURS.get(state))


def band(number: job_pb2.Band.ValueType) -> str:
    """`normal`."""
    return _word(job_pb2.Band, number, "BAND_")


def _word(enum: object, number: int, prefix: str) -> str:
    names = {value: name for name, value in enum.items()}  # type: ignore[attr-defined]
    return str(names.get(number, number)).removeprefix(prefix).lower().replace("_", " ")


def clock(when: Timestamp, now: datetime) -> str:
    """The time of day in `now`'s zone; with the date when it is another day."""
    local = when.ToDatetime(now.tzinfo) if now.tzinfo is None else _aware(when).astimezone(now.tzinfo)
    if local.date() == now.date():
        return local.strftime("%H:%M:%S")
    return local.strftime("%b %d %H:%M" if local.year == now.year else "%Y-%m-%d %H:%M")


def span_in_words(
    start: Timestamp, known_since: Timestamp, now: datetime, what: str, until: Timestamp | None = None
) -> tuple[str, list[str]]:
    """The span of an answer as a clause, and a note where it begins before all is known; `what` is what was counted,
    such as "What was used". `until` is absent where it is now."""
    begin = clock(start, now)
    clause = f"since {begin}" if until is None else f"from {begin} to {clock(until, now)}"
    is_cut = known_since.ToMicroseconds() > start.ToMicroseconds()
    return clause, [f"{what} before {clock(known_since, now)} is not known."] if is_cut else []


def short_clock(when: Timestamp, now: datetime) -> str:
    """`09:48`, and on another day `Nov 24 09:48`."""
    text = clock(when, now)
    return text[:5] if text[2:3] == ":" else text


def full_clock(when: Timestamp, now: datetime) -> str:
    """Date and time to the second, in `now`'s zone."""
    return _aware(when).astimezone(now.tzinfo).strftime("%Y-%m-%d %H:%M:%S")


def since(when: Timestamp, now: datetime) -> str:
    """How long ago in whole seconds, `1h05m`; nothing below zero where clocks differ."""
    return format_duration(timedelta(seconds=max(span_between(when, now) // timedelta(seconds=1), 0)))


def span_between(when: Timestamp, now: datetime) -> timedelta:
    """From `when` to `now`."""
    return now - _aware(when)


def between(start: Timestamp, end: Timestamp) -> str:
    """How long it took."""
    return format_duration(max(_aware(end) - _aware(start), timedelta(0)))


def likely(earliest: Timestamp, latest: Timestamp, now: datetime) -> str:
    """The range in which a job is likely to start: `between 10m and 50m from now, 9 of 10 such jobs`."""
    soonest, last = (_rounded(max(-span_between(when, now), timedelta(0))) for when in (earliest, latest))
    spans = f"within {last}" if soonest == "0s" or soonest == last else f"between {soonest} and {last} from now"
    return f"{spans}, 9 of 10 such jobs"


def _rounded(length: timedelta) -> str:
    """To the minute from ten minutes on: a range is no promise to the second."""
    step = timedelta(minutes=1) if length >= timedelta(minutes=10) else timedelta(seconds=1)
    return format_duration(-(-length // step) * step)


def span(duration: Duration) -> str:
    """A duration as people read it."""
    return format_duration(duration.ToTimedelta())


def places(attempt: job_pb2.Attempt) -> str:
    """`n1:0,1 n2:0,1`; a node's name alone where there are no devices."""
    return " ".join(place(rank) for rank in attempt.ranks)


def place(rank: job_pb2.PlacedRank) -> str:
    """`n1:0,1`."""
    return rank.node + (":" + ",".join(map(str, rank.device_indices)) if rank.device_indices else "")


def runs_of(job: job_pb2.Job) -> int:
    """Attempts that ran, with the one that is placed now. A scheduler of before counts what came to nothing, too."""
    return job.run_count if job.HasField("run_count") else job.attempt_count


def nodes_of(attempt: job_pb2.Attempt) -> str:
    """Where it runs, in a table: `n1:0,1`; of several nodes their names alone: `n1,n2`, or `n[1-4],big`."""
    if len(attempt.ranks) == 1:
        return place(attempt.ranks[0])
    return folded([rank.node for rank in attempt.ranks])


def folded(names: Sequence[str]) -> str:
    """Names with those that only count on folded together: `n1,n2,n3,n5` is `n[1-3,5]`; two are never folded."""
    if len(names) < FOLDED_MIN:
        return ",".join(names)
    groups: dict[tuple[str, int], list[str]] = {}
    for name in names:
        stem = name.rstrip("0123456789")
        number = name.removeprefix(stem)
        # Of node08 and node9 the widths differ: they are not one row of numbers.
        width = len(number) if number.startswith("0") else 0
        groups.setdefault((stem, width if number else -1), []).append(number)
    return ",".join(_folded_group(stem, numbers) for (stem, _), numbers in groups.items())


FOLDED_MIN = 3
"""So many names are folded; fewer are as short without it."""


def _folded_group(stem: str, numbers: Sequence[str]) -> str:
    if len(numbers) == 1:
        return f"{stem}{numbers[0]}"
    ordered = sorted(numbers, key=int)
    runs: list[list[str]] = []
    for number in ordered:
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return f"{stem}[{','.join(run[0] if len(run) == 1 else f'{run[0]}-{run[-1]}' for run in runs)}]"


def labels(pairs: Mapping[str, str], between: str = " ") -> str:
    """`rack=3 site=east`, in the order of their names."""
    return between.join(f"{name}={value}" for name, value in sorted(pairs.items()))


def _aware(when: Timestamp) -> datetime:
    from datetime import UTC

    return when.ToDatetime(UTC)
