"""Output in rows gets checksums."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; rows that are there have none. SQLite's output is in files, with checksums beside them."""
    if op.get_bind().dialect.name == "postgresql":
        op.add_column("output_chunk", sa.Column("checksum", sa.BigInteger(), nullable=True))
