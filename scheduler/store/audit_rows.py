"""Rows of the audit: from calls to rows and back, and the questions that are asked for them."""

from typing import Any

from sqlalchemy import Row as StoredRow
from sqlalchemy import Select, func, select

from ..state.audited import AuditedCall, AuditQuery, AuditRow
from ..state.units import Instant
from .kinds import searchable
from .schema import audit
from .statements import AUDIT_COLUMNS, Row

_PLAIN = tuple(name for name in AUDIT_COLUMNS if name not in ("seq", "at_us", "is_refused"))


def audit_values(row: AuditRow) -> Row:
    """The values of a row, in the order of AUDIT_COLUMNS."""
    call = row.call
    plain = (getattr(call, name) for name in _PLAIN)
    told = (searchable(value) if isinstance(value, str) else value for value in plain)
    return (row.sequence, call.at, *told, call.is_refused)


def audit_row(found: StoredRow[Any]) -> AuditRow:
    """What a row says."""
    values = {name: getattr(found, name) for name in _PLAIN}
    return AuditRow(sequence=found.seq, call=AuditedCall(at=Instant(found.at_us), **values))


def newest_sequence_of_audit() -> Select[Any]:
    """The sequence of the newest row."""
    return select(func.max(audit.c.seq))


def first_since(since: Instant) -> Select[Any]:
    """The sequence of the first row that is of an instant or later; none where there is none."""
    return select(func.min(audit.c.seq)).where(audit.c.at_us >= since)


def audit_page(query: AuditQuery, first: int) -> Select[Any]:
    """A page of rows with a sequence of at least `first`, newest first."""
    found = select(audit).where(audit.c.seq >= max(first, query.after + 1))
    for column, wanted in ((audit.c.user, query.user), (audit.c.call, query.call), (audit.c.target, query.target)):
        if wanted:
            found = found.where(column == searchable(wanted))
    if query.job:
        found = found.where(audit.c.last_job > 0, audit.c.last_job >= query.job, audit.c.first_job <= query.job)
    if query.since is not None:
        found = found.where(audit.c.at_us >= query.since)
    if query.only_refused:
        found = found.where(audit.c.is_refused.is_(True))
    if query.before is not None:
        found = found.where(audit.c.seq < query.before)
    return found.order_by(audit.c.seq.desc()).limit(query.limit)


def audited_before(before: Instant, limit: int) -> Select[Any]:
    """Sequences of rows of before an instant, oldest first."""
    return select(audit.c.seq).where(audit.c.at_us < before).order_by(audit.c.at_us, audit.c.seq).limit(limit)


def audited_beyond(rows_max: int, limit: int, *, is_refused: bool) -> Select[Any]:
    """Sequences of the oldest of those that were refused, or of the others, where they are more than so many."""
    own = audit.c.is_refused.is_(is_refused)
    newest = select(audit.c.seq).where(own).order_by(audit.c.seq.desc()).offset(rows_max).limit(1).scalar_subquery()
    return select(audit.c.seq).where(own, audit.c.seq <= newest).order_by(audit.c.seq).limit(limit)
