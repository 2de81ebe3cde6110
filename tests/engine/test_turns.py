"""A turn of the loop: what shares a commit, what leaves after it, what reads see meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from scheduler.engine import EVENTS_PER_TURN, PASS_INTERVAL, WAITING_EVENTS, StoreAway, TooManyEvents
from scheduler.state.commands import LaunchAttempt
from scheduler.state.events import DrainRequested, ForgetRequested
from scheduler.state.ids import NodeName
from scheduler.state.jobs import Finished, Job, Queued, Running, Starting
from scheduler.state.records import AttemptPlaced, JobQueued
from scheduler.state.replies import NodeGone, Refused
from scheduler.state.units import SECOND
from tests.core.fleet import spec
from tests.engine.harness import ALICE, Harness, eventually

pytestmark = pytest.mark.slow


async def test_an_idle_fleet_queues_and_places_a_job_in_one_commit() -> None:
    harness = Harness()
    async with harness.running():
        await harness.join(gpus=1)
        await harness.advance(SECOND)
        before = len(harness.store.commits)
        await harness.submit(spec(gpus=1))
        assert len(harness.store.commits) == before + 1
        records = harness.store.commits[-1].records
        assert [type(record) for record in records] == [JobQueued, AttemptPlaced]
        assert isinstance(harness.job(1).state, Starting)
        harness.check_agreement()


async def test_many_requests_at_once_share_commits_of_at_most_1024_events() -> None:
    harness = Harness()
    async with harness.running():
        await harness.poke()
        asked = [harness.ask(held=True) for _ in range(2 * EVENTS_PER_TURN + 10)]
        await asyncio.gather(*asked)
        queued = [sum(isinstance(each, JobQueued) for each in commit.records) for commit in harness.store.commits]
        assert queued == [EVENTS_PER_TURN, EVENTS_PER_TURN, 10]
        harness.check_agreement()


async def test_nothing_leaves_before_the_commit_and_reads_see_the_last_one() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        changes = len(harness.changes)
        sent = len(harness.link.sent)
        harness.store.block()
        asked = harness.ask(spec(gpus=1))
        await eventually("the commit is under way", lambda: harness.store.is_blocking)
        for _ in range(20):
            await asyncio.sleep(0)
        assert isinstance(harness.decided.jobs[1].state, Starting)  # type: ignore[index]
        assert not asked.done()
        assert len(harness.link.sent) == sent
        assert len(harness.changes) == changes
        assert not harness.view.jobs
        assert not harness.view.hold(node).devices
        harness.store.unblock()
        await asked
        launch, stream = harness.link.sent[-1]
        assert isinstance(launch, LaunchAttempt)
        assert (launch.key.job, stream) == (1, 1)
        assert harness.link.commits_then[-1] == len(harness.store.commits)
        assert [job.id for job in harness.changes[-1].jobs if isinstance(job, Job)] == [1]
        assert isinstance(harness.view.jobs[1].state, Starting)  # type: ignore[index]


async def test_events_that_come_during_a_commit_wait_for_the_next_turn() -> None:
    harness = Harness()
    async with harness.running():
        await harness.poke()
        harness.store.block()
        first = harness.ask(held=True)
        await eventually("the commit is under way", lambda: harness.store.is_blocking)
        second = harness.ask(held=True)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(harness.decided.jobs) == 1, "the next batch is gathered, not decided"
        harness.store.unblock()
        await asyncio.gather(first, second)
        assert [len(commit.records) for commit in harness.store.commits] == [1, 1]


async def test_a_pass_runs_at_once_when_idle_and_then_at_most_every_5_ms() -> None:
    harness = Harness()
    async with harness.running():
        await harness.join(gpus=2)
        await harness.advance(PASS_INTERVAL)
        await harness.submit(spec(gpus=1))
        assert isinstance(harness.job(1).state, Starting)
        await harness.submit(spec(gpus=1))
        assert isinstance(harness.job(2).state, Queued), "the last pass was less than 5 ms ago"
        await harness.advance(PASS_INTERVAL - 1)
        assert isinstance(harness.job(2).state, Queued)
        await harness.advance(1)
        await eventually("the second job is placed", lambda: isinstance(harness.job(2).state, Starting))


async def test_a_pass_that_is_due_needs_no_further_event() -> None:
    harness = Harness()
    async with harness.running():
        await harness.join(gpus=2)
        await harness.advance(PASS_INTERVAL)
        await harness.submit(spec(gpus=1))
        await harness.submit(spec(gpus=1))
        harness.clock.advance(PASS_INTERVAL)
        await eventually("the second job is placed", lambda: isinstance(harness.job(2).state, Starting))


async def test_a_device_that_a_rank_lingered_on_is_given_away_as_soon_as_the_rank_has_ended() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.advance(PASS_INTERVAL)
        await harness.submit(spec(gpus=1))
        await harness.started(node, 1)
        await harness.cancel(1, abandon=True)
        assert isinstance(harness.job(1).state, Finished)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        assert isinstance(harness.job(2).state, Queued), "the abandoned rank may still live"
        harness.clock.advance(PASS_INTERVAL)
        await harness.exited(node, 1)
        assert isinstance(harness.job(2).state, Starting)


async def test_a_job_from_submit_to_end() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        assert isinstance(harness.job(1).state, Running)
        await harness.exited(node, 1)
        await harness.synced(1)
        ended = harness.job(1).state
        assert isinstance(ended, Finished)
        assert ended.reason == "EXITED"
        assert not harness.view.jobs
        assert harness.engine.recently_finished.keys() == {1}
        job = harness.changes[-1].jobs[0]
        assert isinstance(job, Job)
        assert job.state == ended
        harness.check_agreement()


async def test_a_refused_request_makes_no_commit() -> None:
    harness = Harness()
    async with harness.running():
        await harness.join(gpus=1)
        before = len(harness.store.tries)
        refused = await harness.ask(spec(gpus=2))
        assert isinstance(refused, Refused)
        assert refused.reason == "NEVER_FITS"
        assert len(harness.store.tries) == before


async def test_a_beat_that_changes_nothing_durable_makes_no_commit() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        before = len(harness.store.tries)
        for _ in range(10):
            await harness.advance(SECOND)
            await harness.beat(node)
        assert len(harness.store.tries) == before


async def test_a_node_that_is_forgotten_is_told_to_those_who_watch() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join()
        stream = harness.streams
        await harness.engine.request(DrainRequested(at=harness.clock.now(), by=ALICE, node=node, is_draining=True))
        assert harness.changes[-1].nodes == (node,)
        harness.engine.view.live.nodes[node].is_connected = False
        gone = await harness.engine.request(ForgetRequested(at=harness.clock.now(), by=ALICE, node=node))
        assert isinstance(gone, NodeGone)
        assert harness.changes[-1].nodes == (NodeName("n1"),)
        assert not harness.view.nodes
        assert stream == 1
        harness.check_agreement()


async def test_requests_beyond_the_bound_are_refused_and_change_nothing() -> None:
    harness = Harness()
    async with harness.running():
        await harness.poke()
        harness.store.block()
        first = harness.ask(held=True)
        await eventually("the commit is under way", lambda: harness.store.is_blocking)
        waiting = [harness.ask(held=True) for _ in range(WAITING_EVENTS)]
        with pytest.raises(TooManyEvents):
            harness.ask(held=True)
        harness.store.unblock()
        await first
        await asyncio.gather(*waiting)
        assert len(harness.view.jobs) == WAITING_EVENTS + 1


async def test_stopping_refuses_what_waits_and_finishes_the_turn_under_way() -> None:
    harness = Harness()
    async with harness.running():
        await harness.poke()
        harness.store.block()
        first = harness.ask(held=True)
        await eventually("the commit is under way", lambda: harness.store.is_blocking)
        second = harness.ask(held=True)
        report = harness.synced(1)
        harness.engine.stop()
        harness.store.unblock()
        await first
        with pytest.raises(StoreAway, match="stopping") as refused:
            await second
        assert refused.value.outcome_is_known
        assert harness.task is not None
        await harness.task
        with pytest.raises(StoreAway, match="stopping") as refused:
            harness.ask(held=True)
        assert refused.value.outcome_is_known
        assert not report.done(), "what nobody took up is not acknowledged"
        assert len(harness.restarted().view.jobs) == 1
