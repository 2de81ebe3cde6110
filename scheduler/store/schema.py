"""The tables, as the newest migration leaves them (a test compares the two).

`record` is the story, `entity` what lives now, `finished_job` what ended, `meta` the one row that every
commit asserts. `output_chunk` and `output_time` exist on PostgreSQL only: the output store of a scheduler without a
data folder.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    func,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite counts rows of its own in a column of exactly this type; elsewhere an integer may be too short.
_long = BigInteger().with_variant(Integer, "sqlite")

meta = Table(
    "meta",
    metadata,
    Column("id", Integer, CheckConstraint("id = 1", name="one_row"), primary_key=True, autoincrement=False),
    Column("format", Integer, nullable=False),
    Column("term", _long, nullable=False),
    Column("commit_number", _long, nullable=False),
    Column("record_seq", _long, nullable=False),
    Column("newest_us", _long, nullable=False),
)

record = Table(
    "record",
    metadata,
    Column("seq", _long, primary_key=True, autoincrement=False),
    Column("term", _long, nullable=False),
    Column("at_us", _long, nullable=False),
    Column("job_id", _long, nullable=True),
    Column("kind", Text, nullable=False),
    Column("payload", Text, nullable=False),
    Index(None, "job_id", "seq"),
    Index(None, "kind", "seq"),
)

entity = Table(
    "entity",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    # How often it changed, where the entity counts that itself; 0 otherwise.
    Column("version", _long, nullable=False),
    Column("payload", Text, nullable=False),
    sqlite_with_rowid=False,
)

finished_job = Table(
    "finished_job",
    metadata,
    Column("id", _long, primary_key=True, autoincrement=False),
    Column("user", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("submit_us", _long, nullable=False),
    Column("end_us", _long, nullable=False),
    Column("payload", Text, nullable=False),
    # Of an item: its array. Of an array: the id of its last item, by which it is found from any of them.
    Column("array_id", _long, nullable=True),
    Column("last_item", _long, nullable=True),
    Index(None, "end_us", "id"),
)
# Lists show arrays and no items, however many of those have ended between.
_end = (finished_job.c.end_us, finished_job.c.id)
_whole = finished_job.c.array_id.is_(None)
Index("ix_finished_job_whole_end_us_id", *_end, sqlite_where=_whole, postgresql_where=_whole)
Index(
    "ix_finished_job_user_end_us_id",
    finished_job.c.user,
    *_end,
    sqlite_where=_whole,
    postgresql_where=_whole,
)
_has_items = finished_job.c.last_item.is_not(None)
Index("ix_finished_job_last_item", finished_job.c.last_item, sqlite_where=_has_items, postgresql_where=_has_items)

output_chunk = Table(
    "output_chunk",
    metadata,
    Column("job_id", _long, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("stream", Integer, primary_key=True, autoincrement=False),
    Column("start", BigInteger, primary_key=True, autoincrement=False),
    # The offset at which the segment begins that this chunk is a piece of.
    Column("segment", BigInteger, nullable=False),
    Column("is_head", Boolean, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("written_time", DateTime(timezone=True), nullable=False, server_default=func.now()),
    info={"dialects": ("postgresql",)},
)

output_time = Table(
    "output_time",
    metadata,
    Column("job_id", _long, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("rank", Integer, primary_key=True, autoincrement=False),
    Column("stream", Integer, primary_key=True, autoincrement=False),
    # At this instant of the wall clock every byte below `end` had arrived.
    Column("at_us", BigInteger, primary_key=True, autoincrement=False),
    Column("end", BigInteger, nullable=False),
    info={"dialects": ("postgresql",)},
)


def belongs_to(table: Table, dialect: str) -> bool:
    """Whether a table exists on databases of that dialect."""
    return dialect in table.info.get("dialects", (dialect,))
