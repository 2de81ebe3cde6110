"""The tables, as the newest migration leaves them (a test compares the two).

`record` is the story, `entity` what lives now, `finished_job` what ended, `audit` who called what, `meta` the one row
that every commit asserts, `lineage` a row for each start of a scheduler. On PostgreSQL only exist `output_chunk` and
`output_time`, the output store of a scheduler without a data folder, and `scheduler_run` and `key_fingerprint`, by
which schedulers that share the store know of each other (leading/).
"""

import sqlalchemy as sa

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

# SQLite counts rows of its own in a column of exactly this type; elsewhere an integer may be too short.
_long = sa.BigInteger().with_variant(sa.Integer, "sqlite")

meta = sa.Table(
    "meta",
    metadata,
    sa.Column("id", sa.Integer, sa.CheckConstraint("id = 1", name="one_row"), primary_key=True, autoincrement=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("term", _long, nullable=False),
    sa.Column("commit_number", _long, nullable=False),
    sa.Column("record_seq", _long, nullable=False),
    sa.Column("newest_us", _long, nullable=False),
    # Random, made once: a copy that is put back has it, too, and another database never.
    sa.Column("store_id", sa.Text, nullable=False, server_default=""),
)

lineage = sa.Table(
    "lineage",
    metadata,
    sa.Column("term", _long, primary_key=True, autoincrement=False),
    sa.Column("lineage", sa.Text, nullable=False),
    # The sequence of the newest record when this term began: what of the one before counts ends there.
    sa.Column("begin_seq", _long, nullable=False),
)

record = sa.Table(
    "record",
    metadata,
    sa.Column("seq", _long, primary_key=True, autoincrement=False),
    sa.Column("term", _long, nullable=False),
    sa.Column("at_us", _long, nullable=False),
    sa.Column("job_id", _long, nullable=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sa.Index(None, "job_id", "seq"),
    sa.Index(None, "kind", "seq"),
)

entity = sa.Table(
    "entity",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("id", sa.Text, primary_key=True),
    # How often it changed, where the entity counts that itself; 0 otherwise.
    sa.Column("version", _long, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    sqlite_with_rowid=False,
)

finished_job = sa.Table(
    "finished_job",
    metadata,
    sa.Column("id", _long, primary_key=True, autoincrement=False),
    sa.Column("user", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("submit_us", _long, nullable=False),
    sa.Column("end_us", _long, nullable=False),
    sa.Column("payload", sa.Text, nullable=False),
    # Of an item: its array. Of an array: the id of its last item, by which it is found from any of them.
    sa.Column("array_id", _long, nullable=True),
    sa.Column("last_item", _long, nullable=True),
    sa.Index(None, "end_us", "id"),
)
# Lists show arrays and no items, however many of those have ended between.
_end = (finished_job.c.end_us, finished_job.c.id)
_whole = finished_job.c.array_id.is_(None)
sa.Index("ix_finished_job_whole_end_us_id", *_end, sqlite_where=_whole, postgresql_where=_whole)
sa.Index(
    "ix_finished_job_user_end_us_id",
    finished_job.c.user,
    *_end,
    sqlite_where=_whole,
    postgresql_where=_whole,
)
# What is asked of the past is decided in this index alone, items of arrays and all.
sa.Index(
    "ix_finished_job_history",
    *_end,
    finished_job.c.user,
    finished_job.c.name,
    finished_job.c.outcome,
    finished_job.c.array_id,
)
_has_items = finished_job.c.last_item.is_not(None)
sa.Index("ix_finished_job_last_item", finished_job.c.last_item, sqlite_where=_has_items, postgresql_where=_has_items)

audit = sa.Table(
    "audit",
    metadata,
    sa.Column("seq", _long, primary_key=True, autoincrement=False),
    sa.Column("at_us", _long, nullable=False),
    *(
        sa.Column(name, sa.Text, nullable=False)
        for name in (
            *("call", "user", "role", "token", "node", "peer", "via", "target"),
            *("jobs", "detail", "code", "reason", "message"),
        )
    ),
    # Every job that the row is about has a number from the first to the last; 0 where it is about none.
    sa.Column("first_job", _long, nullable=False),
    sa.Column("last_job", _long, nullable=False),
    sa.Column("count", _long, nullable=False),
    sa.Column("is_open", sa.Boolean, nullable=False),
    sa.Column("is_refused", sa.Boolean, nullable=False),
    sa.Index(None, "at_us"),
    sa.Index(None, "user", "seq"),
    sa.Index(None, "call", "seq"),
    sa.Index(None, "target", "seq"),
    sa.Index(None, "is_refused", "seq"),
)
_has_jobs = audit.c.last_job > 0
sa.Index(
    "ix_audit_jobs",
    audit.c.last_job,
    audit.c.first_job,
    audit.c.seq,
    sqlite_where=_has_jobs,
    postgresql_where=_has_jobs,
)

output_chunk = sa.Table(
    "output_chunk",
    metadata,
    sa.Column("job_id", _long, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # Of the scheduler's start that placed the attempt; empty where there was none yet.
    sa.Column("lineage", sa.Text, primary_key=True, server_default=""),
    sa.Column("stream", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("start", sa.BigInteger, primary_key=True, autoincrement=False),
    # The offset at which the segment begins that this chunk is a piece of.
    sa.Column("segment", sa.BigInteger, nullable=False),
    sa.Column("is_head", sa.Boolean, nullable=False),
    sa.Column("data", sa.LargeBinary, nullable=False),
    sa.Column("written_time", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
    # CRC-32 of the data; none where an earlier version wrote it.
    sa.Column("checksum", sa.BigInteger, nullable=True),
    info={"dialects": ("postgresql",)},
)

output_time = sa.Table(
    "output_time",
    metadata,
    sa.Column("job_id", _long, primary_key=True, autoincrement=False),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    # Of the scheduler's start that placed the attempt; empty where there was none yet.
    sa.Column("lineage", sa.Text, primary_key=True, server_default=""),
    sa.Column("stream", sa.Integer, primary_key=True, autoincrement=False),
    # At this instant of the wall clock every byte below `end` had arrived.
    sa.Column("at_us", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("end", sa.BigInteger, nullable=False),
    info={"dialects": ("postgresql",)},
)

# A row for each scheduler that runs on this store, or ran lately: what it says of itself, and a count that rises as
# long as it goes on.
scheduler_run = sa.Table(
    "scheduler_run",
    metadata,
    sa.Column("identity", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("pid", sa.BigInteger, nullable=False),
    sa.Column("address", sa.Text, nullable=False),
    sa.Column("data_folder", sa.Text, nullable=False),
    sa.Column("version", sa.Text, nullable=False),
    sa.Column("role", sa.Text, nullable=False),
    # The term that it leads in; 0 while it does not.
    sa.Column("term", sa.BigInteger, nullable=False),
    # The newest record that it has.
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    # What keeps it from taking over as it should; empty for nothing.
    sa.Column("problem", sa.Text, nullable=False),
    # By the clock of the database: since when it has this role, and its newest beat.
    sa.Column("since_us", sa.BigInteger, nullable=False),
    sa.Column("beat_us", sa.BigInteger, nullable=False),
    info={"dialects": ("postgresql",)},
)

# The keys in the data folder of who leads: those of who stands by must be the same.
key_fingerprint = sa.Table(
    "key_fingerprint",
    metadata,
    sa.Column("file", sa.Text, primary_key=True),
    sa.Column("fingerprint", sa.Text, nullable=False),
    # Where a copy is: the machine, and the path there.
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    info={"dialects": ("postgresql",)},
)


def belongs_to(table: sa.Table, dialect: str) -> bool:
    """Whether a table exists on databases of that dialect."""
    return dialect in table.info.get("dialects", (dialect,))
