"""Opens the store that a URL names: lock, migrations, and a new term."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, Connection, insert, make_url, select, update
from sqlalchemy.exc import ArgumentError

from . import reading
from .codec import FORMAT, Codec
from .database import Database, explained
from .errors import StoreTooNew, StoreUrlInvalid
from .migrations import UnknownRevision, upgrade
from .schema import meta
from .sqlite import SqliteDatabase
from .store import SqlStore

EXAMPLES = "write sqlite:////path/to/scheduler.db or postgresql://user@host/database"


def open_store(url: str) -> SqlStore:
    """The store at sqlite:///FILE or postgresql://…, made where there is none, with a term above every earlier one.

    Errors: StoreUrlInvalid, StoreLocked, StoreTooNew, StoreCorrupt, StoreUnavailable.
    """
    database = _database(url)
    try:
        with explained(database), database.engine.begin() as connection:
            upgrade(connection)
            _claim_term(connection)
        return SqlStore(database, Codec(), reading.only_meta(database))
    except UnknownRevision as error:
        database.close()
        raise StoreTooNew(f"a newer version of this program made the store's tables: {error}") from error
    except BaseException:
        database.close()
        raise


def _database(url: str) -> Database:
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise StoreUrlInvalid(f"{url!r} names no file, and what is not in a file is lost: {EXAMPLES}")
        return SqliteDatabase(Path(parsed.database))
    try:
        from .postgres import PostgresDatabase
    except ImportError as error:
        raise StoreUrlInvalid(f"PostgreSQL needs psycopg ({error}): pip install 'gpufleet[postgres]'") from error
    return PostgresDatabase(parsed)


def parse_url(url: str) -> URL:
    """A store's URL in its parts. Errors: StoreUrlInvalid."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreUrlInvalid(f"{url!r} is not a URL: {EXAMPLES}") from None
    if parsed.drivername == "postgres":
        parsed = parsed.set(drivername="postgresql")
    if parsed.get_backend_name() not in ("sqlite", "postgresql"):
        raise StoreUrlInvalid(f"{parsed.get_backend_name()!r} is no database that the store can be in: {EXAMPLES}")
    return parsed


def _claim_term(connection: Connection) -> None:
    stored = connection.execute(select(meta.c.format)).scalar()
    if stored is None:
        first = {"id": 1, "format": FORMAT, "term": 1, "commit_number": 0, "record_seq": 0, "newest_us": 0}
        connection.execute(insert(meta).values(first))
    elif stored > FORMAT:
        raise StoreTooNew(f"the store is of format {stored} and this program knows {FORMAT}: run a newer version")
    else:
        connection.execute(update(meta).values(format=FORMAT, term=meta.c.term + 1, commit_number=0))
