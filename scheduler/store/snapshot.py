"""Reads a store of one moment, beside a scheduler that goes on committing to it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection, Row, Table, select

from ..state.access import Counters
from . import reading, schema
from .codec import Codec
from .database import Database, explained
from .errors import StoreUnavailable, read_as_stored
from .kinds import ENTITY_CLASSES
from .migrations import revision_of
from .opening import check_revision, database_at, parse_url
from .reading import ROWS_AT_ONCE

TABLES = (schema.meta, schema.lineage, schema.entity, schema.finished_job, schema.record, schema.audit)
"""What a store is made of, whatever database it is in; what jobs printed is not among them."""

TABLE_SINCE = {"audit": "0007"}
"""Tables that stores of before a revision do not have."""

COUNTERS_KIND = next(kind for kind, cls in ENTITY_CLASSES.items() if cls is Counters)


class Snapshot:
    """One moment of a store. Errors of all methods: StoreCorrupt, StoreTooNew, StoreUnavailable."""

    def __init__(self, database: Database, connection: Connection, name: str) -> None:
        self._database = database
        self._connection = connection
        self._name = name
        self.kind = database.engine.dialect.name
        """ "sqlite" or "postgresql"."""
        with read_as_stored(name), explained(database):
            revision = revision_of(connection)
            check_revision(name, revision)
            assert revision is not None
            found = reading.meta_of(connection)
            if found is None:
                raise StoreUnavailable(f"{name}: no scheduler has ever started on this database")
            self.revision, self.meta, self.starts = revision, found, reading.starts_of(connection)

    def rows(self, table: Table) -> Iterator[Row[Any]]:
        """The rows of a table, by its key, a few at a time."""
        with read_as_stored(f"{self._name}: {table.name}"), explained(self._database):
            yield from rows_of(self._connection, table)

    def counters(self) -> Counters:
        """The numbers that come next."""
        with read_as_stored(self._name), explained(self._database):
            return counters_of(self._connection)


def rows_of(connection: Connection, table: Table) -> Iterator[Row[Any]]:
    """The rows of a table within a transaction, by its key, a few at a time."""
    query = select(table).order_by(*table.primary_key.columns)
    with connection.execute(query, execution_options={"yield_per": ROWS_AT_ONCE}) as found:
        yield from found


def counters_of(connection: Connection) -> Counters:
    """The numbers that come next, within a transaction. Errors: StoreCorrupt, StoreTooNew."""
    found = connection.execute(select(schema.entity).where(schema.entity.c.kind == COUNTERS_KIND)).first()
    counters = reading.entity(Codec(), found) if found is not None else Counters()
    assert isinstance(counters, Counters)
    return counters


@contextmanager
def open_snapshot(url: str) -> Iterator[Snapshot]:
    """The store at a URL as it is now. Nothing is locked and nothing of it is changed.

    SQLite keeps its log as long as this is read, PostgreSQL the rows that are replaced meanwhile.
    Errors: StoreUrlInvalid, StoreTooNew, StoreTooOld, StoreCorrupt, StoreUnavailable (there is none, too).
    """
    with closing(database_at(url, is_read_only=True, is_kept=False)) as database:
        name = parse_url(url).render_as_string(hide_password=True)
        with explained(database):
            connection = database.engine.connect()
        with connection:
            if database.engine.dialect.name == "postgresql":
                connection = connection.execution_options(isolation_level="REPEATABLE READ")
            yield Snapshot(database, connection, name)
