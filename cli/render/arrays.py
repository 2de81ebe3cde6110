"""Arrays: their items by state in one line, and a table of those that a person asks about first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import job_pb2, scheduler_pb2

from ..outcome import PLAIN_REASONS, exit_in_words
from . import words
from .table import Column, Look, Row, draw

ITEM_COLUMNS = (
    Column("ITEM", is_right=True),
    Column("JOB", is_right=True),
    Column("STATE"),
    Column("WHERE", least=6),
    Column("RAN", is_right=True),
    Column("END", least=8),
)
LOOKED_FOR = (
    job_pb2.JOB_STATE_RUNNING,
    job_pb2.JOB_STATE_STARTING,
    job_pb2.JOB_STATE_STOPPING,
    job_pb2.JOB_STATE_FAILED,
    job_pb2.JOB_STATE_TIMED_OUT,
)
"""Items that the screen of an array shows: those that run, and those that failed."""
ITEMS_SHOWN = 20


def counts_in_words(counts: job_pb2.ArrayCounts) -> str:
    """`2 running, 97 queued, 1 failed`."""
    told = (
        (counts.running, "running"),
        (counts.starting, "starting"),
        (counts.stopping, "stopping"),
        (counts.queued, "queued"),
        (counts.held, "held"),
        (counts.failed, "failed"),
        (counts.timed_out, "timed out"),
        (counts.cancelled, "cancelled"),
        (counts.succeeded, "succeeded"),
    )
    return ", ".join(f"{number:,} {how}" for number, how in told if number)


def request_in_words(array: job_pb2.ArraySpec, counts: job_pb2.ArrayCounts) -> str:
    """`100 items (1-100), at most 10 at a time, until 3 have failed`."""
    indices = array.indices if len(array.indices) <= 60 else array.indices[:60] + "…"
    parts = [f"{words.counted(counts.items, 'item')} ({indices})"]
    if array.max_active_count:
        parts.append(f"at most {array.max_active_count:,} at a time")
    if array.max_fails:
        parts.append(f"until {array.max_fails:,} {'has' if array.max_fails == 1 else 'have'} failed")
    return ", ".join(parts)


def item_lines(items: Sequence[scheduler_pb2.ArrayItem], now: datetime, look: Look) -> list[str]:
    """The table of items."""
    return draw(ITEM_COLUMNS, [_row(item, now) for item in items], look)


def _row(item: scheduler_pb2.ArrayItem, now: datetime) -> Row:
    ran = "-"
    if item.HasField("start_time"):
        has_ended = item.HasField("end_time")
        ran = words.between(item.start_time, item.end_time) if has_ended else words.since(item.start_time, now)
    reason = "" if item.exit_reason in PLAIN_REASONS else item.exit_reason
    end = " ".join(filter(None, (exit_in_words(item.exit), reason)))
    return [
        str(item.index),
        str(item.job_id),
        words.job_state(item.state),
        " + ".join(item.nodes) or "-",
        ran,
        end or "-",
    ]
