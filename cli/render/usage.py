"""How much was used: a table by user, node, model, band or group; and who came to the models, by day and model."""

from __future__ import annotations

from datetime import datetime, timedelta

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import capacity_pb2, sessions_pb2

from gpufleet.text.units import counted, format_duration

from .table import ABSENT, Column, Look, draw
from .words import span_in_words

HOUR_SECONDS = 3_600
ROWS_MAX = 1_000
"""More are not answered."""


def usage_screen(
    by: str, answer: capacity_pb2.ListUsageResponse, now: datetime, look: Look, until: Timestamp | None = None
) -> list[str]:
    """The whole screen of `gpuctl usage`; `until` is absent where it is now."""
    since, note = span_in_words(answer.start_time, answer.known_since_time, now, "What was used", until)
    if not answer.rows:
        return [f"Nothing was used {since}. Look further back with: gpuctl usage --since 90d", *note]
    total = answer.total
    columns: list[Column[capacity_pb2.UsageRow]] = [
        Column(by.upper(), lambda row: "all" if row is total else row.name or ABSENT, least=12),
        Column("GPU HOURS", _hours, is_right=True),
        Column("PART", lambda row: _part(row, total), is_right=True),
        Column("LOAD", _load, is_right=True),
        Column("ENERGY", _energy, is_right=True),
        Column("JOBS", lambda row: f"{row.job_count:,}", is_right=True),
        Column("FAILED", lambda row: f"{row.failed_job_count:,}", is_right=True),
        Column("WAIT", lambda row: _wait(row, row.wait_seconds.mean), is_right=True),
    ]
    if look.is_wide:
        columns.extend(
            (
                Column("MOST", lambda row: _wait(row, row.wait_seconds.max), is_right=True),
                Column("STARTS", lambda row: f"{row.start_count:,}", is_right=True),
            )
        )
    rows = [*answer.rows, total] if len(answer.rows) > 1 else answer.rows
    lines = [f"{_hours(total)} GPU hours {since}.", *note, "", *draw(columns, rows, look)]
    if len(answer.rows) >= ROWS_MAX:
        lines.append(f"Only the {counted(ROWS_MAX, by)} with the most are shown.")
    return lines


def _hours(row: capacity_pb2.UsageRow) -> str:
    """With the more decimals, the fewer they are: a minute on one GPU is 0.017."""
    hours = row.gpu_seconds / HOUR_SECONDS
    decimals = 1 if hours >= 10 or not hours else 2 if hours >= 0.1 else 3
    return f"{hours:,.{decimals}f}"


def _part(row: capacity_pb2.UsageRow, total: capacity_pb2.UsageRow) -> str:
    return f"{row.gpu_seconds / total.gpu_seconds:.0%}" if total.gpu_seconds else ABSENT


def _load(row: capacity_pb2.UsageRow) -> str:
    return f"{row.utilization_percent:.0f}%" if row.HasField("utilization_percent") else ABSENT


def _energy(row: capacity_pb2.UsageRow) -> str:
    if not row.HasField("energy_wh"):
        return ABSENT
    return f"{row.energy_wh / 1_000:,.1f}kWh" if row.energy_wh >= 1_000 else f"{row.energy_wh:,.0f}Wh"


def _wait(row: capacity_pb2.UsageRow, seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds)) if row.wait_seconds.count else ABSENT


def session_usage_screen(answer: sessions_pb2.ListSessionUsageResponse, now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl usage --sessions`."""
    since, note = span_in_words(answer.start_time, answer.known_since_time, now, "Who came")
    if not answer.rows:
        return [f"Nobody came {since}. Look further back with: gpuctl usage --sessions --since 90d", *note]
    days = sorted(answer.steps, key=lambda row: (row.start_time.ToMicroseconds(), row.model))
    columns: list[Column[tuple[str, sessions_pb2.SessionUsage]]] = [
        Column("DAY", lambda row: row[0]),
        Column("MODEL", lambda row: row[1].model, least=8),
        Column("PEOPLE", lambda row: f"{row[1].people:,}", is_right=True),
        Column("TURNS", lambda row: f"{row[1].turns:,}", is_right=True),
        Column("GAVE UP", lambda row: f"{row[1].give_ups:,}", is_right=True),
        Column(
            "WAIT P50", lambda row: _span(row[1].wait_p50) if row[1].HasField("wait_p50") else ABSENT, is_right=True
        ),
        Column("P95", lambda row: _span(row[1].wait_p95) if row[1].HasField("wait_p95") else ABSENT, is_right=True),
    ]
    if look.is_wide:
        columns.extend(
            (
                Column("VISITS", lambda row: f"{row[1].visits:,}", is_right=True),
                Column("IN TURNS", lambda row: _span(row[1].turn_time), is_right=True),
                Column("ENDED", lambda row: _ends(row[1]), least=12),
            )
        )
    rows = [(_day(each, now), each) for each in days]
    if len(days) > len(answer.rows):
        rows += [("all", each) for each in answer.rows]
    people = sum(each.people for each in answer.rows)
    turns = sum(each.turns for each in answer.rows)
    head = f"{people:,} {'person' if people == 1 else 'people'}, {turns:,} {'turn' if turns == 1 else 'turns'} {since}."
    if len(answer.rows) > 1:
        note = ["Who came to several models counts for each.", *note]
    return [head, *note, "", *draw(columns, rows, look)]


def _day(row: sessions_pb2.SessionUsage, now: datetime) -> str:
    return row.start_time.ToDatetime(now.tzinfo).date().isoformat()


def _ends(row: sessions_pb2.SessionUsage) -> str:
    return ", ".join(f"{each.reason.lower().replace('_', ' ')} {each.count:,}" for each in row.ends) or ABSENT


def _span(span: Duration) -> str:
    return format_duration(timedelta(seconds=round(span.ToTimedelta().total_seconds())))
