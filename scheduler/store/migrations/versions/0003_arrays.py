"""Items of arrays among the jobs that have ended: lists of them leave them out, and an array is found by its items."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_WHOLE = sa.text("array_id IS NULL")


def upgrade() -> None:
    """Add the columns, and let the lists' indexes hold only jobs that are no items."""
    long = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column("finished_job", sa.Column("array_id", long, nullable=True))
    op.add_column("finished_job", sa.Column("last_item", long, nullable=True))
    op.drop_index("ix_finished_job_user_end_us_id", "finished_job")
    op.create_index(
        "ix_finished_job_user_end_us_id",
        "finished_job",
        ["user", "end_us", "id"],
        sqlite_where=_WHOLE,
        postgresql_where=_WHOLE,
    )
    op.create_index(
        "ix_finished_job_whole_end_us_id",
        "finished_job",
        ["end_us", "id"],
        sqlite_where=_WHOLE,
        postgresql_where=_WHOLE,
    )
    has_items = sa.text("last_item IS NOT NULL")
    op.create_index(
        "ix_finished_job_last_item",
        "finished_job",
        ["last_item"],
        sqlite_where=has_items,
        postgresql_where=has_items,
    )
