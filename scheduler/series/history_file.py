"""The histories in their file: packed rows of points, and what was held. Methods block: a thread for writing and for
what was held, another one for reading points. What is not written is told once, and again when it goes on.
"""

import logging
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpufleet.telemetry.logs import fields

from ..state.ids import DeviceUuid, NodeName
from ..state.units import NEVER, Instant
from . import held
from .accounts import AccountedHold, UsageSpan
from .courses import LEVELS, StoredRow
from .file import ACCOUNTED, Accounted, CountedFile, squeezed, transaction, unsqueezed
from .points import BAND, DEVICE, Kind

log = logging.getLogger(__name__)

FILE = "history.db"
VERSION = 1
DELETED_MAX = 5_000
"""Rows that one call of prune() drops, so that what is to be written never waits long for it."""
BAND_NODE = NodeName("")
"""Courses of bands stand beside those of devices, of no node; the band's name is their UUID."""

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS course (
    id INTEGER PRIMARY KEY, node TEXT NOT NULL, uuid TEXT NOT NULL,
    device_index INTEGER NOT NULL, name TEXT NOT NULL, memory_bytes INTEGER NOT NULL, UNIQUE (node, uuid)
);
CREATE TABLE IF NOT EXISTS points (
    level INTEGER NOT NULL, course INTEGER NOT NULL, begin INTEGER NOT NULL, end INTEGER NOT NULL,
    entries BLOB NOT NULL, PRIMARY KEY (level, course, begin)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS points_by_end ON points (level, end);
{ACCOUNTED}
{held.CREATE}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseKey:
    """Whose course it is: a device of a node, or a band."""

    node: NodeName
    uuid: DeviceUuid


@dataclass(frozen=True, slots=True, kw_only=True)
class CourseFacts:
    """What is told of it beside its points."""

    key: CourseKey
    index: int
    name: str
    memory_bytes: int

    @property
    def kind(self) -> Kind:
        """Which counters it has."""
        return kind_of(self.key)


def kind_of(key: CourseKey) -> Kind:
    """Which counters a course has."""
    return BAND if key.node == BAND_NODE else DEVICE


class BegunAnew(Exception):
    """The file is not the one in which so much was counted: it was lost, or moved aside."""


class HistoryFile(CountedFile):
    """Points and holds."""

    def __init__(self, folder: Path, *, is_reader: bool = False) -> None:
        super().__init__(folder / FILE, SCHEMA, VERSION, is_reader=is_reader)
        self._ids: dict[CourseKey, tuple[int, CourseFacts]] = {}

    def _made(self, connection: sqlite3.Connection) -> None:
        super()._made(connection)
        held.bring_up_to_date(connection)

    def write_points(self, rows: Sequence[tuple[CourseFacts, StoredRow]]) -> None:
        """Make rows durable, or none of them."""
        connection = self._opened()
        put = "REPLACE INTO points VALUES (?, ?, ?, ?, ?)"
        self._do(connection, lambda: connection.executemany(put, map(self._stored, rows)))

    def write_holds(self, holds: Sequence[tuple[int, AccountedHold]], accounted: Accounted, after: int) -> None:
        """Make holds durable with the number of the record up to which they are counted, or nothing of it.

        Each comes with the number of its record; what is counted already is left out. Errors, beside the others:
        BegunAnew where less is counted than up to the record `after`.
        """
        connection = self._opened()
        known = self.accounted()
        if after > (0 if known is None else known.sequence):
            raise BegunAnew
        new = [hold for number, hold in holds if known is None or number > known.sequence]
        self._do(connection, lambda: held.add(connection, new), lambda: self._note(connection, known, accounted))

    def _stored(self, each: tuple[CourseFacts, StoredRow]) -> tuple[object, ...]:
        facts, row = each
        kind = facts.kind
        end = kind.end_of(row.entries, len(row.entries) // kind.entry_bytes - 1)
        return row.level, self._id(facts), row.begin, end, squeezed(row.entries, kind.entry_bytes)

    def _id(self, facts: CourseFacts) -> int:
        known = self._ids.get(facts.key)
        if known is not None and known[1] == facts:
            return known[0]
        connection = self._opened()
        (found,) = connection.execute(
            "INSERT INTO course (node, uuid, device_index, name, memory_bytes) VALUES (?, ?, ?, ?, ?) "
            "ON CONFLICT (node, uuid) DO UPDATE SET device_index = excluded.device_index, name = excluded.name, "
            "memory_bytes = excluded.memory_bytes RETURNING id",
            (facts.key.node, facts.key.uuid, facts.index, facts.name, facts.memory_bytes),
        ).fetchone()
        self._ids[facts.key] = (found, facts)
        return int(found)

    def forget_holds(self) -> None:
        """Drop all that was counted of holds."""
        self._forget("held")

    def usage(
        self, more: Iterable[AccountedHold], span: UsageSpan, group: str, user: str
    ) -> dict[str, held.UsageTotals]:
        """What was held in a span, with `more` that is not stored."""
        return held.read(self._opened(), more, span, group, user)

    def courses(self, node: NodeName, index: int | None) -> list[CourseFacts]:
        """The devices whose points may be stored: of a node, or of all."""
        query = "SELECT node, uuid, device_index, name, memory_bytes FROM course WHERE "
        query += "node = ?1" if node else "node != ?1"
        found = self._opened().execute(query + " AND (?2 IS NULL OR device_index = ?2)", (node, index)).fetchall()
        return [
            CourseFacts(key=CourseKey(node=NodeName(at), uuid=DeviceUuid(uuid)), index=of, name=name, memory_bytes=size)
            for at, uuid, of, name, size in found
        ]

    def entries(self, key: CourseKey, level: int, begin: int, end: int) -> bytes:
        """Stored entries of a course that touch a span of seconds, in order."""
        size = kind_of(key).entry_bytes
        rows = self._opened().execute(
            "SELECT entries FROM points WHERE level = ?1 AND course = "
            "(SELECT id FROM course WHERE node = ?2 AND uuid = ?3) AND begin < ?5 AND end > ?4 ORDER BY begin",
            (level, key.node, key.uuid, begin, end),
        )
        bytes_max = 10 * size * max(each.row_entries for each in LEVELS)
        return b"".join(unsqueezed(blob, size, bytes_max) for (blob,) in rows.fetchall())

    def prune(self, before: dict[int, int], held_before: Instant) -> int:
        """Drop points of each level that ended before a second, and holds before an instant; how many rows, at most
        DELETED_MAX of each: call again until it is 0."""
        connection = self._opened()
        dropped = 0
        for level, at in before.items():
            found = connection.execute(
                "SELECT course, begin FROM points WHERE level = ? AND end < ? LIMIT ?", (level, at, DELETED_MAX)
            ).fetchall()
            rows = [(level, course, begin) for course, begin in found]
            if rows:
                delete = "DELETE FROM points WHERE level = ? AND course = ? AND begin = ?"
                transaction(connection, [partial(connection.executemany, delete, rows)])
            dropped += len(rows)
        return dropped + self._prune_held(connection, held_before)

    def _prune_held(self, connection: sqlite3.Connection, before: Instant) -> int:
        (count,) = connection.execute("SELECT max(rowid) - min(rowid) FROM held").fetchone()
        excess = min(DELETED_MAX, max(0, (count or 0) - held.ROWS_MAX))
        found = connection.execute(
            "SELECT rowid, end_us FROM held WHERE end_us < ? ORDER BY end_us LIMIT ?",
            (NEVER, excess) if excess else (before, DELETED_MAX),
        ).fetchall()
        if not found:
            return 0
        known_since = found[-1][1]

        def drop() -> None:
            connection.executemany("DELETE FROM held WHERE rowid = ?", [(rowid,) for rowid, _ in found])
            connection.execute("UPDATE accounted SET known_since_us = max(known_since_us, ?)", (known_since,))

        transaction(connection, [drop])
        return len(found)

    def close(self) -> None:
        """Let go of the file."""
        super().close()
        self._ids.clear()


class TellsOnce:
    """Logs a trouble once, and once that it is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._has_failed = False

    def failed(self, why: str) -> None:
        """It does not work."""
        if not self._has_failed:
            self._has_failed = True
            log.warning("histories are not stored now", extra=fields(file=str(self._path), why=why))

    def worked(self) -> None:
        """It does."""
        if self._has_failed:
            self._has_failed = False
            log.info("histories are stored again", extra=fields(file=str(self._path)))
