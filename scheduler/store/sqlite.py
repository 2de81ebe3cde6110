"""The embedded database: one file, one writer, any number of readers in this process.

A lock file beside the database keeps a second scheduler out, also one on another machine that shares the
folder.
"""

import fcntl
import os
import socket
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from .database import LOCK_WAIT_SECONDS_MAX, READ_CONNECTIONS_MAX, READ_WAIT_SECONDS_MAX, GuardFailed
from .errors import StoreCorrupt, StoreError, StoreLocked, StoreMissing, StoreUnavailable
from .statements import Row, Statements, Step

WAL_BYTES_MAX = 64 * 1024 * 1024
"""What the write-ahead log is cut back to after it had to grow (a long read kept it from being reused)."""

# Trouble that may pass: the same commit is worth another try. Everything else says that the file, or this
# program's idea of it, is wrong.
_PASSING = {
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_INTERRUPT,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,
}


class SqliteDatabase:
    """A database file. One that is only read must be there, and stays as it is, byte for byte.

    One that is not `kept` may be a running scheduler's: it is read beside that. Errors of opening: StoreLocked,
    StoreUnavailable.
    """

    def __init__(self, path: Path, *, is_read_only: bool = False, is_kept: bool = True) -> None:
        self._path = path
        if is_read_only and not path.exists():
            raise StoreMissing(f"{path}: there is no such file")
        self._lock = lock_of(path) if is_kept else None
        try:
            # What jobs run is nobody else's business; the log and the index take over the file's mode.
            os.close(os.open(path, os.O_RDONLY if is_read_only else os.O_RDWR | os.O_CREAT, 0o600))
            self._file = _file_at(path)
        except OSError as error:
            self._let_go()
            raise StoreUnavailable(f"{path}: {error.strerror}") from error
        self.engine = _engine(path, _connect_to_read if is_read_only else _connect)
        self.statements = Statements(SQLiteDialect_pysqlite(paramstyle="qmark"))
        self._writer: sqlite3.Connection | None = None

    def write(self, guard: Row, steps: Sequence[Step]) -> None:
        try:
            # Otherwise commits would go on into a file that nobody will find again.
            if _file_at(self._path) != self._file:
                raise StoreUnavailable(
                    f"{self._path}: the file was moved or removed; put it back, or restart without it"
                )
            if self._writer is None:
                self._writer = _connect(self._path)
            writer = self._writer
            writer.execute("BEGIN IMMEDIATE")
            writer.execute(self.statements.guard, guard)
            for statement, rows in steps:
                writer.executemany(statement, rows)
            writer.execute("COMMIT")
        except Exception as error:
            # After a failed write only a new connection, which reads the log anew, knows what is in the file.
            self._hang_up()
            if isinstance(error, sqlite3.IntegrityError) and "meta.term" in str(error):
                raise GuardFailed from None
            if isinstance(error, sqlite3.Error):
                raise self.explain(error) from error
            raise

    def explain(self, error: Exception) -> StoreError:
        return explanation(self._path, error)

    def damage(self) -> list[str]:
        with self.engine.connect() as connection:
            answers = connection.exec_driver_sql("PRAGMA integrity_check").scalars().all()
        return [f"{self._path}: {answer}" for answer in answers if answer != "ok"]

    def close(self) -> None:
        self._hang_up()
        self.engine.dispose()
        self._let_go()

    def _let_go(self) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def _hang_up(self) -> None:
        if self._writer is not None:
            with suppress(sqlite3.Error):
                self._writer.close()
            self._writer = None


def explanation(path: Path, error: Exception) -> StoreError:
    """What the driver's error means for who uses the file."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in _PASSING:
        return StoreUnavailable(f"{path}: {error}")
    return StoreCorrupt(f"{path}: {error}")


def engine_to_fill(path: Path) -> Engine:
    """For a file that is thrown away unless all of it is written: nothing of it is durable, and nothing goes back."""
    return _engine(path, _connect_to_fill)


def _file_at(path: Path) -> tuple[int, int] | None:
    """What identifies the file at a path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _engine(path: Path, connect: Callable[[Path], sqlite3.Connection]) -> Engine:
    engine = create_engine(
        URL.create("sqlite", database=str(path)),
        creator=lambda: connect(path),
        pool_size=READ_CONNECTIONS_MAX,
        max_overflow=0,
        pool_timeout=READ_WAIT_SECONDS_MAX,
    )

    # The driver would begin transactions of its own, and none for DDL: a migration must be one.
    @event.listens_for(engine, "begin")
    def begin(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN")

    return engine


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=LOCK_WAIT_SECONDS_MAX, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA fullfsync=ON")
        connection.execute(f"PRAGMA journal_size_limit={WAL_BYTES_MAX}")
    except BaseException:
        connection.close()
        raise
    return connection


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection that reads the log, too, and moves nothing from it into the file."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=LOCK_WAIT_SECONDS_MAX,
        isolation_level=None,
        check_same_thread=False,
    )


def _connect_to_fill(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=OFF")
    connection.execute("PRAGMA synchronous=OFF")
    return connection


def lock_of(path: Path) -> int:
    """The open lock file; it is left behind on purpose, since removing a lock file lets two holders in.

    Errors: StoreLocked, StoreUnavailable.
    """
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreUnavailable(f"{lock_path}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(lock, 200).decode(errors="replace").strip() or "a scheduler that is just starting"
        os.close(lock)
        raise StoreLocked(f"{path} is in use by {holder}: stop that scheduler") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"pid {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
    return lock
