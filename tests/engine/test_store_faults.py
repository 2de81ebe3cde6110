"""A store that fails: the commit is tried again as it is, nothing is rolled back, and nobody is told a lie."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.engine import PASS_INTERVAL, StoreAway
from scheduler.state.commands import LaunchAttempt
from scheduler.state.ids import RankKey
from scheduler.state.jobs import Finished, Running, Starting
from scheduler.state.nodes import Reach
from scheduler.state.records import JobFinished
from scheduler.state.replies import Submitted
from scheduler.state.units import MINUTE, SECOND
from scheduler.store.errors import StoreCorrupt, StoreError, StoreUnavailable, TermSuperseded
from tests.core.fleet import spec
from tests.engine.fakes import FakeStore
from tests.engine.harness import DEADLINE_SECONDS, Harness, eventually

ALWAYS = 10**9


async def away(harness: Harness) -> None:
    """The store has failed at least once."""
    await eventually("the store is away", lambda: harness.engine.store_error)


async def back(harness: Harness) -> None:
    """The store works again, and the engine has noticed."""
    harness.store.failures = 0
    await eventually("the store is back", lambda: not harness.engine.store_error)


async def test_a_failed_commit_is_tried_again_as_it_is() -> None:
    harness = Harness(FakeStore(failures=3))
    async with harness.running():
        with pytest.raises(StoreAway, match="disk full") as unknown:
            await harness.ask(held=True)
        assert not unknown.value.outcome_is_known
        await eventually("the store is back", lambda: harness.store.commits and not harness.engine.store_error)
        assert len(harness.store.tries) == 4
        assert all(each is harness.store.tries[0] for each in harness.store.tries)
        assert harness.view.jobs.keys() == {1}
        harness.check_agreement()


async def test_a_request_caught_in_a_failure_is_done_once_when_it_is_sent_again_with_its_id() -> None:
    harness = Harness(FakeStore(failures=1))
    async with harness.running():
        with pytest.raises(StoreAway):
            await harness.ask(held=True, request_id="once")
        await back(harness)
        again = await harness.ask(held=True, request_id="once")
        assert isinstance(again, Submitted)
        assert again.first == 1
        assert harness.view.jobs.keys() == {1}


async def test_a_commit_whose_answer_was_lost_is_not_applied_twice() -> None:
    harness = Harness(FakeStore(lost_answers=1))
    async with harness.running():
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        await back(harness)
        assert len(harness.store.tries) == 2
        assert len(harness.store.commits) == 1
        await harness.submit(held=True)
        assert harness.view.jobs.keys() == {1, 2}
        harness.check_agreement()


async def test_requests_behind_a_failed_commit_are_refused_and_change_nothing() -> None:
    harness = Harness()
    async with harness.running():
        await harness.poke()
        harness.store.block()
        harness.store.failures = ALWAYS
        caught = harness.ask(held=True)
        await eventually("the commit is under way", lambda: harness.store.is_blocking)
        behind = harness.ask(held=True)
        harness.store.unblock()
        for waiting, is_known in ((caught, False), (behind, True)):
            with pytest.raises(StoreAway, match="disk full") as error:
                await waiting
            assert error.value.outcome_is_known is is_known
        with pytest.raises(StoreAway) as error:
            harness.ask(held=True)
        assert error.value.outcome_is_known
        assert not harness.view.jobs, "reads see what is stored"
        await back(harness)
        assert harness.view.jobs.keys() == {1}
        assert await harness.submit(held=True) == 2, "no number was spent on what was refused"
    assert harness.restarted().view.jobs.keys() == {1, 2}


async def test_a_crash_while_the_store_is_away_leaves_no_trace_of_what_was_refused_or_unknown() -> None:
    harness = Harness(FakeStore(failures=ALWAYS))
    async with harness.running():
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        assert harness.decided.jobs.keys() == {1}
        after_crash = harness.restarted()
        assert not after_crash.view.jobs
        assert not after_crash.decided.jobs


async def test_reports_wait_for_a_store_that_is_away_and_are_acknowledged_only_after() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        harness.store.failures = ALWAYS
        started = harness.started(node, 1)
        await away(harness)
        exited, synced = harness.exited(node, 1), harness.synced(1)
        tries = len(harness.store.tries)
        await eventually("it is tried again", lambda: len(harness.store.tries) > tries + 2)
        assert not any(report.done() for report in (started, exited, synced))
        assert isinstance(harness.job(1).state, Starting)
        await back(harness)
        await asyncio.gather(started, exited, synced)
        assert isinstance(harness.job(1).state, Finished)
        assert isinstance(harness.store.records[-1].record, JobFinished)
        harness.check_agreement()


async def test_a_command_of_a_commit_that_fails_leaves_once_and_only_after_it() -> None:
    harness = Harness()
    async with harness.running():
        await harness.join(gpus=1)
        await harness.advance(PASS_INTERVAL)
        sent = len(harness.link.sent)
        harness.store.failures = 3
        with pytest.raises(StoreAway):
            await harness.ask(spec(gpus=1))
        assert len(harness.link.sent) == sent
        await back(harness)
        await harness.poke()
        launches = [command for command, _ in harness.link.sent if isinstance(command, LaunchAttempt)]
        assert [launch.key for launch in launches] == [RankKey(1, 1, 0)]  # type: ignore[arg-type]


async def test_an_outage_longer_than_the_fence_loses_no_node_that_goes_on_beating() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        harness.store.failures = ALWAYS
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        for _ in range(30 * 60 // 2):
            harness.clock.advance(2 * SECOND)
            await harness.beat(node)
        assert harness.clock.now() - harness.engine.view.live.nodes[node].heard_at == 0
        harness.engine._notice_gap()
        await back(harness)
        await harness.poke()
        await harness.poke()
        assert not harness.view.nodes[node].is_lost
        assert harness.engine.view.live.nodes[node].reach is Reach.READY
        assert isinstance(harness.job(1).state, Running)
        assert harness.job(1).attempt_count == 1
        harness.check_agreement()


async def test_a_beat_that_marks_a_device_is_heard_without_the_store_and_the_next_one_behind_it_marks() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        harness.store.failures = ALWAYS
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        for _ in range(3):
            await harness.beat(node, unhealthy="XID 79")
        assert not harness.view.nodes[node].unhealthy
        await back(harness)
        await harness.beat(node, unhealthy="XID 79")
        assert [device.reason for device in harness.view.nodes[node].unhealthy] == ["XID 79"]
        harness.check_agreement()


@pytest.mark.parametrize("error", [TermSuperseded("term 2 has the store"), StoreCorrupt("entity job 1: bad payload")])
async def test_a_store_that_is_no_longer_ours_ends_the_loop_naming_it(error: StoreError) -> None:
    harness = Harness(FakeStore(error=error))
    run = asyncio.create_task(harness.engine.run())
    try:
        with pytest.raises(StoreAway) as unknown:
            await harness.ask(held=True)
        assert not unknown.value.outcome_is_known
        with pytest.raises(type(error), match=str(error)):
            await run
        assert not harness.view.jobs
        with pytest.raises(StoreAway, match="stopping"):
            harness.ask(held=True)
    finally:
        harness.engine.close()


async def test_a_program_that_is_told_to_stop_does_not_wait_for_a_store_that_is_away() -> None:
    harness = Harness(FakeStore(failures=ALWAYS))
    run = asyncio.create_task(harness.engine.run())
    try:
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        harness.engine.stop()
        await asyncio.wait_for(run, DEADLINE_SECONDS)
        assert not harness.changes
        assert not harness.view.jobs
    finally:
        harness.engine.close()


async def test_a_read_that_fails_says_so_and_the_loop_goes_on() -> None:
    harness = Harness()

    def fails() -> None:
        raise StoreUnavailable("no connection")

    async with harness.running():
        with pytest.raises(StoreUnavailable, match="no connection"):
            await harness.engine.on_store_thread(fails)
        assert await harness.submit(held=True) == 1


async def test_a_slow_commit_blocks_no_beat_and_no_read() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        harness.store.block()
        asked = harness.ask(held=True)
        await eventually("the commit is under way", lambda: harness.store.is_blocking)
        beats = []
        for _ in range(10 * 60 // 2):
            harness.clock.advance(2 * SECOND)
            beats.append(harness.beat(node))
        assert not harness.view.jobs
        harness.engine._notice_gap()
        harness.store.unblock()
        await asyncio.gather(asked, *beats)
        await harness.poke()
        assert not harness.view.nodes[node].is_lost
        assert harness.clock.now() - harness.engine.view.live.nodes[node].heard_at < MINUTE
