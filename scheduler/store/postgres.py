"""PostgreSQL as the store: for a team that has one, and for two schedulers of which one stands by (leading/).

The writer's own connection holds the lock that keeps a second scheduler out, so the lock and the right to
write are lost together. psycopg is an optional dependency and is imported here only.
"""

import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from .database import LOCK_WAIT_SECONDS_MAX, READ_CONNECTIONS_MAX, READ_WAIT_SECONDS_MAX, GuardFailed
from .errors import StoreCorrupt, StoreError, StoreLocked, StoreUnavailable, TermSuperseded
from .statements import Row, Statements, Step

CONNECT_SECONDS_MAX = 5
STATEMENT_SECONDS_MAX = 30
PEER_SILENCE_SECONDS_MAX = 15
"""How long a server may leave sent data unacknowledged before the connection counts as lost."""

LOCK_CLASS = 0x67707566  # "gpuf": our part of the space of advisory locks, which a database shares

_TAKE_LOCK = b"SELECT pg_try_advisory_lock(%s, hashtext(current_schema()))"

HOLDERS = b"""
SELECT activity.pid, activity.application_name
FROM pg_locks AS held JOIN pg_stat_activity AS activity USING (pid)
WHERE held.locktype = 'advisory' AND held.granted AND activity.datname = current_database()
AND held.classid = %s AND held.objid::bigint = hashtext(current_schema())::bigint & 4294967295
"""


def connect_arguments(url: URL, name: str, *, is_read_only: bool = False) -> dict[str, Any]:
    """What every connection to the server asks for: `name` to be seen by, and a bound on every wait."""
    dialect: Any = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    arguments: dict[str, Any] = dialect.create_connect_args(url)[1]
    return arguments | {
        "application_name": name,
        "connect_timeout": CONNECT_SECONDS_MAX,
        "keepalives_idle": PEER_SILENCE_SECONDS_MAX,
        "tcp_user_timeout": PEER_SILENCE_SECONDS_MAX * 1000,
        "options": f"{arguments.get('options', '')} -c statement_timeout={STATEMENT_SECONDS_MAX}s"
        f" -c lock_timeout={LOCK_WAIT_SECONDS_MAX}s"
        # The server, too, lets go of a scheduler whose machine is gone, and of its lock.
        f" -c tcp_keepalives_idle={PEER_SILENCE_SECONDS_MAX}"
        " -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
        + (" -c default_transaction_read_only=on" if is_read_only else ""),
    }


def connected_engine(url: URL, name: str, *, is_read_only: bool = False) -> Engine:
    """A bounded pool of such connections; one that died while idle is replaced when it is next asked for."""
    arguments = connect_arguments(url, name, is_read_only=is_read_only)
    return create_engine(
        url.set(drivername="postgresql+psycopg"),
        creator=lambda: psycopg.connect(**arguments),
        pool_size=READ_CONNECTIONS_MAX,
        max_overflow=0,
        pool_timeout=READ_WAIT_SECONDS_MAX,
        pool_pre_ping=True,
    )


def new_identity() -> str:
    """A name that nobody else has: by it a lost connection of our own is told from another scheduler's."""
    return f"gpufleet pid {os.getpid()} on {socket.gethostname()[:24]} {os.urandom(4).hex()}"


class PostgresDatabase:
    """A database on a server. One that is not `kept` may be a running scheduler's: it is read beside that.

    `identity` is what all connections of this run of the program are named by; by default it is new.

    Errors of opening: StoreLocked, StoreUnavailable.
    """

    def __init__(
        self, url: URL, *, is_read_only: bool = False, is_kept: bool = True, identity: str | None = None
    ) -> None:
        self._name = url.render_as_string(hide_password=True)
        self._identity = identity or new_identity()
        self._arguments = connect_arguments(url, self._identity, is_read_only=is_read_only)
        self.engine = connected_engine(url, self._identity, is_read_only=is_read_only)
        dialect: Any = PGDialect_psycopg(paramstyle="format")  # type: ignore[no-untyped-call]
        self.statements = Statements(dialect)
        self._writer: psycopg.Connection | None = self._connect() if is_kept else None

    def write(self, guard: Row, steps: Sequence[Step]) -> None:
        writer = self._reconnected()
        try:
            # All statements travel together: a commit waits for the server once.
            with writer.pipeline(), writer.cursor() as cursor:
                cursor.execute(b"BEGIN")
                cursor.execute(self.statements.guard.encode(), guard)
                for statement, rows in steps:
                    cursor.executemany(statement.encode(), rows)
                cursor.execute(b"COMMIT")
        except psycopg.Error as error:
            self._roll_back(writer)
            if isinstance(error, psycopg.errors.NotNullViolation) and error.diag.table_name == "meta":
                raise GuardFailed from None
            raise self.explain(error) from error

    def explain(self, error: Exception) -> StoreError:
        message = f"{self._name}: {str(error).strip()}"
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            return StoreUnavailable(message)
        if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):  # a standby that has not been promoted
            return StoreUnavailable(message)
        return StoreCorrupt(message)

    def damage(self) -> list[str]:
        return []  # The server checks its pages itself; a broken one fails the reading of its rows.

    def close(self) -> None:
        if self._writer is not None:
            # The server notices some time later that a connection was closed, and until then its lock is held.
            with suppress(psycopg.Error):
                self._writer.execute(b"SELECT pg_advisory_unlock_all()")
        self._hang_up()
        self.engine.dispose()

    def _reconnected(self) -> psycopg.Connection:
        if self._writer is None:
            try:
                self._writer = self._connect()
            except StoreLocked as error:
                raise TermSuperseded(str(error)) from error
        return self._writer

    def _connect(self) -> psycopg.Connection:
        """A connection that holds the lock. Errors: StoreLocked, StoreUnavailable."""
        try:
            connection = psycopg.connect(**self._arguments, autocommit=True)
        except psycopg.Error as error:
            raise self.explain(error) from error
        try:
            self._take_lock(connection)
            # Whatever the server's default: a commit that was acknowledged is on its disk.
            connection.execute(
                b"SELECT set_config('synchronous_commit', 'on', false)"
                b" WHERE current_setting('synchronous_commit') = 'off'"
            )
        except psycopg.Error as error:
            connection.close()
            raise self.explain(error) from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _take_lock(self, connection: psycopg.Connection) -> None:
        if connection.execute(_TAKE_LOCK, (LOCK_CLASS,)).fetchone() == (True,):
            return
        for pid, holder in connection.execute(HOLDERS, (LOCK_CLASS,)).fetchall():
            if holder != self._identity:
                raise StoreLocked(
                    f"{self._name} is in use by {holder or 'an unnamed client'} (server process {pid}):"
                    " stop that scheduler"
                )
            # The server has not noticed yet that our last connection is dead.
            connection.execute(b"SELECT pg_terminate_backend(%s)", (pid,))
        raise StoreUnavailable(f"{self._name}: the lock is just being released")

    def _roll_back(self, writer: psycopg.Connection) -> None:
        try:
            writer.execute(b"ROLLBACK")
        except psycopg.Error:
            self._hang_up()

    def _hang_up(self) -> None:
        if self._writer is not None:
            with suppress(psycopg.Error):
                self._writer.close()
            self._writer = None
