"""Reads everything that is stored and says what is wrong with it, for `--verify` and for tests."""

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Row, Table, select

from ..state.access import Counters
from ..state.durable import Entity
from ..state.ids import JobId
from ..state.indexes.equal_jobs import EqualJobs
from ..state.jobs import Job, Tally
from . import reading, schema
from .codec import Codec
from .database import Database, explained
from .errors import StoreError, read_as_stored
from .kinds import ENTITY_CLASSES, entity_row, finished_row, record_row
from .retired import RETIRED

PROBLEMS_MAX = 100
"""After so many the rest is not looked for: the store is beyond mending row by row."""

JOB_KIND = next(kind for kind, cls in ENTITY_CLASSES.items() if cls is Job)
COUNTERS_KIND = next(kind for kind, cls in ENTITY_CLASSES.items() if cls is Counters)

T = TypeVar("T")


def problems(database: Database, codec: Codec) -> list[str]:
    """What is wrong, a sentence each: damage of the file, rows that cannot be read, rows that contradict each other."""
    found: list[str] = []
    try:
        with explained(database):
            found += database.damage()[:PROBLEMS_MAX]
        with read_as_stored("the tables"):
            for problem in contradictions(codec, reading.only_meta(database), partial(_whole, database)):
                found.append(problem)
                if len(found) >= PROBLEMS_MAX:
                    break
    except StoreError as error:
        found.append(str(error))
    return found


class Examined:
    """A store that was opened to be looked at, and is not changed."""

    def __init__(self, database: Database, codec: Codec) -> None:
        self._database = database
        self._codec = codec

    def problems(self) -> list[str]:
        """Everything that is wrong with what is stored, a sentence each; empty is well."""
        return problems(self._database, self._codec)

    def jobs(self) -> Iterator[Job]:
        """Every job that may have output, living and ended: equal ones have not begun.

        Errors: StoreCorrupt, StoreTooNew, StoreUnavailable.
        """
        living = select(schema.entity).where(schema.entity.c.kind == JOB_KIND).order_by(schema.entity.c.id)
        for row in reading.all_rows(self._database, living):
            job = reading.entity(self._codec, row)
            assert isinstance(job, Job)
            yield job
        for row in _whole(self._database, schema.finished_job):
            yield reading.finished_job(self._codec, row)

    def next_job(self) -> JobId:
        """The id that the next job would get. Errors: as jobs()."""
        found = list(
            reading.all_rows(self._database, select(schema.entity).where(schema.entity.c.kind == COUNTERS_KIND))
        )
        counters = reading.entity(self._codec, found[0]) if found else Counters()
        assert isinstance(counters, Counters)
        return JobId(counters.next_job)

    def newest(self) -> tuple[reading.Meta, list[reading.Began]]:
        """How far it has come, and the starts that it has seen. Errors: as jobs()."""
        return reading.only_meta(self._database), reading.starts(self._database)

    def close(self) -> None:
        """Give the lock back."""
        self._database.close()


def contradictions(codec: Codec, meta: reading.Meta, rows_of: Callable[[Table], Iterator[Row[Any]]]) -> Iterator[str]:
    """Rows of a whole store that cannot be read, or that contradict each other or its `meta`, a sentence each.

    `rows_of` a table are asked for once. Errors: those of reading them, and what `read_as_stored` makes StoreCorrupt.
    """
    live_jobs: set[int] = set()
    arrays = ArrayCheck()
    for row in rows_of(schema.entity):
        entity = yield from _readable(reading.entity, codec, row)
        if entity is None:
            continue
        if entity_row(codec, entity)[:3] != tuple(row)[:3]:
            yield f"entity {row.kind} {row.id}: its payload belongs to {entity_row(codec, entity)[:2]}"
        for job_id in _ids(entity):
            if job_id in live_jobs:
                yield f"job {job_id} is stored by itself and among its equals"
            live_jobs.add(job_id)
        arrays.look_at(entity)
    yield from arrays.problems()
    for row in rows_of(schema.finished_job):
        job = yield from _readable(reading.finished_job, codec, row)
        if job is None:
            continue
        if not job.is_finished:
            yield f"finished_job {row.id}: its payload has not ended"
        elif finished_row(codec, job)[:-1] != tuple(row)[:-1]:
            yield f"finished_job {row.id}: its columns differ from its payload"
        if row.id in live_jobs:
            yield f"job {row.id} is stored as living and as ended"
    newest = Newest()
    for row in rows_of(schema.record):
        newest.look_at(row)
        stored = yield from _readable(reading.record, codec, row)
        if stored is None or row.kind in RETIRED:
            continue
        if record_row(codec, row.seq, row.term, stored.record)[:-1] != tuple(row)[:-1]:
            yield f"record {row.seq}: its columns differ from its payload"
    yield from newest.problems(meta)


class ArrayCheck:
    """Whether each living array accounts for all of its items: those that live, and those that its tally counts."""

    def __init__(self) -> None:
        self._counts: dict[JobId, int] = {}
        self._known: dict[JobId, int] = {}

    def look_at(self, entity: Entity) -> None:
        """Count what an entity stands for."""
        match entity:
            case Job():
                if entity.items is not None:
                    self._counts[entity.id] = entity.items.indices.count
                self._add(entity.array, 1)
            case EqualJobs():
                self._add(entity.first.array, len(entity))
            case Tally():
                self._add(entity.array, entity.ended)
            case _:
                pass

    def problems(self) -> Iterator[str]:
        """A sentence for each array that does not."""
        for array in sorted(self._counts.keys() | self._known.keys()):
            count, known = self._counts.get(array), self._known.get(array, 0)
            if count is None:
                yield f"array {array} has items, and is not stored"
            elif count != known:
                yield f"array {array} has {count} items, and {known} are stored as living or counted as ended"

    def _add(self, array: JobId | None, count: int) -> None:
        if array is not None:
            self._known[array] = self._known.get(array, 0) + count


class Newest:
    """Whether records are newer than what the last commit says of itself."""

    def __init__(self) -> None:
        self._sequence = self._term = self._at_us = 0

    def look_at(self, row: Row[Any]) -> None:
        """Take up a record."""
        self._sequence, self._term = max(self._sequence, row.seq), max(self._term, row.term)
        self._at_us = max(self._at_us, row.at_us)

    def problems(self, meta: reading.Meta) -> Iterator[str]:
        """A sentence for each number that is beyond that of the last commit."""
        of_last = (("sequence", self._sequence, meta.record_seq), ("term", self._term, meta.term))
        for name, value, limit in (*of_last, ("instant", self._at_us, meta.newest_us)):
            if value > limit:
                yield f"record: the newest {name} is {value}, beyond that of the last commit, {limit}"


def _ids(entity: Entity) -> Iterator[JobId]:
    """The jobs that an entity stands for."""
    match entity:
        case Job():
            yield entity.id
        case EqualJobs():
            yield from entity.ids()
        case _:
            pass


def _whole(database: Database, table: Table) -> Iterator[Row[Any]]:
    return reading.all_rows(database, select(table).order_by(*table.primary_key.columns))


def _readable(read: Callable[[Codec, Row[Any]], T], codec: Codec, row: Row[Any]) -> Generator[str, None, T | None]:
    """The value of a row, or None after yielding why it has none."""
    try:
        return read(codec, row)
    except StoreError as error:
        yield str(error)
        return None
