"""Output in rows when the server or the way to it fails, and when another scheduler has taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from pathlib import Path

import psycopg
import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from scheduler.outputs.errors import OutputStoreUnavailable
from scheduler.outputs.opening import open_outputs
from scheduler.outputs.rows import ROW_BYTES
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.ports import Piece
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.units import Instant
from scheduler.store.errors import TermSuperseded
from scheduler.store.opening import open_store
from tests.store.postgres_server import PostgresServer
from tests.store.tcp_proxy import Proxy

pytestmark = pytest.mark.postgres

OUT = OutputStream.STDOUT
KEY = RankKey(JobId(7), 1, 0)


@pytest.fixture
def database(postgres: PostgresServer) -> str:
    name = postgres.new_database()
    with closing(open_store(postgres.url(name))):
        return name


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as running:
        yield running


def opened(url: str) -> SegmentedOutputStore:
    return open_outputs(SchedulerSettings(store=url), Path("/nowhere"), term=1)


def rows_of(postgres: PostgresServer, database: str) -> list[tuple[int, int]]:
    """Start and length of every stored row."""
    with psycopg.connect(postgres.url(database)) as connection:
        return connection.execute("SELECT start, length(data) FROM output_chunk ORDER BY start").fetchall()


def text(outputs: SegmentedOutputStore) -> bytes:
    found = b""
    while (part := outputs.read(KEY, OUT, len(found), 100_000)) is not None:
        assert isinstance(part, Piece)
        found += part.data
    return found


def test_a_server_that_went_away_and_came_back_gets_what_waited(
    postgres: PostgresServer, database: str, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with closing(opened(postgres.url(database))) as outputs:
        outputs.append(KEY, OUT, 0, b"before ")
        outputs.sync()
        outputs.append(KEY, OUT, 7, b"and ")
        postgres.stop()
        with long_lived("PostgreSQL"):
            with pytest.raises(OutputStoreUnavailable):
                outputs.sync()
            assert outputs.synced(KEY, OUT) == 7
            assert outputs.append(KEY, OUT, 11, b"after") == 16
            with pytest.raises(OutputStoreUnavailable):
                outputs.append(RankKey(JobId(8), 1, 0), OUT, 0, b"a job that has to be looked up")
            postgres.start()
        assert outputs.sync() == [(KEY, OUT, 16)]
        assert text(outputs) == b"before and after"


def test_a_sync_whose_answer_was_lost_stores_nothing_twice(
    postgres: PostgresServer, database: str, proxy: Proxy
) -> None:
    with closing(opened(postgres.url(database, proxy.port))) as outputs:
        first = b"x" * (ROW_BYTES + 100)
        outputs.append(KEY, OUT, 0, first)
        outputs.sync()
        outputs.append(KEY, OUT, len(first), b"y" * ROW_BYTES)
        proxy.request, proxy.mode = b"COMMIT", "lose the answer"
        with pytest.raises(OutputStoreUnavailable):
            outputs.sync()
        stored = rows_of(postgres, database)
        assert stored[-1] == (2 * ROW_BYTES, 100), "the server should have stored what it could not acknowledge"
        outputs.append(KEY, OUT, len(first) + ROW_BYTES, b"z" * 10)
        assert outputs.sync() == [(KEY, OUT, len(first) + ROW_BYTES + 10)]
        assert text(outputs) == first + b"y" * ROW_BYTES + b"z" * 10
        assert rows_of(postgres, database) == [(0, ROW_BYTES), (ROW_BYTES, ROW_BYTES), (2 * ROW_BYTES, 110)]


def test_a_trickle_fills_rows_in_place_of_making_one_for_each_sync(postgres: PostgresServer, database: str) -> None:
    with closing(opened(postgres.url(database))) as outputs:
        for number in range(50):
            outputs.append(KEY, OUT, number * 10, b"0123456789")
            outputs.sync()
    with closing(opened(postgres.url(database))) as outputs:
        outputs.append(KEY, OUT, 500, b"and on")
        outputs.sync()
        assert text(outputs) == b"0123456789" * 50 + b"and on"
    assert rows_of(postgres, database) == [(0, 506)]


def test_output_that_was_stored_without_times_counts_as_new_and_what_comes_has_its_time(
    postgres: PostgresServer, database: str
) -> None:
    with closing(opened(postgres.url(database))) as outputs:
        outputs.append(KEY, OUT, 0, b"before")
        outputs.sync()
    with psycopg.connect(postgres.url(database)) as connection:  # as checkouts left it that stored no times
        assert connection.execute("DELETE FROM output_time").rowcount > 0
    open_store(postgres.url(database)).close()
    with closing(open_outputs(SchedulerSettings(store=postgres.url(database)), Path("/nowhere"), term=2)) as outputs:
        far_ahead = Instant(2**60)
        assert outputs.arrived_before(KEY, OUT, far_ahead) == 0
        assert text(outputs) == b"before"
        outputs.append(KEY, OUT, 6, b" and after")
        outputs.sync()
        assert outputs.arrived_before(KEY, OUT, far_ahead) == 16


def test_a_superseded_scheduler_deletes_no_output(postgres: PostgresServer, database: str) -> None:
    with closing(opened(postgres.url(database))) as outputs:
        outputs.append(KEY, OUT, 0, b"of a job that lives on")
        outputs.sync()
        open_store(postgres.url(database)).close()
        with pytest.raises(TermSuperseded, match="in term 2"):
            outputs.retain(Instant(2**60), 0, frozenset())
    assert rows_of(postgres, database) == [(0, 22)]


def test_a_superseded_scheduler_stores_no_output(postgres: PostgresServer, database: str) -> None:
    with closing(opened(postgres.url(database))) as outputs:
        outputs.append(KEY, OUT, 0, b"stale")
        open_store(postgres.url(database)).close()
        with pytest.raises(TermSuperseded, match="in term 2"):
            outputs.sync()
    assert rows_of(postgres, database) == []
