"""The file of the histories. Its methods block; each connection stays with the thread that it was made on.

A file of another version, or one that is broken, is moved aside with a warning: pictures are lost, and no job.
"""

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

from gpufleet.logs import fields

log = logging.getLogger(__name__)

LOCK_WAIT_SECONDS_MAX = 5.0
WAL_BYTES_MAX = 16 * 1024 * 1024
_NOT_THE_FILES_FAULT = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


def open_or_move_aside(path: Path, schema: str, version: int) -> sqlite3.Connection:
    """A connection to a file with these tables, made where there is none. Errors: sqlite3.Error, OSError.

    What cannot be read as such a file gets another name, and a new one is begun.
    """
    try:
        return _open(path, schema, version)
    except sqlite3.Error as error:
        if (error.sqlite_errorcode & 0xFF if hasattr(error, "sqlite_errorcode") else 0) in _NOT_THE_FILES_FAULT:
            raise
        why = str(error)
    aside = move_aside(path)
    log.warning("a file of histories was moved aside, and a new one is begun", extra=fields(to=str(aside), why=why))
    return _open(path, schema, version)


def move_aside(path: Path) -> Path:
    """Give a file another name, with what the database keeps beside it. Errors: OSError."""
    number = 1
    while (aside := path.with_name(f"{path.name}.broken-{number}")).exists():
        number += 1
    path.replace(aside)
    for suffix in ("-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()
    return aside


def _open(path: Path, schema: str, version: int) -> sqlite3.Connection:
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS_MAX, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_MAX}")
        (found,) = connection.execute("PRAGMA user_version").fetchone()
        has_tables = connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is not None
        if found != version and has_tables:
            raise sqlite3.DatabaseError(f"it is of version {found}, and this scheduler writes {version}")
        connection.executescript(schema)
        connection.execute(f"PRAGMA user_version = {version}")
    except BaseException:
        connection.close()
        raise
    return connection


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


def closing_quietly(connection: sqlite3.Connection | None) -> None:
    """Close, whatever state the file is in."""
    if connection is not None:
        with suppress(sqlite3.Error), closing(connection):
            connection.execute("PRAGMA optimize")
