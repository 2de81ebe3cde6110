"""The few statements a commit is made of, compiled once per dialect to the text its driver takes.

A commit is a handful of rows and one fsync; going through SQLAlchemy's execution for each statement would
cost more than the fsync does, so only its compiler is used here and the driver runs the text.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from sqlalchemy import Dialect, bindparam, case, delete, insert, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import UpdateBase

from .schema import audit, entity, finished_job, meta, record

Row: TypeAlias = tuple[Any, ...]
Step: TypeAlias = tuple[str, Sequence[Row]]
"""A statement and the rows to run it with."""

AUDIT_COLUMNS = tuple(column.name for column in audit.columns)


class Statements:
    """The statements of one dialect, their parameters in the order in which the columns are written here."""

    def __init__(self, dialect: Dialect) -> None:
        assert dialect.positional, f"{dialect.name}: the rows are tuples, so parameters must go by position"
        self._dialect = dialect
        # A commit that is not the next one of the current term must change nothing. Where it is not, the guard puts
        # NULL into a column that takes none: the transaction fails as a whole, without a round trip to look.
        is_next = (meta.c.term == bindparam("its_term")) & (meta.c.commit_number == bindparam("last_number"))
        self.guard = self._text(
            update(meta).values(
                term=case((is_next, meta.c.term)),
                commit_number=bindparam("number"),
                record_seq=bindparam("seq"),
                newest_us=bindparam("newest"),
            ),
            "its_term last_number number seq newest",
        )
        self.add_record = self._text(insert(record), "seq term at_us job_id kind payload")
        self.put_entity = self._text(_upsert_entity(dialect), "kind id version payload")
        self.delete_entity = self._text(
            delete(entity).where(entity.c.kind == bindparam("a"), entity.c.id == bindparam("b")), "a b"
        )
        self.add_finished_job = self._text(
            insert(finished_job), "id user name outcome submit_us end_us payload array_id last_item"
        )
        self.delete_record = self._text(delete(record).where(record.c.seq == bindparam("a")), "a")
        self.delete_records_of_job = self._text(delete(record).where(record.c.job_id == bindparam("a")), "a")
        # Rows whose writing was answered by silence are written again: those that are there stay as they are.
        added = (postgresql if dialect.name == "postgresql" else sqlite).insert(audit)
        self.add_audit = self._text(added.on_conflict_do_nothing(), " ".join(AUDIT_COLUMNS))
        self.delete_audit = self._text(delete(audit).where(audit.c.seq == bindparam("a")), "a")
        self.delete_finished_job = self._text(delete(finished_job).where(finished_job.c.id == bindparam("a")), "a")

    def _text(self, statement: UpdateBase, parameters: str) -> str:
        compiled = statement.compile(dialect=self._dialect)
        assert compiled.positiontup == parameters.split(), compiled.positiontup
        return str(compiled)


def _upsert_entity(dialect: Dialect) -> UpdateBase:
    written = (postgresql if dialect.name == "postgresql" else sqlite).insert(entity)
    upsert: UpdateBase = written.on_conflict_do_update(
        index_elements=[entity.c.kind, entity.c.id],
        set_={"version": written.excluded.version, "payload": written.excluded.payload},
    )
    return upsert
