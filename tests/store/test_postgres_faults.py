"""The store on PostgreSQL when the server or the way to it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing

import psycopg
import pytest

from scheduler.ports import Commit
from scheduler.state.ids import JobId
from scheduler.store import database as database_module
from scheduler.store import postgres as postgres_module
from scheduler.store.errors import StoreLocked, StoreUnavailable, TermSuperseded
from scheduler.store.opening import open_store
from scheduler.store.store import SqlStore
from tests.store.postgres_server import PostgresServer
from tests.store.samples import at, finish, finished, job, submit
from tests.store.tcp_proxy import Proxy

pytestmark = pytest.mark.postgres


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres.port) as running:
        yield running


def open_when_released(url: str) -> SqlStore:
    """The store, once the server has noticed that the connection of its last holder is closed."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return open_store(url)
        except (StoreLocked, StoreUnavailable):
            if time.monotonic() > deadline:
                raise


def wait_until_released(url: str) -> None:
    """Until the server has noticed that the holder's connection is closed: no scheduler has the store open then."""
    locks = "SELECT 1 FROM pg_locks JOIN pg_database ON oid = database WHERE locktype = 'advisory' AND datname = %s"
    deadline = time.monotonic() + 60
    with psycopg.connect(url, autocommit=True) as connection:
        while connection.execute(locks, (connection.info.dbname,)).fetchall():
            assert time.monotonic() < deadline, "the lock is held"


def commit_when_answered(store: SqlStore, commit: Commit) -> None:
    """Commit as the engine does: again, while the server has not settled who holds the lock."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return store.commit(commit)
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise


def test_a_server_that_went_away_and_came_back_takes_the_same_commit(
    postgres: PostgresServer, long_lived: Callable[[str], AbstractContextManager[None]]
) -> None:
    with closing(open_store(postgres.url(postgres.new_database()))) as store:
        store.commit(submit(1, job(1)))
        postgres.stop()
        with long_lived("PostgreSQL"):
            for _ in range(2):
                with pytest.raises(StoreUnavailable):
                    store.commit(submit(2, job(2)))
            with pytest.raises(StoreUnavailable):
                store.story(JobId(1), 0, 10)
            with pytest.raises(StoreUnavailable):
                list(store.load())
            postgres.start()
        store.commit(submit(2, job(2)))
        assert list(store.load()) == [job(1), job(2)]
        assert store.verify() == []


def test_a_commit_whose_answer_was_lost_is_not_applied_twice(postgres: PostgresServer, proxy: Proxy) -> None:
    name = postgres.new_database()
    with closing(open_store(postgres.url(name, proxy.port))) as store:
        store.commit(submit(1, job(1)))
        proxy.mode = "lose the answer"
        with pytest.raises(StoreUnavailable):
            store.commit(finish(2, finished(job(1), 5), second=5))
        with psycopg.connect(postgres.url(name)) as direct:
            applied = direct.execute("SELECT commit_number FROM meta").fetchone()
        assert applied == (2,), "the server should have applied what it could not acknowledge"
        store.commit(finish(2, finished(job(1), 5), second=5))
        store.commit(submit(3, job(3)))
        assert [each.sequence for each in store.story(JobId(1), 0, 10)] == [1, 2]
        assert [each.sequence for each in store.story(JobId(3), 0, 10)] == [3]
        assert store.verify() == []


def test_a_connection_that_only_the_server_still_believes_in_does_not_keep_us_out(
    postgres: PostgresServer, proxy: Proxy
) -> None:
    with closing(open_store(postgres.url(postgres.new_database(), proxy.port))) as store:
        store.commit(submit(1, job(1)))
        proxy.mode = "leave the server hanging"
        with pytest.raises(StoreUnavailable):
            store.commit(submit(2, job(2)))
        commit_when_answered(
            store, submit(2, job(2))
        )  # the server ends the old session, which holds the lock, on request
        assert list(store.load()) == [job(1), job(2)]


def test_a_store_that_was_closed_is_free_before_the_server_has_noticed_its_closed_connection(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(postgres.new_database())
    connected: list[psycopg.Connection] = []
    try:
        with monkeypatch.context() as patch:
            patch.setattr(psycopg.Connection, "close", lambda each: connected.append(each))
            open_store(url).close()
        with closing(open_store(url)) as again:
            assert again.term == 2
    finally:
        for each in connected:
            each.close()


def test_a_scheduler_that_was_cut_off_while_another_took_over_is_superseded(
    postgres: PostgresServer, proxy: Proxy
) -> None:
    name = postgres.new_database()
    with closing(open_store(postgres.url(name, proxy.port))) as old:
        old.commit(submit(1, job(1)))
        with pytest.raises(StoreLocked):
            open_store(postgres.url(name))
        proxy.mode = "lose the answer"
        with pytest.raises(StoreUnavailable):
            old.commit(submit(2, job(2)))
        with closing(open_when_released(postgres.url(name))) as new:
            with pytest.raises(TermSuperseded, match="in use by gpufleet pid"):
                commit_when_answered(old, submit(2, job(2)))
            new.commit(submit(1, job(4)))
        wait_until_released(postgres.url(name))
        with pytest.raises(TermSuperseded, match="in term 2; the term of this one is 1"):
            commit_when_answered(old, submit(2, job(2)))


def test_a_row_that_someone_else_locks_makes_the_store_unavailable_for_a_while(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "LOCK_WAIT_SECONDS_MAX", 0.05)
    url = postgres.url(postgres.new_database())
    with closing(open_store(url)) as store:
        with psycopg.connect(url) as other:
            other.execute("SELECT * FROM meta FOR UPDATE")
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                store.commit(submit(1, job(1)))
        with pytest.raises(StoreLocked):  # it did not let go of the lock over this
            open_store(url)
        store.commit(submit(1, job(1)))
        assert len(store.story(JobId(1), 0, 10)) == 1


def test_reads_beyond_the_bound_wait_and_are_then_refused(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_module, "READ_WAIT_SECONDS_MAX", 0.05)
    with closing(open_store(postgres.url(postgres.new_database()))) as store:
        store.commit(submit(1, *(job(number) for number in range(1, 5))))
        readers = [store.load() for _ in range(database_module.READ_CONNECTIONS_MAX)]
        for reader in readers:
            next(reader)
        with pytest.raises(StoreUnavailable, match="no connection to the store is free"):
            store.finished_job(JobId(1))
        for reader in readers:
            assert len(list(reader)) == 3
        assert store.finished_job(JobId(1)) is None
        assert store.prune(at(0)) == 0


@pytest.mark.parametrize("name", ["no_such_database"])
def test_a_database_that_does_not_exist_is_named(postgres: PostgresServer, name: str) -> None:
    with pytest.raises(StoreUnavailable, match="no_such_database"):
        open_store(postgres.url(name))


def test_a_password_is_not_repeated_in_an_error(postgres: PostgresServer) -> None:
    url = postgres.url("nothing_here").replace("gpufleet@", "gpufleet:s3cret@")
    with pytest.raises(StoreUnavailable) as refused:
        open_store(url)
    assert "s3cret" not in str(refused.value)
