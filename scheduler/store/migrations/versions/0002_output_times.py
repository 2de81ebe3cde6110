"""When output arrived, for readers who want what is newer than a time."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table, on PostgreSQL; elsewhere output is in files, and so are its times."""
    if op.get_bind().dialect.name != "postgresql":
        return
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
