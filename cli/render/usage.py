"""How much was used: a table by user, node, model or band."""

from __future__ import annotations

from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import capacity_pb2

from gpufleet.units import format_duration

from .table import Column, Look, Row, draw
from .words import clock, counted

ABSENT = "–"
HOUR_SECONDS = 3_600
ROWS_MAX = 1_000
"""More are not answered."""


def usage_screen(
    by: str, answer: capacity_pb2.ListUsageResponse, now: datetime, look: Look, until: Timestamp | None = None
) -> list[str]:
    """The whole screen of `gpuctl usage`; `until` is absent where it is now."""
    since = f"since {clock(answer.start_time, now)}"
    if until is not None:
        since = f"from {clock(answer.start_time, now)} to {clock(until, now)}"
    known = clock(answer.known_since_time, now)
    is_cut = answer.known_since_time.ToMicroseconds() > answer.start_time.ToMicroseconds()
    note = [f"What was used before {known} is not known."] if is_cut else []
    if not answer.rows:
        return [f"Nothing was used {since}. Look further back with: gpuctl usage --since 90d", *note]
    columns = [
        Column(by.upper(), least=12),
        Column("GPU HOURS", is_right=True),
        Column("PART", is_right=True),
        Column("LOAD", is_right=True),
        Column("ENERGY", is_right=True),
        Column("JOBS", is_right=True),
        Column("FAILED", is_right=True),
        Column("WAIT", is_right=True),
    ]
    if look.is_wide:
        columns += [Column("MOST", is_right=True), Column("STARTS", is_right=True)]
    rows = [_row(each, answer.total, look) for each in answer.rows]
    if len(answer.rows) > 1:
        rows.append(_row(answer.total, answer.total, look, name="all"))
    lines = [f"{_hours(answer.total)} GPU hours {since}.", *note, "", *draw(columns, rows, look)]
    if len(answer.rows) >= ROWS_MAX:
        lines.append(f"Only the {counted(ROWS_MAX, by)} with the most are shown.")
    return lines


def _row(row: capacity_pb2.UsageRow, total: capacity_pb2.UsageRow, look: Look, name: str | None = None) -> Row:
    waits = row.wait_seconds
    cells = [
        (row.name or ABSENT) if name is None else name,
        _hours(row),
        f"{row.gpu_seconds / total.gpu_seconds:.0%}" if total.gpu_seconds else ABSENT,
        f"{row.utilization_percent:.0f}%" if row.HasField("utilization_percent") else ABSENT,
        _energy(row.energy_wh) if row.HasField("energy_wh") else ABSENT,
        f"{row.job_count:,}",
        f"{row.failed_job_count:,}",
        _wait(waits.mean) if waits.count else ABSENT,
    ]
    if look.is_wide:
        cells += [_wait(waits.max) if waits.count else ABSENT, f"{row.start_count:,}"]
    return cells


def _hours(row: capacity_pb2.UsageRow) -> str:
    """With the more decimals, the fewer they are: a minute on one GPU is 0.017."""
    hours = row.gpu_seconds / HOUR_SECONDS
    decimals = 1 if hours >= 10 or not hours else 2 if hours >= 0.1 else 3
    return f"{hours:,.{decimals}f}"


def _energy(watt_hours: float) -> str:
    return f"{watt_hours / 1_000:,.1f}kWh" if watt_hours >= 1_000 else f"{watt_hours:,.0f}Wh"


def _wait(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
