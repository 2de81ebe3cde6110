"""Who called what: a table, and a line for each where they come one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from gpufleet.v1 import scheduler_pb2

from .table import ABSENT, Cell, Colour, Column, Look, draw
from .words import clock

Entry = scheduler_pb2.AuditEntry

NOT_REFUSED = ("OK", "CANCELLED")


def audit_screen(entries: Sequence[Entry], now: datetime, look: Look) -> list[str]:
    """The whole screen of `gpuctl audit`."""
    columns: list[Column[Entry]] = [
        Column("TIME", lambda entry: clock(entry.time, now)),
        Column("USER", who_called, least=6),
        Column("CALL", lambda entry: entry.action),
        Column("ON", lambda entry: entry.target or ABSENT, least=8),
        Column("FROM", lambda entry: entry.peer or ABSENT, least=9),
        Column("ENDED", _end),
    ]
    if look.is_wide:
        columns += [
            Column("ROLE", lambda entry: entry.role or ABSENT),
            Column("TOKEN", lambda entry: entry.token or ABSENT),
            Column("PASSED ON BY", lambda entry: entry.passed_on_by or ABSENT),
            Column("WHAT", _what),
        ]
    return draw(columns, entries, look)


def audit_line(entry: Entry, now: datetime) -> str:
    """One entry as a sentence."""
    on = f" on {entry.target}" if entry.target else ""
    come = f" from {entry.peer}" if entry.peer else ""
    what = f" ({_what(entry)})" if _what(entry) else ""
    return f"{clock(entry.time, now)} {who_called(entry)} called {entry.action}{on}{come}: {_end(entry).text}{what}"


def who_called(entry: Entry) -> str:
    """The user, or the node, or that nobody is known."""
    return entry.user or entry.node or "nobody"


def _end(entry: Entry) -> Cell:
    text = "goes on" if entry.is_open else entry.reason or entry.code
    if entry.count > 1:
        text += f" x{entry.count:,}"
    return Cell(text, None if entry.code in NOT_REFUSED else Colour.BAD)


def _what(entry: Entry) -> str:
    return "; ".join(each for each in (entry.sentence, entry.message) if each)
