"""Visits of people to models: one row a session, from its place in the line to its end, in a file of its own.

A visit follows from records alone (who joined, was given a seat, missed it, lost a worker, ended), and records are
numbered. With the visits the file keeps the number up to which they are counted, in the same transaction: what is told
twice is counted once. Methods block, for one thread.
"""

import hashlib
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any

from ..ports import StoredRecord
from ..state.ids import ModelName
from ..state.sessions.records import ClaimMissed, SessionEnded, SessionJoined, SessionRequeued, TurnGranted
from ..state.sessions.session import EndReason
from ..state.units import Instant, Span
from .file import ACCOUNTED, Accounted, CountedFile

FILE = "visits.db"
VERSION = 1
KINDS = ("SessionJoined", "TurnGranted", "ClaimMissed", "SessionRequeued", "SessionEnded")
VISITS_MAX = 1_000_000
"""Beyond it the oldest visits are dropped; each takes some 100 bytes."""
GIVE_UPS = frozenset({EndReason.LEFT, EndReason.DISCONNECTED, EndReason.CLAIM_TIMEOUT})
"""Who ends so without having had a turn did not want to wait any longer."""

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS visit (
    id INTEGER PRIMARY KEY, model TEXT NOT NULL, person BLOB NOT NULL, joined_us INTEGER NOT NULL,
    granted_us INTEGER, waited_us INTEGER, turns INTEGER NOT NULL DEFAULT 0, turn_us INTEGER NOT NULL DEFAULT 0,
    ended_us INTEGER, reason TEXT
);
CREATE INDEX IF NOT EXISTS visit_by_join ON visit (joined_us);
{ACCOUNTED}
"""
_JOIN = "INSERT OR IGNORE INTO visit (id, model, person, joined_us) VALUES (?, ?, ?, ?)"
_GRANT = "UPDATE visit SET granted_us = ? WHERE id = ? AND ended_us IS NULL"
_TURN_OVER = """UPDATE visit SET turns = turns + 1, turn_us = turn_us + max(0, ?1 - granted_us),
    waited_us = coalesce(waited_us, max(0, granted_us - joined_us)), granted_us = NULL
    WHERE id = ?2 AND granted_us IS NOT NULL"""
_END = "UPDATE visit SET ended_us = ?, reason = ?, granted_us = NULL WHERE id = ?"
_READ = """SELECT model, person, joined_us, granted_us, waited_us, turns, turn_us, reason FROM visit
    WHERE joined_us >= ? AND joined_us < ? AND (?3 = '' OR model = ?3)"""


@dataclass(slots=True)
class Visitors:
    """What visits come to. A turn that goes on counts, up to the moment of asking."""

    people: set[bytes] = field(default_factory=set)
    visits: int = 0
    turns: int = 0
    give_ups: int = 0
    turn_span: int = 0
    waits: list[int] = field(default_factory=list)
    ends: dict[str, int] = field(default_factory=dict)

    def wait(self, share: float) -> Span | None:
        """The wait that this share of those who had a turn did not exceed (nearest rank); None where nobody had one."""
        if not self.waits:
            return None
        self.waits.sort()
        return Span(self.waits[ceil(share * len(self.waits)) - 1])


Found = dict[ModelName, tuple[Visitors, dict[int, Visitors]]]
"""Of each model: all of its visits, and those of each step that has any, by its number."""


class VisitFile(CountedFile):
    """Visits, with the one connection to them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / FILE, SCHEMA, VERSION)

    def write(self, records: Sequence[StoredRecord], accounted: Accounted) -> None:
        """Count records, in their order, and note that all up to `accounted` are counted; or nothing of it."""
        connection, known = self._opened(), self.accounted()
        new = (each for each in records if known is None or each.sequence > known.sequence)
        steps = (partial(_count, connection, each) for each in new)
        self._do(connection, *steps, partial(self._note, connection, known, accounted))

    def forget(self) -> None:
        """Drop all that was counted of visits."""
        self._forget("visit")

    def read(self, begin: Instant, end: Instant, step: Span, model: str, now: Instant) -> Found:
        """The visits of people who joined in a span, by model and by the step in which they joined."""
        found: Found = {}
        for name, *visit in self._opened().execute(_READ, (begin, end, model)):
            whole, steps = found.setdefault(ModelName(name), (Visitors(), {}))
            joined: int = visit[1]
            for each in (whole, steps.setdefault((joined - begin) // step, Visitors())):
                _add(each, visit, now)
        return found

    def prune(self, before: Instant) -> int:
        """Drop visits that ended before an instant, and the oldest beyond VISITS_MAX; how many."""
        connection = self._opened()
        (count,) = connection.execute("SELECT count(*) FROM visit").fetchone()
        oldest = connection.execute(
            "SELECT joined_us FROM visit ORDER BY joined_us DESC LIMIT 1 OFFSET ?", (VISITS_MAX,)
        ).fetchone()
        limit = before if count <= VISITS_MAX or oldest is None else max(before, oldest[0] + 1)
        dropped = 0

        def drop() -> None:
            nonlocal dropped
            gone = connection.execute("DELETE FROM visit WHERE joined_us < ? AND ended_us IS NOT NULL", (limit,))
            dropped = gone.rowcount
            if dropped:
                connection.execute("UPDATE accounted SET known_since_us = max(known_since_us, ?)", (limit,))

        self._do(connection, drop)
        return dropped


def _count(connection: sqlite3.Connection, each: StoredRecord) -> None:
    match each.record:
        case SessionJoined(session=session):
            person = hashlib.sha256(session.identity.encode()).digest()[:8]
            connection.execute(_JOIN, (session.id, session.model, person, session.joined_at))
        case TurnGranted(session=session_id, at=at):
            connection.execute(_GRANT, (at, session_id))
        case ClaimMissed(session=session_id):
            connection.execute(_GRANT, (None, session_id))
        case SessionRequeued(session=session_id, at=at):
            connection.execute(_TURN_OVER, (at, session_id))
        case SessionEnded(session=session_id, at=at, reason=reason):
            if reason is not EndReason.CLAIM_TIMEOUT:
                connection.execute(_TURN_OVER, (at, session_id))
            connection.execute(_END, (at, reason.value, session_id))
        case other:
            raise AssertionError(f"a {type(other).__name__} is not asked for")


def _add(visitors: Visitors, visit: Sequence[Any], now: Instant) -> None:
    """Count a visit: a row of _READ without its model."""
    person, joined, granted, waited, turns, turn_us, reason = visit
    if granted is not None:
        turns, turn_us = turns + 1, turn_us + max(0, now - granted)
        waited = max(0, granted - joined) if waited is None else waited
    visitors.people.add(person)
    visitors.visits += 1
    visitors.turns += turns
    visitors.turn_span += turn_us
    if waited is not None:
        visitors.waits.append(waited)
    if reason is not None:
        visitors.ends[reason] = visitors.ends.get(reason, 0) + 1
        if not turns and EndReason(reason) in GIVE_UPS:
            visitors.give_ups += 1
