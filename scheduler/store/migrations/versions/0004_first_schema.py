"""The tables of the first release. Numbers begin here: those below were of checkouts before it."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    long = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "meta",
        sa.Column("id", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("format", sa.Integer, nullable=False),
        sa.Column("term", long, nullable=False),
        sa.Column("commit_number", long, nullable=False),
        sa.Column("record_seq", long, nullable=False),
        sa.Column("newest_us", long, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_meta"),
        sa.CheckConstraint("id = 1", name="ck_meta_one_row"),
    )
    op.create_table(
        "record",
        sa.Column("seq", long, nullable=False, autoincrement=False),
        sa.Column("term", long, nullable=False),
        sa.Column("at_us", long, nullable=False),
        sa.Column("job_id", long, nullable=True),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_record"),
    )
    op.create_index("ix_record_job_id_seq", "record", ["job_id", "seq"])
    op.create_index("ix_record_kind_seq", "record", ["kind", "seq"])
    op.create_table(
        "entity",
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("id", sa.Text, nullable=False),
        sa.Column("version", long, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("kind", "id", name="pk_entity"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "finished_job",
        sa.Column("id", long, nullable=False, autoincrement=False),
        sa.Column("user", sa.Text, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("outcome", sa.Text, nullable=False),
        sa.Column("submit_us", long, nullable=False),
        sa.Column("end_us", long, nullable=False),
        sa.Column("payload", sa.Text, nullable=False),
        sa.Column("array_id", long, nullable=True),
        sa.Column("last_item", long, nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_finished_job"),
    )
    _index_finished_jobs()
    if op.get_bind().dialect.name == "postgresql":
        _make_output_tables()


def _index_finished_jobs() -> None:
    """For lists, which leave items of arrays out; for questions about what has ended; for an array by its items."""
    by_end = ["end_us", "id"]
    op.create_index("ix_finished_job_end_us_id", "finished_job", by_end)
    op.create_index("ix_finished_job_history", "finished_job", [*by_end, "user", "name", "outcome", "array_id"])
    for name, columns, where in (
        ("ix_finished_job_user_end_us_id", ["user", *by_end], sa.text("array_id IS NULL")),
        ("ix_finished_job_whole_end_us_id", by_end, sa.text("array_id IS NULL")),
        ("ix_finished_job_last_item", ["last_item"], sa.text("last_item IS NOT NULL")),
    ):
        op.create_index(name, "finished_job", columns, sqlite_where=where, postgresql_where=where)


def _make_output_tables() -> None:
    """What jobs printed and when it came, on PostgreSQL; elsewhere both are in files."""
    op.create_table(
        "output_chunk",
        sa.Column("job_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("rank", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("stream", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("start", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("segment", sa.BigInteger, nullable=False),
        sa.Column("is_head", sa.Boolean, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("written_time", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()),
        sa.PrimaryKeyConstraint("job_id", "attempt", "rank", "stream", "start", name="pk_output_chunk"),
    )
    op.create_table(
        "output_time",
        sa.Column("job_id", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("attempt", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("rank", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("stream", sa.Integer, nullable=False, autoincrement=False),
        sa.Column("at_us", sa.BigInteger, nullable=False, autoincrement=False),
        sa.Column("end", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("job_id", "attempt", "rank", "stream", "at_us", name="pk_output_time"),
    )
