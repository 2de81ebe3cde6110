"""Brings a database's tables to the shape this program knows: one Alembic revision per change, in versions/.

A revision is never changed once released; what the tables look like now is schema.py. Payloads are no
business of migrations: they are upgraded when read, by the codec.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

FOLDER = Path(__file__).parent

NEWEST_REVISION = "0003"
"""The revision that upgrade() leads to (a test holds it against versions/)."""


REVISION_TABLE = "schema_revision"
"""Not Alembic's usual name: a database may be shared with another program that has migrations of its own."""


class UnknownRevision(Exception):
    """The database was migrated by a newer version of this program."""


def upgrade(connection: Connection) -> None:
    """Run the missing revisions in the connection's transaction. Errors: UnknownRevision."""
    if revision_of(connection) == NEWEST_REVISION:
        return
    # A start with nothing to migrate does not pay for importing Alembic.
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    scripts = ScriptDirectory.from_config(config)
    with EnvironmentContext(
        config, scripts, fn=lambda revision, _: scripts._upgrade_revs("head", revision)
    ) as environment:
        environment.configure(connection=connection, version_table=REVISION_TABLE, transactional_ddl=True)
        try:
            environment.run_migrations()
        except CommandError as error:
            raise UnknownRevision(str(error)) from error


def revision_of(connection: Connection) -> str | None:
    """The revision a database is at; None for an empty one."""
    if not inspect(connection).has_table(REVISION_TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT version_num FROM {REVISION_TABLE}")).scalar()
    return found
