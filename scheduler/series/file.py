"""Files of histories. Their methods block; each connection stays with the thread that it was made on.

A file of another version, or one that is broken, is moved aside with a warning: pictures are lost, and no job.
"""

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpufleet.telemetry.logs import fields

from ..ports import RecordStore
from ..state.units import Instant

log = logging.getLogger(__name__)

LOCK_WAIT_SECONDS_MAX = 5.0
WAL_BYTES_MAX = 16 * 1024 * 1024
_BROKEN = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


def open_or_move_aside(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """A connection to a file with these tables, made where there is none. Errors: sqlite3.Error, OSError.

    What is broken, or of another version, gets another name, and a new file is begun.
    """
    try:
        return _open(path, schema, version)
    except OtherVersion as error:
        why = str(error)
    except sqlite3.DatabaseError as error:
        if not _is_broken(error):
            raise
        why = str(error)
    _move_aside(path, why)
    return _open(path, schema, version)


def open_to_read(path: Path, version: int) -> sqlite3.Connection:
    """A connection to a file that is there. Errors: sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    connection = sqlite3.connect(uri, uri=True, timeout=LOCK_WAIT_SECONDS_MAX, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only = ON")
        _check_version(connection, version)
    except BaseException:
        connection.close()
        raise
    return connection


class OtherVersion(sqlite3.DatabaseError):
    """The file is of another version."""


def _is_broken(error: BaseException) -> bool:
    """Whether the file itself is, and trying again later does not help."""
    return isinstance(error, sqlite3.DatabaseError) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at a path from another one; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _move_aside(path: Path, why: str) -> None:
    """Give a file another name, with what the database keeps beside it, and warn of that. Errors: OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
    log.warning("a file of histories was moved aside, and a new one is begun", extra=fields(to=str(aside), why=why))


def _open(path: Path, schema: str, version: int) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS_MAX, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None:
            _check_version(connection, version)
        connection.executescript(schema)
        connection.execute(f"PRAGMA user_version = {version}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, version: int) -> None:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    if found != version:
        raise OtherVersion(f"it is of version {found}, and this scheduler writes {version}")


def transaction(connection: sqlite3.Connection, steps: Iterable[Callable[[], object]]) -> None:
    """Do all of it or nothing. Errors: sqlite3.Error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps:
            step()
    except BaseException:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def squeezed(entries: bytes, size: int) -> bytes:
    """Entries of `size` bytes as they are stored: byte by byte across all of them, where hardly anything changes."""
    return zlib.compress(b"".join(entries[at::size] for at in range(size)), 6)


def unsqueezed(blob: bytes, size: int, bytes_max: int) -> bytes:
    """The entries of a stored row; empty when it is broken."""
    try:
        planes = zlib.decompressobj().decompress(blob, bytes_max)
    except zlib.error:
        return b""
    count = len(planes) // size
    entries = bytearray(count * size)
    for at in range(size):
        entries[at::size] = planes[at * count : (at + 1) * count]
    return bytes(entries)


@dataclass(frozen=True, slots=True)
class Accounted:
    """Up to which record of the store a file counts, as the start of a lineage has counted it, and since when all is
    counted. The lineage is empty in a file of before it was noted."""

    sequence: int
    known_since: Instant
    lineage: str

    def is_of(self, store: RecordStore) -> bool:
        """Whether the store has the records that are counted: a copy that was put back gives their numbers again."""
        if not self.lineage:
            return self.sequence <= store.newest_sequence()
        reached = store.reached(self.lineage)
        return reached is not None and self.sequence <= reached


class SeriesFile:
    """A file of histories, with the one connection of its one writer or of a reader.

    A writer makes the file, and moves aside one that is broken or of another version; a reader does neither. Errors of
    all methods: sqlite3.Error, OSError.
    """

    def __init__(self, path: Path, schema: str, version: int, *, is_reader: bool = False) -> None:
        self.path = path
        self._schema = schema
        self._version = version
        self._is_reader = is_reader
        self._identity: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None

    def _do(self, connection: sqlite3.Connection, *steps: Callable[[], object]) -> None:
        """Do all of it or nothing."""
        try:
            transaction(connection, steps)
        except BaseException as error:
            self.close()
            if _is_broken(error):
                _move_aside(self.path, str(error))
            raise

    def close(self) -> None:
        """Let go of the file, whatever state it is in."""
        if self._connection is not None:
            with suppress(sqlite3.Error), closing(self._connection):
                self._connection.execute("PRAGMA optimize")
        self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and _identity(self.path) != self._identity:
            self.close()  # it was moved or removed: nobody would find again what goes on in it
        if self._connection is None:
            if self._is_reader:
                self._connection = open_to_read(self.path, self._version)
            else:
                self._connection = open_or_move_aside(self.path, self._schema, self._version)
                self._made(self._connection)
            self._identity = _identity(self.path)
        return self._connection

    def _made(self, connection: sqlite3.Connection) -> None:
        """Bring the tables of a file that a writer has opened up to date."""


ACCOUNTED = """
CREATE TABLE IF NOT EXISTS accounted (
    id INTEGER PRIMARY KEY CHECK (id = 1), sequence INTEGER NOT NULL, known_since_us INTEGER NOT NULL,
    lineage TEXT NOT NULL DEFAULT ''
);
"""
"""What a CountedFile has beside its own tables."""
ADD_LINEAGE = "ALTER TABLE accounted ADD COLUMN lineage TEXT NOT NULL DEFAULT ''"
"""For files of before they noted one."""


class CountedFile(SeriesFile):
    """A file with what follows from the store's records, and in the same transactions up to which of them it does."""

    def accounted(self) -> Accounted | None:
        """Up to where records are counted; None in a new file."""
        row = self._opened().execute("SELECT sequence, known_since_us, lineage FROM accounted").fetchone()
        return None if row is None else Accounted(row[0], Instant(row[1]), row[2])

    def _made(self, connection: sqlite3.Connection) -> None:
        columns = connection.execute("PRAGMA table_info(accounted)").fetchall()
        if not any(name == "lineage" for _, name, *_ in columns):
            connection.execute(ADD_LINEAGE)

    def _note(self, connection: sqlite3.Connection, known: Accounted | None, newest: Accounted) -> None:
        """Note that all up to the newer of two is counted, in a transaction."""
        position = newest
        if known is not None:
            sequence, since = max(newest.sequence, known.sequence), max(newest.known_since, known.known_since)
            position = Accounted(sequence, since, newest.lineage)
        put = "REPLACE INTO accounted (id, sequence, known_since_us, lineage) VALUES (1, ?, ?, ?)"
        connection.execute(put, (position.sequence, position.known_since, position.lineage))

    def _forget(self, table: str) -> None:
        """Drop all that was counted: it is to be counted anew."""
        connection = self._opened()
        self._do(connection, *(partial(connection.execute, f"DELETE FROM {each}") for each in (table, "accounted")))
