"""Requests to served programs and their tokens: a table by user and program."""

from __future__ import annotations

from datetime import datetime, timedelta

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import sessions_pb2

from gpufleet.text.units import counted, format_duration

from .table import ABSENT, Column, Look, draw
from .words import span_in_words

ROWS_MAX = 1_000
"""More are not answered."""


def request_usage_screen(
    answer: sessions_pb2.ListRequestUsageResponse, now: datetime, look: Look, until: Timestamp | None = None
) -> list[str]:
    """The whole screen of `gpuctl usage --requests`; `until` is absent where it is now."""
    since, note = span_in_words(answer.start_time, answer.known_since_time, now, "What was asked", until)
    if not answer.rows:
        return [f"Nobody asked a program {since}. Look further back with: gpuctl usage --requests --since 90d", *note]
    total = answer.total
    if total.unknown_count:
        # A stream says its tokens only to who asks for them.
        note.append(f"Of {counted(total.unknown_count, 'request')} the tokens are not known: no answer said them.")
    columns: list[Column[sessions_pb2.CountedRequests]] = [
        Column("USER", lambda row: "all" if row is total else row.user or ABSENT, least=8),
        Column("PROGRAM", lambda row: "" if row is total else row.model, least=8),
        Column("REQUESTS", lambda row: f"{row.request_count:,}", is_right=True),
        Column("FAILED", lambda row: f"{row.failed_count:,}", is_right=True),
        Column("TOKENS IN", lambda row: f"{row.prompt_tokens:,}", is_right=True),
        Column("TOKENS OUT", lambda row: f"{row.completion_tokens:,}", is_right=True),
        Column("UNKNOWN", lambda row: f"{row.unknown_count:,}", is_right=True),
    ]
    if total.fallback_count:
        columns.append(Column("FELL BACK", lambda row: f"{row.fallback_count:,}", is_right=True))
    if look.is_wide:
        columns.append(Column("TIME", _lasted, is_right=True))
        columns.append(Column("EACH", _each, is_right=True))
    rows = [*answer.rows, total] if len(answer.rows) > 1 else answer.rows
    head = (
        f"{counted(total.request_count, 'request')}, {total.prompt_tokens + total.completion_tokens:,} tokens {since}."
    )
    lines = [head, *note, "", *draw(columns, rows, look)]
    if len(answer.rows) >= ROWS_MAX:
        lines.append(f"Only the {ROWS_MAX:,} rows with the most are shown.")
    return lines


def _lasted(row: sessions_pb2.CountedRequests) -> str:
    return format_duration(timedelta(seconds=round(row.duration.ToTimedelta().total_seconds())))


def _each(row: sessions_pb2.CountedRequests) -> str:
    return f"{row.duration.ToTimedelta().total_seconds() / row.request_count:,.2f}s" if row.request_count else ABSENT
