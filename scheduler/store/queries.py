"""The questions that are asked of the store beside loading it; each is answered by an index."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Select, literal, select, tuple_

from ..ports import EndedQuery, FinishedQuery
from ..state.ids import JobId
from ..state.records import SHARED_KINDS, JobQueued
from ..state.specs import Outcome
from ..state.units import Instant
from . import schema
from .kinds import searchable
from .schema import record


def finished_job(job: JobId) -> Select[Any]:
    """One job that has ended."""
    return select(schema.finished_job).where(schema.finished_job.c.id == job)


def array_with(item: JobId) -> Select[Any]:
    """The array that has ended whose items include this id, if there is one."""
    table = schema.finished_job.c
    nearest = select(schema.finished_job).where(table.last_item >= item).order_by(table.last_item).limit(1).subquery()
    return select(nearest).where(nearest.c.id < item)


def finished_items(array: JobId, first: JobId, last: JobId) -> Select[Any]:
    """The items of an array with ids from first to last that have ended each by itself, by id."""
    table = schema.finished_job.c
    wanted = table.id.between(first, last) & (table.array_id == array)
    return select(schema.finished_job).where(wanted).order_by(table.id)


def failed_items(array: JobId, last: JobId) -> Select[Any]:
    """The ids of an array's items, the last of which is given, that have failed each by itself."""
    table = schema.finished_job.c
    failed = table.outcome.in_([Outcome.FAILED.name, Outcome.TIMED_OUT.name])
    wanted = table.id.between(array + 1, last) & (table.array_id == array) & failed
    return select(table.id).where(wanted).order_by(table.id)


def finished_jobs(query: FinishedQuery) -> Select[Any]:
    """A page of jobs that have ended, newest end first; arrays, and no items."""
    return _page(select(schema.finished_job).where(schema.finished_job.c.array_id.is_(None)), query)


def ended_jobs(query: EndedQuery) -> Select[Any]:
    """A page of what has ended, newest end first: found in the history's index, and only its rows are read."""
    table = schema.finished_job.c
    found = select(table.id)
    if not query.has_items:
        found = found.where(table.array_id.is_(None))
    if query.since is not None:
        found = found.where(table.end_us >= query.since)
    if query.until is not None:
        found = found.where(table.end_us < query.until)
    if query.node is not None:
        # Where a job was stands in its payload. What the name only happens to occur in is sorted out by who asks.
        found = found.where(table.payload.contains(f'"{query.node}"', autoescape=True))
    page = _page(found, query).subquery()
    wanted = select(schema.finished_job).join(page, page.c.id == table.id)
    return wanted.order_by(table.end_us.desc(), table.id.desc())


def _page(statement: Select[Any], query: FinishedQuery) -> Select[Any]:
    """What of it is of this user, name and outcomes, from where the page before ended, newest end first."""
    table = schema.finished_job.c
    if query.user is not None:
        statement = statement.where(table.user == searchable(query.user))
    if query.name is not None:
        statement = statement.where(table.name == searchable(query.name))
    if query.outcomes:
        statement = statement.where(table.outcome.in_([outcome.name for outcome in query.outcomes]))
    if query.before is not None:
        end, id_ = query.before
        statement = statement.where(tuple_(table.end_us, table.id) < tuple_(literal(end), literal(id_)))
    return statement.order_by(table.end_us.desc(), table.id.desc()).limit(query.limit)


def story(job: JobId, after: int, limit: int, told_with: JobId | None, kinds: Sequence[str] = ()) -> Select[Any]:
    """A job's records with a sequence above `after`, oldest first; with `kinds` only those of these classes.

    It shares its first with its equals, and an item with its array (whose id is lower) also what befell all items.
    """
    mine = record.c.job_id == job
    if told_with is not None:
        shared = SHARED_KINDS if told_with < job else (JobQueued,)
        mine |= (record.c.job_id == told_with) & record.c.kind.in_([kind.__name__ for kind in shared])
    if kinds:
        mine &= record.c.kind.in_(kinds)
    return select(record).where(mine & (record.c.seq > after)).order_by(record.c.seq).limit(limit)


def newest_records(kind: str, before: int | None, limit: int) -> Select[Any]:
    """Records of one class with a sequence below `before`, newest first."""
    statement = select(record).where(record.c.kind == kind).order_by(record.c.seq.desc()).limit(limit)
    return statement if before is None else statement.where(record.c.seq < before)


def next_records(kind: str, after: int, limit: int) -> Select[Any]:
    """Records of one class with a sequence above `after`, oldest first."""
    return select(record).where((record.c.kind == kind) & (record.c.seq > after)).order_by(record.c.seq).limit(limit)


def jobs_ended_before(before: Instant, limit: int) -> Select[Any]:
    """Ids of finished jobs that ended before an instant, oldest first."""
    table = schema.finished_job.c
    return select(table.id).where(table.end_us < before).order_by(table.end_us, table.id).limit(limit)


def oldest_records_without_job(limit: int) -> Select[Any]:
    """Sequence and instant of records that are of no job; instants rise with the sequence."""
    return select(record.c.seq, record.c.at_us).where(record.c.job_id.is_(None)).order_by(record.c.seq).limit(limit)
