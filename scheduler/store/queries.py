"""The questions that are asked of the store beside loading it; each is answered by an index."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, literal, select, tuple_

from ..ports import FinishedQuery
from ..state.ids import JobId
from ..state.records import JobQueued
from ..state.units import Instant
from . import schema
from .kinds import searchable
from .schema import record


def finished_job(job: JobId) -> Select[Any]:
    """One job that has ended."""
    return select(schema.finished_job).where(schema.finished_job.c.id == job)


def finished_jobs(query: FinishedQuery) -> Select[Any]:
    """A page of jobs that have ended, newest end first."""
    table = schema.finished_job.c
    statement = select(schema.finished_job).order_by(table.end_us.desc(), table.id.desc()).limit(query.limit)
    if query.user is not None:
        statement = statement.where(table.user == searchable(query.user))
    if query.name is not None:
        statement = statement.where(table.name == searchable(query.name))
    if query.outcomes:
        statement = statement.where(table.outcome.in_([outcome.name for outcome in query.outcomes]))
    if query.before is not None:
        end, id_ = query.before
        statement = statement.where(tuple_(table.end_us, table.id) < tuple_(literal(end), literal(id_)))
    return statement


def story(job: JobId, after: int, limit: int, told_with: JobId | None) -> Select[Any]:
    """A job's records with a sequence above `after`, oldest first; it shares its first with its equals."""
    mine = record.c.job_id == job
    if told_with is not None:
        mine |= (record.c.job_id == told_with) & (record.c.kind == JobQueued.__name__)
    return select(record).where(mine & (record.c.seq > after)).order_by(record.c.seq).limit(limit)


def newest_records(kind: str, before: int | None, limit: int) -> Select[Any]:
    """Records of one class with a sequence below `before`, newest first."""
    statement = select(record).where(record.c.kind == kind).order_by(record.c.seq.desc()).limit(limit)
    return statement if before is None else statement.where(record.c.seq < before)


def jobs_ended_before(before: Instant, limit: int) -> Select[Any]:
    """Ids of finished jobs that ended before an instant, oldest first."""
    table = schema.finished_job.c
    return select(table.id).where(table.end_us < before).order_by(table.end_us, table.id).limit(limit)


def oldest_records_without_job(limit: int) -> Select[Any]:
    """Sequence and instant of records that are of no job; instants rise with the sequence."""
    return select(record.c.seq, record.c.at_us).where(record.c.job_id.is_(None)).order_by(record.c.seq).limit(limit)
