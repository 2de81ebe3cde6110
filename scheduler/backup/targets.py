"""Where a store is restored to: a SQLite file that is made beside its place, or an empty PostgreSQL database.

Either way `fill` changes nothing that a start would find, and `put` makes all of it be there at once.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import sync_path

from ..state.access import Counters
from ..store.database import Database, explained
from ..store.errors import StoreError, read_as_stored
from ..store.filling import NotEmpty, must_be_empty
from ..store.opening import database_at, parse_url
from ..store.reading import Meta
from ..store.snapshot import open_snapshot
from ..store.sqlite import engine_to_fill, explanation, lock_of

OF_SQLITE = ("-wal", "-shm", "-journal", "")
"""Ends of the names of a database's files: its logs go before itself, or what is new would be read with the old log."""

Fill = Callable[[Connection], None]
"""Puts all there is into an empty database, and raises what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """A store that is there: the one of a scheduler, and how far it is."""

    meta: Meta
    counters: Counters


class Target(Protocol):
    """Where a store goes; nobody else has it meanwhile."""

    occupant: Occupant | None
    """What of a store can be read there."""

    is_occupied: bool
    """Whether anything is there, readable or not."""

    def must_take(self, content_bytes: int, *, replaces: bool) -> None:
        """Raise what keeps it from being filled. Errors: STORE_NOT_EMPTY, BACKUP_FAILED."""
        ...

    def fill(self, fill: Fill) -> None:
        """Get all of it ready. Errors: those of `fill`, StoreUnavailable."""
        ...

    def put(self, stamp: str) -> Path | None:
        """Let it be the store; what was there, where it was kept. Errors: StoreUnavailable, OSError."""
        ...


@contextmanager
def opened(url: str) -> Iterator[Target]:
    """Keep every scheduler out of the database at a URL.

    Errors: StoreLocked, StoreUnavailable, StoreUrlInvalid.
    """
    parsed = parse_url(url)
    with ExitStack() as stack:
        if parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:"):
            path = Path(str(parsed.database))
            stack.callback(os.close, lock_of(path))
            target = SqliteTarget(path, occupant_of(url))
            stack.callback(target.clear)
            yield target
        else:
            database = database_at(url)
            stack.callback(database.close)
            yield PostgresTarget(database, parsed.render_as_string(hide_password=True), occupant_of(url), stack)


def occupant_of(url: str) -> Occupant | None:
    """The store that is there, as far as it can be read: a damaged one may be why a backup is restored."""
    with suppress(StoreError), open_snapshot(url) as store:
        return Occupant(store.meta, store.counters())
    return None


class SqliteTarget:
    """A file in its folder."""

    def __init__(self, path: Path, occupant: Occupant | None) -> None:
        self._path = path
        self._new = path.with_name(f"{path.name}.restoring")
        self.occupant = occupant
        self.is_occupied = any(
            path.with_name(path.name + end).is_file() and path.with_name(path.name + end).stat().st_size > 0
            for end in OF_SQLITE
        )

    def must_take(self, content_bytes: int, *, replaces: bool) -> None:
        if self.is_occupied and not replaces:
            raise GpufleetError(
                Reason.STORE_NOT_EMPTY,
                f"there is a database at {self._path}",
                next_step="Give another folder with --data DIR, or say --replace: what is there is kept beside it.",
            )
        free = shutil.disk_usage(self._path.parent).free
        if content_bytes > free:
            raise GpufleetError(
                Reason.BACKUP_FAILED,
                f"the database takes some {content_bytes:,} bytes, and the disk of {self._path} has {free:,} free",
            )

    def fill(self, fill: Fill) -> None:
        self.clear()
        os.close(os.open(self._new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        engine = engine_to_fill(self._new)
        try:
            with engine.begin() as connection:
                fill(connection)
        except DBAPIError as error:
            cause = error.orig if isinstance(error.orig, Exception) else error
            raise explanation(self._new, cause) from error
        finally:
            engine.dispose()
        sync_path(self._new)

    def put(self, stamp: str) -> Path | None:
        kept = self._path.with_name(f"{self._path.name}.{stamp}")
        for end in OF_SQLITE:
            here, aside = self._path.with_name(self._path.name + end), kept.with_name(kept.name + end)
            if aside.exists():  # of a restore that was killed here; what is here since is an empty log, made by looking
                here.unlink(missing_ok=True)
            elif here.exists():
                here.rename(aside)
        sync_path(self._path.parent)
        self._new.rename(self._path)
        sync_path(self._path.parent)
        return kept if kept.exists() else None

    def clear(self) -> None:
        """Remove what is not the store yet."""
        for end in OF_SQLITE:
            self._new.with_name(self._new.name + end).unlink(missing_ok=True)


class PostgresTarget:
    """A database on a server: what is filled in is a transaction that `put` commits."""

    def __init__(self, database: Database, name: str, occupant: Occupant | None, stack: ExitStack) -> None:
        self._database = database
        self._name = name
        self._stack = stack
        self._connection: Connection | None = None
        self.occupant = occupant
        self._has = ""
        try:
            with read_as_stored(name), explained(database), database.engine.connect() as connection:
                must_be_empty(connection)
        except NotEmpty as there:
            self._has = str(there)
        self.is_occupied = bool(self._has)

    def must_take(self, content_bytes: int, *, replaces: bool) -> None:
        if self.is_occupied:
            raise GpufleetError(
                Reason.STORE_NOT_EMPTY,
                f"{self._name} holds a store (its table {self._has} has rows)",
                next_step="Give another database with --store URL, or empty this one first, which nothing brings back: "
                "psql URL -c 'DROP SCHEMA public CASCADE; CREATE SCHEMA public'",
            )

    def fill(self, fill: Fill) -> None:
        with read_as_stored(self._name), explained(self._database):
            connection = self._stack.enter_context(self._database.engine.connect())
            fill(connection)
        self._connection = connection

    def put(self, stamp: str) -> Path | None:
        assert self._connection is not None
        with explained(self._database):
            self._connection.commit()
        return None
