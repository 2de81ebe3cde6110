"""Brings a database's tables to the shape this program knows: one Alembic revision per change, in versions/.

A revision is never changed once released; what the tables look like now is schema.py. Payloads are no
business of migrations: they are upgraded when read, by the codec.
"""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

FOLDER = Path(__file__).parent

FIRST_REVISION = "0004"
"""The revision that makes the tables of an empty database; what is older is no longer brought up to date."""

NEWEST_REVISION = "0008"
"""The revision that upgrade() leads to (a test holds both against versions/)."""


REVISION_TABLE = "schema_revision"
"""Not Alembic's usual name: a database may be shared with another program that has migrations of its own."""


class UnknownRevision(Exception):
    """The database was migrated by a newer version of this program."""


class RetiredRevision(Exception):
    """The database has tables of before FIRST_REVISION; the message says what to do."""


def upgrade(connection: Connection, to: str | None = None) -> None:
    """Run the missing revisions, up to the newest or another one, in the connection's transaction.

    Errors: UnknownRevision, RetiredRevision.
    """
    found = revision_of(connection)
    if found == (to or NEWEST_REVISION):
        return
    check_not_retired(found)
    # A start with nothing to migrate does not pay for importing Alembic.
    from alembic.config import Config
    from alembic.runtime.environment import EnvironmentContext
    from alembic.script import ScriptDirectory
    from alembic.util.exc import CommandError

    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    scripts = ScriptDirectory.from_config(config)
    with EnvironmentContext(
        config, scripts, fn=lambda revision, _: scripts._upgrade_revs(to or "head", revision)
    ) as environment:
        environment.configure(connection=connection, version_table=REVISION_TABLE, transactional_ddl=True)
        try:
            environment.run_migrations()
        except CommandError as error:
            raise UnknownRevision(str(error)) from error


def check_not_retired(revision: str | None) -> None:
    """Raise RetiredRevision for tables that no revision here leads on from."""
    if revision is not None and revision < FIRST_REVISION:
        raise RetiredRevision(
            f"a checkout of before the first release made the store's tables (revision {revision}, and the oldest that"
            f" is brought up to date is {FIRST_REVISION}): start the scheduler once from a checkout that still has"
            " scheduler/store/migrations/versions/0004_history.py, or begin with another --data folder or database"
        )


def revision_of(connection: Connection) -> str | None:
    """The revision a database is at; None for an empty one."""
    if not inspect(connection).has_table(REVISION_TABLE):
        return None
    found = connection.execute(text(f"SELECT version_num FROM {REVISION_TABLE}")).scalar()
    if found is not None and type(found) is not str:
        raise ValueError(f"the revision is {found!r}")
    return found
