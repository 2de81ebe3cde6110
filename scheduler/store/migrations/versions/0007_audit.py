"""Who called what: the audit."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

TEXTS = (
    "call",
    "user",
    "role",
    "token",
    "node",
    "peer",
    "via",
    "target",
    "jobs",
    "detail",
    "code",
    "reason",
    "message",
)


def upgrade() -> None:
    """Make the table. What was done before it is told by the records of then, in the stories of jobs."""
    long = sa.BigInteger().with_variant(sa.Integer, "sqlite")
    op.create_table(
        "audit",
        sa.Column("seq", long, nullable=False, autoincrement=False),
        sa.Column("at_us", long, nullable=False),
        *(sa.Column(name, sa.Text, nullable=False) for name in TEXTS),
        sa.Column("first_job", long, nullable=False),
        sa.Column("last_job", long, nullable=False),
        sa.Column("count", long, nullable=False),
        sa.Column("is_open", sa.Boolean, nullable=False),
        sa.Column("is_refused", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("seq", name="pk_audit"),
    )
    op.create_index("ix_audit_at_us", "audit", ["at_us"])
    op.create_index("ix_audit_user_seq", "audit", ["user", "seq"])
    op.create_index("ix_audit_call_seq", "audit", ["call", "seq"])
    op.create_index("ix_audit_target_seq", "audit", ["target", "seq"])
    op.create_index("ix_audit_is_refused_seq", "audit", ["is_refused", "seq"])
    has_jobs = sa.text("last_job > 0")
    op.create_index(
        "ix_audit_jobs", "audit", ["last_job", "first_job", "seq"], sqlite_where=has_jobs, postgresql_where=has_jobs
    )
