"""Which store it is, and which starts it has seen; on PostgreSQL the lineage of what jobs printed."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

OUTPUT_KEYS = {
    "output_chunk": ("job_id", "attempt", "rank", "lineage", "stream", "start"),
    "output_time": ("job_id", "attempt", "rank", "lineage", "stream", "at_us"),
}


def upgrade() -> None:
    """Add the columns and the table. What was printed before has no lineage."""
    long = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.add_column("meta", sa.Column("store_id", sa.Text, nullable=False, server_default=""))
    op.create_table(
        "lineage",
        sa.Column("term", long, nullable=False, autoincrement=False),
        sa.Column("lineage", sa.Text, nullable=False),
        sa.Column("begin_seq", long, nullable=False),
        sa.PrimaryKeyConstraint("term", name="pk_lineage"),
    )
    if op.get_bind().dialect.name == "postgresql":
        for table, key in OUTPUT_KEYS.items():
            op.add_column(table, sa.Column("lineage", sa.Text, nullable=False, server_default=""))
            op.drop_constraint(f"pk_{table}", table)
            op.create_primary_key(f"pk_{table}", table, list(key))
