"""Deadlines come when the core has asked for them, and a time in which nothing was read counts for nobody."""

from __future__ import annotations

from dataclasses import replace

from scheduler.engine import PASS_INTERVAL, Changes
from scheduler.state.events import ReportedRunning
from scheduler.state.ids import JobId, NodeName, RankKey
from scheduler.state.jobs import Queued, Running
from scheduler.state.limits import Limits
from scheduler.state.nodes import Reachability
from scheduler.state.records import AttemptEnded, AttemptUnreachable, NodeLost, NodeReturned, Record
from scheduler.state.units import MILLISECOND, MINUTE, SECOND, Span
from tests.core.fleet import spec
from tests.engine.fakes import RunningClock
from tests.engine.harness import Harness, eventually

LIMITS = Limits()


def kinds(harness: Harness, since: int) -> list[type[Record]]:
    """What was stored from a record on."""
    return [type(each.record) for each in harness.store.records[since:]]


def reach(harness: Harness, node: NodeName) -> Reachability:
    return harness.engine.view.live.nodes[node].reach


async def pass_time(harness: Harness, span: int, *beating: NodeName) -> None:
    """Let time pass second by second, in which these nodes beat and the loop never sleeps."""
    for _ in range(span // SECOND):
        harness.clock.advance(SECOND)
        harness.engine._notice_gap()
        for node in beating:
            await harness.beat(node)
        await harness.poke()
        await harness.poke()


async def test_a_silent_node_is_suspected_then_lost_then_its_job_is_queued_again() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        stored = len(harness.store.records)
        await pass_time(harness, 5 * SECOND)
        assert reach(harness, node) is Reachability.READY
        await pass_time(harness, SECOND)
        assert reach(harness, node) is Reachability.SUSPECT
        assert harness.changes[-1] == Changes(jobs=(), nodes=(node,))
        assert kinds(harness, stored) == []
        await pass_time(harness, LIMITS.node_lease - 6 * SECOND)
        assert kinds(harness, stored) == [NodeLost, AttemptUnreachable]
        assert harness.job(1).attempt is not None
        await pass_time(harness, LIMITS.requeue_fence - LIMITS.node_lease - SECOND)
        assert isinstance(harness.job(1).state, Running)
        await pass_time(harness, SECOND)
        assert kinds(harness, stored)[2:] == [AttemptEnded]
        assert isinstance(harness.job(1).state, Queued)
        harness.check_agreement()


async def test_deadlines_come_without_any_event() -> None:
    harness = Harness(
        clock=RunningClock(),
        limits=Limits(
            heartbeat_interval=Span(20 * MILLISECOND),
            node_lease=Span(150 * MILLISECOND),
            requeue_fence=Span(300 * MILLISECOND),
        ),
    )
    async with harness.running():
        node = await harness.join()
        await harness.submit(spec())
        await eventually("the job is placed", lambda: harness.job(1).attempt is not None)
        await eventually("the node is suspected", lambda: reach(harness, node) is Reachability.SUSPECT)
        await eventually("the node is lost", lambda: harness.view.nodes[node].is_lost)
        await eventually("the job is queued again", lambda: isinstance(harness.job(1).state, Queued))
        harness.check_agreement()


async def test_a_node_that_is_heard_again_is_suspected_again_in_time() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        for _ in range(3):
            await pass_time(harness, 6 * SECOND)
            assert reach(harness, node) is Reachability.SUSPECT
            await harness.beat(node)
            assert reach(harness, node) is Reachability.READY
            assert harness.changes[-1] == Changes(jobs=(), nodes=(node,))


async def test_a_node_that_goes_on_beating_is_never_suspected() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        stored, told = len(harness.store.records), len(harness.changes)
        await pass_time(harness, 12 * MINUTE, node)
        assert kinds(harness, stored) == []
        assert harness.changes[told:] == []


async def test_a_lost_node_that_is_heard_again_is_back_with_its_job() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        await pass_time(harness, 2 * MINUTE)
        assert harness.view.nodes[node].is_lost
        stored = len(harness.store.records)
        await harness.beat(node)
        assert kinds(harness, stored) == [NodeReturned, AttemptUnreachable]
        assert isinstance(harness.job(1).state, Running)
        await pass_time(harness, 11 * MINUTE, node)
        assert isinstance(harness.job(1).state, Running)
        harness.check_agreement()


async def test_a_time_in_which_nothing_was_read_blames_no_node() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        stored = len(harness.store.records)
        await pass_time(harness, 2 * SECOND)
        await harness.advance(30 * MINUTE)  # the machine slept
        await harness.poke()
        await harness.poke()
        assert kinds(harness, stored) == []
        assert reach(harness, node) is Reachability.READY
        await pass_time(harness, 4 * SECOND)
        assert reach(harness, node) is Reachability.SUSPECT, "what was left of its span goes on"
        assert kinds(harness, stored) == []


async def test_a_start_begins_every_span_anew() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
    harness.clock.advance(30 * MINUTE)
    again = harness.restarted()
    async with again.running():
        await again.poke()
        stored = len(again.store.records)
        assert reach(again, node) is Reachability.SUSPECT
        assert isinstance(again.job(1).state, Running)
        await pass_time(again, 9 * MINUTE)
        assert kinds(again, stored) == [NodeLost, AttemptUnreachable]
        running = ((RankKey(JobId(1), 1, 0), ReportedRunning(run_span=Span(39 * MINUTE))),)
        await again.inventory(node, running)
        assert kinds(again, stored)[2:] == [NodeReturned, AttemptUnreachable]
        await pass_time(again, 20 * MINUTE, node)
        assert isinstance(again.job(1).state, Running)
        again.check_agreement()


async def test_other_limits_hold_at_once_and_bring_their_deadlines() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join()
        await pass_time(harness, 10 * SECOND)
        assert not harness.view.nodes[node].is_lost
        harness.engine.set_limits(replace(LIMITS, node_lease=Span(9 * SECOND)))
        await eventually("the node is lost", lambda: harness.view.nodes[node].is_lost)


async def test_the_loop_rests_when_there_is_nothing_to_do() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await pass_time(harness, 20 * MINUTE)
        assert harness.view.nodes[node].is_lost
        turns = 0
        take_turn = harness.engine._turn

        async def count() -> None:
            nonlocal turns
            turns += 1
            await take_turn()

        harness.engine._turn = count  # type: ignore[method-assign]
        for _ in range(5):
            await harness.poke()
        assert turns <= 12, "no deadline is asked for again and again"
