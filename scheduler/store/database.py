"""What the store asks of a database; sqlite.py and postgres.py are the two that answer."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, ResourceClosedError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from .errors import StoreError, StoreUnavailable
from .statements import Row, Statements, Step

READ_CONNECTIONS_MAX = 4
"""How many reads run at once; more wait up to READ_WAIT_SECONDS_MAX."""

READ_WAIT_SECONDS_MAX = 10

LOCK_WAIT_SECONDS_MAX = 5
"""How long a statement waits for a lock that someone else holds in the database."""


class GuardFailed(Exception):
    """The commit is not the next one of the current term; nothing of it was applied by this call."""


class Database(Protocol):
    """One opened database: who else has it open is settled, its tables are not yet."""

    engine: Engine
    """For reads and migrations; the writer has a connection of its own."""

    statements: Statements

    def write(self, guard: Row, steps: Sequence[Step]) -> None:
        """Apply all steps durably in one transaction, or none. Errors: GuardFailed, what explain() says."""
        ...

    def explain(self, error: Exception) -> StoreError:
        """What the driver's error means for the caller."""
        ...

    def damage(self) -> list[str]:
        """What the database's own integrity check complains about."""
        ...

    def close(self) -> None:
        """Let go of every connection and of the lock."""
        ...


@contextmanager
def explained(database: Database) -> Iterator[None]:
    """Turn the driver's errors, as SQLAlchemy wraps them, into the store's."""
    try:
        yield
    except DBAPIError as error:
        raise database.explain(error.orig if isinstance(error.orig, Exception) else error) from error
    except (PoolTimeoutError, ResourceClosedError) as error:
        raise StoreUnavailable(f"no connection to the store is free: {error}") from error
