"""The tables of the first version."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
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
        sa.PrimaryKeyConstraint("id", name="pk_finished_job"),
    )
    op.create_index("ix_finished_job_end_us_id", "finished_job", ["end_us", "id"])
    op.create_index("ix_finished_job_user_end_us_id", "finished_job", ["user", "end_us", "id"])
    if op.get_bind().dialect.name == "postgresql":
        _make_output_chunk()


def _make_output_chunk() -> None:
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
