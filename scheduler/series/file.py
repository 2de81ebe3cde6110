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
        if not is_broken(error):
            raise
        why = str(error)
    tell_moved(move_aside(path), why)
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


def is_broken(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is, and trying again later does not help."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _BROKEN


def tell_moved(aside: Path, why: str) -> None:
    """Warn of a file that was moved aside."""
    log.warning("a file of histories was moved aside, and a new one is begun", extra=fields(to=str(aside), why=why))


def identity(path: Path) -> tuple[int, int] | None:
    """What tells the file at a path from another one; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


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


def closing_quietly(connection: sqlite3.Connection | None) -> None:
    """Close, whatever state the file is in."""
    if connection is not None:
        with suppress(sqlite3.Error), closing(connection):
            connection.execute("PRAGMA optimize")
