"""What a drill's scheduler stores in: a file of its own, or a PostgreSQL that is there for this drill alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.store.postgres_server import FIRST_DATABASE, PostgresServer, programs

SQLITE, POSTGRESQL = STORES = ("sqlite", "postgresql")
FOLDER = "postgres"


class NoDatabase(Exception):
    """The machine lacks what the wanted database needs."""


@contextmanager
def database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a drill's store, empty for a file in the scheduler's folder; new, or as an earlier drill left it.

    Programs on machines with networks of their own reach the server by its socket in the drill's folder.
    """
    if kind == SQLITE:
        yield ""
        return
    found = programs()
    if isinstance(found, str):
        raise NoDatabase(found)
    place = folder / FOLDER
    folder.chmod(0o711)  # the server runs as an account that may do nothing else
    is_new = not place.exists()
    place.mkdir(exist_ok=True)
    server = PostgresServer(found, place)
    server.start()
    try:
        yield server.socket_url(server.new_database() if is_new else FIRST_DATABASE)
    finally:
        server.stop()
