"""Schedulers that share a store know of each other, and whether their keys are the same."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, on PostgreSQL: nobody shares a store of SQLite."""
    if op.get_bind().dialect.name != "postgresql":
        return
    op.create_table(
        "scheduler_run",
        sa.Column("identity", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("pid", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("data_folder", sa.Text(), nullable=False),
        sa.Column("version", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("term", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("beat", sa.BigInteger(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("since_us", sa.BigInteger(), nullable=False),
        sa.Column("beat_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("identity", name="pk_scheduler_run"),
    )
    op.create_table(
        "key_fingerprint",
        sa.Column("file", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("file", name="pk_key_fingerprint"),
    )
