"""What has ended: the columns there are, as people read them and as plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from gpufleet.v1 import history_pb2

from gpufleet.text.units import format_duration, format_size

from .table import ABSENT, Cell, Column, Look, draw
from .words import band, clock, folded, job_state

Value = str | int | float | datetime | None


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its title, the plain value, and how people read that; `least` characters where it may be cut."""

    title: str
    value: Callable[[history_pb2.EndedJob], Value]
    show: Callable[[Any, datetime], str] = lambda value, now: str(value)
    is_right: bool = False
    least: int | None = None


def _span(value: float, now: datetime) -> str:
    return format_duration(timedelta(seconds=round(value) if value >= 1 else value))


def _size(value: int, now: datetime) -> str:
    return format_size(value)


def _percent(value: float, now: datetime) -> str:
    return f"{value:.0f}%"


def _time(value: datetime, now: datetime) -> str:
    from google.protobuf.timestamp_pb2 import Timestamp

    stamp = Timestamp()
    stamp.FromDatetime(value)
    return clock(stamp, now)


def _seconds(field: str) -> Callable[[history_pb2.EndedJob], Value]:
    return lambda job: getattr(job, field).ToMicroseconds() / 1e6 if job.HasField(field) else None  # type: ignore[arg-type]


def _moment(field: str) -> Callable[[history_pb2.EndedJob], Value]:
    return lambda job: getattr(job, field).ToDatetime(UTC) if job.HasField(field) else None  # type: ignore[arg-type]


def job_id(job: history_pb2.EndedJob) -> str:
    """`41`, and of an item `41.3`, as it is typed."""
    return f"{job.array_id}.{job.array_index}" if job.array_id else str(job.job_id)


def _exit(job: history_pb2.EndedJob) -> Value:
    """`0`, `SIGKILL` as `137`; of an array how many of its items failed; nothing where there was no process."""
    match job.exit.WhichOneof("status"):
        case "code":
            return job.exit.code
        case "signal":
            return 128 + job.exit.signal
        case _:
            return None


def _nodes(job: history_pb2.EndedJob) -> Value:
    return folded(list(job.nodes)) or None


def _items(job: history_pb2.EndedJob) -> Value:
    counts = job.array_counts
    if not job.HasField("array_counts"):
        return None
    ended = {
        "ok": counts.succeeded,
        "failed": counts.failed,
        "timed out": counts.timed_out,
        "cancelled": counts.cancelled,
    }
    return ", ".join(f"{number:,} {word}" for word, number in ended.items() if number)


FIELDS: Mapping[str, Field] = {
    "id": Field("ID", job_id),
    "user": Field("USER", lambda job: job.user, least=4),
    "name": Field("NAME", lambda job: job.name, least=6),
    "state": Field("STATE", lambda job: job_state(job.state).text),
    "exit": Field("EXIT", _exit, is_right=True),
    "node": Field("NODE", _nodes, least=4),
    "elapsed": Field("ELAPSED", _seconds("elapsed"), _span, is_right=True),
    "wait": Field("WAIT", _seconds("wait"), _span, is_right=True),
    "memory": Field("MEMORY", lambda job: job.memory_bytes_max or None, _size, is_right=True),
    "gpu": Field(
        "GPU", lambda job: job.gpu_percent_mean if job.HasField("gpu_percent_mean") else None, _percent, is_right=True
    ),
    "end": Field("END", _moment("end_time"), _time),
    "start": Field("START", _moment("start_time"), _time),
    "submit": Field("SUBMIT", _moment("submit_time"), _time),
    "band": Field("BAND", lambda job: band(job.band)),
    "gpus": Field("GPUS", lambda job: job.gpu_count, is_right=True),
    "gpu-memory": Field("GPU MEMORY", lambda job: job.gpu_memory_bytes_max or None, _size, is_right=True),
    "cpus": Field("CPUS", lambda job: job.cpus, is_right=True),
    "cpu-time": Field("CPU TIME", lambda job: job.cpu_seconds if job.nodes else None, _span, is_right=True),
    "limit": Field("LIMIT", _seconds("time_limit"), _span, is_right=True),
    "attempts": Field("ATTEMPTS", lambda job: job.attempt_count, is_right=True),
    "items": Field("ITEMS", _items),
    "reason": Field("REASON", lambda job: job.exit_reason or None),
    "message": Field("MESSAGE", lambda job: job.exit_message or None),
}
"""All columns by the names that `--columns` and `--sort` take."""

USUAL = ("id", "user", "name", "state", "exit", "node", "elapsed", "wait", "memory", "gpu", "end")


def history_screen(jobs: Sequence[history_pb2.EndedJob], names: Sequence[str], now: datetime, look: Look) -> list[str]:
    """The table of what has ended."""
    return draw([_column(name, now) for name in names], jobs, look)


def _column(name: str, now: datetime) -> Column[history_pb2.EndedJob]:
    field = FIELDS[name]

    def show(job: history_pb2.EndedJob) -> Cell | str:
        value = field.value(job)
        return job_state(job.state) if name == "state" else ABSENT if value is None else field.show(value, now)

    return Column(field.title, show, is_right=field.is_right, least=field.least)


def csv_lines(jobs: Iterable[history_pb2.EndedJob], names: Sequence[str]) -> Iterable[str]:
    """Lines of values without a title: seconds, bytes, percent, and RFC 3339 UTC times; what is unknown is empty."""
    for job in jobs:
        yield csv_line([_plain(FIELDS[name].value(job)) for name in names])


def csv_line(values: Sequence[object]) -> str:
    """One line, quoted where it has to be."""
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(values)
    return text.getvalue()


def _plain(value: Value) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return round(value, 3) if isinstance(value, float) else "" if value is None else value


def in_order(jobs: list[history_pb2.EndedJob], sort: str) -> list[history_pb2.EndedJob]:
    """By a column, from the largest on behind a `-`; what has no value there comes last."""
    value = FIELDS[sort.removeprefix("-")].value
    known = [(found, job) for job in jobs if (found := value(job)) is not None]
    known.sort(key=lambda each: _sortable(sort, each), reverse=sort.startswith("-"))
    return [job for _, job in known] + [job for job in jobs if value(job) is None]


def _sortable(sort: str, each: tuple[Value, history_pb2.EndedJob]) -> tuple[object, int]:
    value, job = each
    return (job.array_id or job.job_id, job.job_id) if sort.removeprefix("-") == "id" else (value, job.job_id)
