"""From rows to values. A row that cannot be read is named by its table and key."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, Select, select

from ..ports import StoredRecord
from ..state.durable import Entity
from ..state.jobs import Job
from ..state.records import Record
from ..state.units import Instant
from . import schema
from .codec import Codec, PayloadTooNew
from .database import Database, explained
from .decoding import DecodeError
from .errors import StoreCorrupt, StoreTooNew, read_as_stored
from .kinds import ENTITY_CLASSES, RECORD_CLASSES
from .retired import RETIRED

ROWS_AT_ONCE = 1_000
"""How many rows of a whole table are in memory at once."""


@dataclass(frozen=True, slots=True)
class Meta:
    """The one row of `meta`."""

    format: int
    term: int
    commit_number: int
    record_seq: int
    newest_us: int
    store_id: str


@dataclass(frozen=True, slots=True)
class Began:
    """A start of a scheduler on the store: `begin_sequence` is that of the newest record that it found."""

    term: int
    lineage: str
    begin_sequence: int


def rows(database: Database, query: Select[Any]) -> list[Row[Any]]:
    """The rows that a bounded query finds. Errors: StoreUnavailable, StoreCorrupt."""
    with explained(database), database.engine.connect() as connection:
        return list(connection.execute(query).all())


def all_rows(database: Database, query: Select[Any]) -> Iterator[Row[Any]]:
    """The rows of a whole table as one snapshot, a few at a time. Errors: StoreUnavailable, StoreCorrupt."""
    with (
        explained(database),
        database.engine.connect() as connection,
        connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query) as found,
    ):
        yield from found


def entities(database: Database, codec: Codec) -> Iterator[Entity]:
    """Every live entity, by kind and id. Errors: those of a row, and of the database."""
    for row in all_rows(database, select(schema.entity).order_by(schema.entity.c.kind, schema.entity.c.id)):
        yield entity(codec, row)


def entity(codec: Codec, row: Row[Any]) -> Entity:
    """The value of a row of `entity`. Errors: StoreCorrupt, StoreTooNew."""
    value: Entity = _decoded(codec, ENTITY_CLASSES.get(row.kind), row, f"entity {row.kind} {row.id}")
    return value


def record(codec: Codec, row: Row[Any]) -> StoredRecord:
    """The value of a row of `record`. Errors: StoreCorrupt, StoreTooNew."""
    value: Record
    name = f"record {row.seq} {row.kind}"
    if row.kind in RETIRED:
        cls, read_as = RETIRED[row.kind]
        value = read_as(_decoded(codec, cls, row, name))
    else:
        value = _decoded(codec, RECORD_CLASSES.get(row.kind), row, name)
    return StoredRecord(sequence=row.seq, at=Instant(row.at_us), record=value)


def finished_job(codec: Codec, row: Row[Any]) -> Job:
    """The value of a row of `finished_job`. Errors: StoreCorrupt, StoreTooNew."""
    value: Job = _decoded(codec, Job, row, f"finished_job {row.id}")
    return value


def only_meta(database: Database) -> Meta:
    """The one row of `meta`. Errors: StoreCorrupt, StoreUnavailable."""
    found = rows(database, _META)
    if len(found) != 1:
        raise StoreCorrupt(f"meta: {len(found)} rows instead of one")
    numbers, store_id = found[0][:-1], found[0][-1]
    if not all(type(number) is int for number in numbers) or type(store_id) is not str:
        raise StoreCorrupt(f"meta: {tuple(found[0])} is nothing that was ever stored")
    return Meta(*found[0])


def starts(database: Database) -> list[Began]:
    """The starts that the store has seen since there are lineages, oldest first; see STARTS_KEPT."""
    return [Began(*row) for row in rows(database, _STARTS)]


def reached(newest_sequence: int, starts: Sequence[Began], lineage: str) -> int | None:
    """The newest record of a store at the end of the start of a lineage; None where it knows no such start."""
    ends = [*(each.begin_sequence for each in starts[1:]), newest_sequence]
    return next((end for began, end in zip(starts, ends, strict=False) if began.lineage == lineage), None)


def meta_of(connection: Connection) -> Meta | None:
    """What a store says of itself within a transaction; None where there is none yet."""
    found = connection.execute(_META).first()
    return None if found is None else Meta(*found)


def starts_of(connection: Connection) -> list[Began]:
    """The same starts within a transaction."""
    return [Began(*row) for row in connection.execute(_STARTS)]


_meta = schema.meta.c
_META = select(_meta.format, _meta.term, _meta.commit_number, _meta.record_seq, _meta.newest_us, _meta.store_id)

_lineage = schema.lineage.c
_STARTS = select(_lineage.term, _lineage.lineage, _lineage.begin_seq).order_by(_lineage.term)


def _decoded(codec: Codec, cls: type[Any] | None, row: Row[Any], name: str) -> Any:
    if cls is None:
        raise StoreCorrupt(f"{name}: no class is stored under this kind")
    try:
        with read_as_stored(name):
            return codec.decode(cls, row.payload)
    except DecodeError as error:
        raise StoreCorrupt(f"{name}: {error}") from error
    except PayloadTooNew as error:
        raise StoreTooNew(f"{name}: {error}") from error
