"""The parts of a takeover, each by itself: rows, keys, what is followed, the lock, and the clock."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.errors import GpufleetError, Reason
from scheduler.clock import SlewedClock
from scheduler.known_store import Memory
from scheduler.leading.beats import Beats, is_down
from scheduler.leading.database_clock import DatabaseClock
from scheduler.leading.following import Follower
from scheduler.leading.judging import LeadingRole, Run
from scheduler.leading.keys import check_keys, fingerprints_of
from scheduler.leading.runs import Runs
from scheduler.leading.standing_by import StandBy
from scheduler.state.access import Secret
from scheduler.state.ids import SecretName, UserName
from scheduler.state.units import HOUR, Instant
from scheduler.store import postgres as postgres_module
from scheduler.store.errors import StoreLocked, StoreUnavailable
from scheduler.store.opening import open_store
from scheduler.store.postgres import new_identity
from scheduler.store.store import SqlStore
from tests.store.postgres_server import PostgresServer
from tests.store.samples import finish, finished, job, submit

pytestmark = pytest.mark.postgres

ROUNDS = 100
OWN = Run(
    identity="own", host="m1", pid=1, address="m1:1", data_folder="/a", version="0.1.0", role=LeadingRole.STANDING_BY
)


def opened_or_refused(url: str, barrier: threading.Barrier) -> SqlStore | Exception:
    barrier.wait()
    try:
        return open_store(url)
    except (StoreLocked, StoreUnavailable) as refused:
        return refused


def test_of_two_that_open_the_store_at_once_exactly_one_leads_a_hundred_times(url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        for number in range(1, ROUNDS + 1):
            barrier = threading.Barrier(2)
            results = list(pool.map(opened_or_refused, [url] * 2, [barrier] * 2))
            stores = [each for each in results if isinstance(each, SqlStore)]
            refusals = [str(each) for each in results if isinstance(each, Exception)]
            assert len(stores) == len(refusals) == 1, refusals
            assert "in use by" in refusals[0] or "being released" in refusals[0]
            assert stores[0].term == number
            stores[0].close()


def test_what_is_written_beside_commits_holds_a_takeover_up_and_no_commit(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused leader in the middle of storing output: what it wrote before counts, and behind a takeover nothing."""
    monkeypatch.setattr(postgres_module, "LOCK_WAIT_SECONDS_MAX", 1)
    with psycopg.connect(url) as writer:
        with closing(open_store(url)) as store:
            writer.execute("SELECT term FROM meta FOR KEY SHARE")
            store.commit(submit(1, job(1)))
        with pytest.raises(StoreUnavailable, match="lock timeout"):
            open_store(url)
        writer.rollback()
        with closing(open_store(url)) as store:
            assert list(store.load()) == [job(1)]


def test_what_was_followed_is_what_is_stored(url: str) -> None:
    with closing(open_store(url)) as store, closing(Follower(url, new_identity())) as follower:
        store.commit(submit(1, job(1), job(2)))
        assert follower.entities(store.newest_sequence()) is None, "nothing was read yet"
        assert not follower.follow(store.newest_sequence())
        assert follower.is_warm
        store.commit(submit(2, job(3)))
        store.commit(finish(3, finished(job(1), 5), second=5))
        followed = follower.entities(store.newest_sequence())
        assert followed is not None
        stored = list(store.load())
        assert sorted(map(repr, followed)) == sorted(map(repr, stored))
        store.take_followed(followed)
        assert list(store.load()) == followed
        assert list(store.load()) == stored, "once"
        known = follower.known(*follower.stored())
        assert (known.term, known.sequence, known.store_id) == (1, store.newest_sequence(), store.store_id)


def test_what_was_followed_and_differs_is_read_again(url: str) -> None:
    ada = UserName("ada")
    secret = Secret(user=ada, name=SecretName("KEY"), sealed=b"sealed", set_at=Instant(1), set_by=ada)
    with closing(open_store(url)) as store, closing(Follower(url, new_identity())) as follower:
        store.commit(submit(1, job(1), job(2)))
        follower.follow(store.newest_sequence())
        store.commit(replace(submit(2), upserts=(secret, replace(job(2), version=9)), deletes=(("job", "1"),)))
        followed = follower.entities(store.newest_sequence())
        assert followed is not None
        assert sorted(map(repr, followed)) == sorted(map(repr, store.load()))


def test_records_that_were_pruned_meanwhile_have_everything_read_again(url: str) -> None:
    with closing(open_store(url)) as store, closing(Follower(url, new_identity())) as follower:
        store.commit(submit(1, job(1)))
        follower.follow(store.newest_sequence())
        store.commit(submit(2, job(2)))
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM record WHERE seq = 2")
        assert follower.follow(store.newest_sequence())
        assert not follower.is_warm
        while follower.follow(store.newest_sequence()):
            pass
        assert {*map(repr, follower.durable.entities())} >= {*map(repr, store.load())}


def test_a_row_beats_says_who_has_the_lock_and_goes_when_its_scheduler_leaves(url: str) -> None:
    with closing(Runs(url, "own")) as runs:
        assert not runs.look(OWN).has_runs, "of an older version, or empty"
        identity = new_identity()
        with closing(open_store(url, identity=identity)):
            assert [runs.look(OWN).runs[0].beat for _ in range(3)] == [1, 2, 3]
            look = runs.look(replace(OWN, sequence=7, problem="why"))
            assert (look.holder, look.term, look.sequence) == (identity, 1, 0)
            assert replace(look.runs[0], since_us=0, beat_us=0, beat=0) == replace(OWN, sequence=7, problem="why")
            assert runs.why_not_ending(identity) == ""
            since_us = look.runs[0].since_us
            assert runs.look(replace(OWN, role=LeadingRole.LEADING)).runs[0].since_us > since_us
        runs.leave("own")
        assert runs.look(None).runs == ()


def test_a_store_that_cannot_be_asked_is_named_without_its_password(postgres: PostgresServer) -> None:
    url = postgres.url("nothing_here").replace("gpufleet@", "gpufleet:s3cret@")
    with closing(Runs(url, "own")) as runs, pytest.raises(StoreUnavailable) as refused:
        runs.look(None)
    assert "nothing_here" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def test_other_keys_than_those_of_the_leader_are_refused_with_the_line_that_copies_them(
    tmp_path: Path, url: str
) -> None:
    leader, standby = (SchedulerSettings(data=tmp_path / name, store=url) for name in ("leader", "standby"))
    for each, key in ((leader, "ab"), (standby, "cd")):
        each.data.mkdir()
        (each.data / "worker.key").write_text(key * 32 + "\n")
        (each.data / "worker.key").chmod(0o600)
    with closing(open_store(url)), closing(Runs(url, "own")) as runs:
        check_keys(standby, runs.fingerprints())
        runs.keep_fingerprints(fingerprints_of(leader))
        stored = runs.fingerprints()
    assert "abab" not in repr(stored), "nothing of a key is stored"
    with pytest.raises(GpufleetError) as refused:
        check_keys(standby, stored)
    assert refused.value.reason is Reason.KEYS_DIFFER
    assert "worker.key is another" in refused.value.message
    assert f"cp -p {leader.data / 'worker.key'} {standby.data / 'worker.key'}" in refused.value.next_step
    (standby.data / "worker.key").unlink()
    with pytest.raises(GpufleetError, match=r"worker\.key is missing"):
        check_keys(standby, stored)
    (standby.data / "worker.key").write_bytes((leader.data / "worker.key").read_bytes())
    (standby.data / "worker.key").chmod(0o600)
    check_keys(standby, stored)


async def test_the_row_of_one_that_was_killed_in_the_same_data_folder_refuses_nobody(tmp_path: Path, url: str) -> None:
    """Its row is as young as that of one that lives: the lock of the folder, and no row, says which it is."""
    settings = SchedulerSettings(data=tmp_path, store=url)
    open_store(url).close()
    killed = replace(OWN, identity="killed", host=socket.gethostname(), data_folder=str(tmp_path))
    with closing(Runs(url, "killed")) as runs:
        runs.look(killed)
    opened = await StandBy(settings, Memory(tmp_path)).lead(asyncio.Event())
    assert opened is not None and opened.shared is not None
    opened.shared.beats.close()
    opened.store.close()


def test_a_leader_beats_from_the_lock_on_and_not_while_something_does_not_move(url: str) -> None:
    with closing(open_store(url)) as store:
        now_s = [100.0]
        with closing(Runs(url, "own")) as runs:
            beats = Beats(runs, OWN, DatabaseClock(), dict, lambda: now_s[0])
            assert beats.beat() is None
            now_s[0] += 800.0
            assert beats.why_not() == "", "a large store is read, or its tables are brought up to date"
            beats.leads(store)
            beats.tick()
            assert beats.beat() is None
            assert beats.last.leader() is not None
            now_s[0] += 1.5
            assert beats.why_not() == "the event loop does not move"
            count = next(run.beat for run in beats.last.runs if run.identity == "own")
            beats.beat()
            assert next(run.beat for run in beats.last.runs if run.identity == "own") == count
            beats.tick()
            store.commit_began_s = now_s[0] - 11.0
            assert beats.why_not() == "a commit does not come to its end"
            store.commit_began_s = None
            with psycopg.connect(url) as connection:
                connection.execute("UPDATE meta SET term = term + 1")
            end = beats.beat()
            assert end is not None
            assert "another scheduler leads in term 2" in str(end)


def test_a_leader_that_does_not_reach_its_store_ends_only_where_another_may_lead(url: str) -> None:
    now_s = [100.0]
    lost = StoreUnavailable("connection timeout expired")
    with closing(open_store(url)), closing(Runs(url, "own")) as runs:
        beats = Beats(runs, replace(OWN, role=LeadingRole.LEADING), DatabaseClock(), dict, lambda: now_s[0])
        beats.beat()
        now_s[0] += 60.0
        assert beats.why_alone(lost) is None, "nobody stands by"
        runs.look(replace(OWN, identity="other", host="m2"))
        beats.beat()
        assert beats.why_alone(lost) is None
        now_s[0] += 11.0
        assert "m2 stands by" in str(beats.why_alone(lost))
        refused = StoreUnavailable('connection to server at "127.0.0.1", port 1 failed: Connection refused')
        assert beats.why_alone(refused) is None, "the server is down for all"
        with psycopg.connect(url, autocommit=True) as connection:
            database = connection.info.dbname
            connection.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on".encode())
        assert beats.why_alone(lost) is None, "none of the servers takes writes, whoever asks"
    assert is_down("FATAL:  the database system is in recovery mode")


def test_whoever_leads_counts_by_the_clock_of_the_database_and_no_wait_ends_when_another_takes_over() -> None:
    counted_us, database_us = [5_000_000], 1_700_000_000_000_000
    clock = DatabaseClock(lambda: counted_us[0])
    clock.heard(4_999_000, 5_001_000, database_us)
    newest = Instant(database_us - 1_000)
    # The wall of this machine is an hour ahead, and nobody asks for it.
    scheduler_clock = SlewedClock(newest, clock.now_us, lambda: counted_us[0])
    assert 0 <= scheduler_clock.now() - database_us < 2_000
    assert scheduler_clock.now() < database_us + HOUR
    counted_us[0] += 1_000_000
    assert clock.now_us() == database_us + 1_000_000
    clock.heard(6_000_000, 9_000_000, database_us + 50_000_000)  # too slow to say anything
    assert clock.now_us() == database_us + 1_000_000
    assert not scheduler_clock.has_stepped
