"""States, times and places in words and colours."""

from __future__ import annotations

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import job_pb2, node_pb2

from gpufleet.units import format_duration

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


def span(duration: Duration) -> str:
    """A duration as people read it."""
    return format_duration(duration.ToTimedelta())


def places(attempt: job_pb2.Attempt) -> str:
    """`n1:0,1 n2:0,1`; a node's name alone where there are no devices."""
    return " ".join(place(rank) for rank in attempt.ranks)


def place(rank: job_pb2.PlacedRank) -> str:
    """`n1:0,1`."""
    return rank.node + (":" + ",".join(map(str, rank.device_indices)) if rank.device_indices else "")


def counted(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _aware(when: Timestamp) -> datetime:
    from datetime import UTC

    return when.ToDatetime(UTC)
