"""A store that fails: the commit is tried again as it is, nothing is rolled back, and nobody is told a lie."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from gpufleet.jobs.runs import ExitSignal, StopCause
from scheduler.api.jobs.shown import output_blocked
from scheduler.engine import PASS_INTERVAL, Changes, StoreAway
from scheduler.state.attempts import RankExit
from scheduler.state.commands import LaunchAttempt, SignalAttempt, StopAttempt
from scheduler.state.events import (
    JobsSubmitted,
    ReportedExited,
    ReportedRunning,
    SignalRequested,
    SpoolFilled,
    WantedJob,
)
from scheduler.state.ids import JobId, RankKey
from scheduler.state.indices import Indices
from scheduler.state.jobs import Finished, Held, Items, Job, Running, Starting, Stopping
from scheduler.state.nodes import Reachability
from scheduler.state.records import AttemptStopping, JobFinished, SignalSent
from scheduler.state.replies import JobsChanged, Reply, Submitted
from scheduler.state.specs import Band, Outcome
from scheduler.state.units import MINUTE, SECOND, Span
from scheduler.store.errors import StoreCorrupt, StoreError, StoreUnavailable, TermSuperseded
from tests.core.fleet import spec
from tests.engine.fakes import FakeStore
from tests.engine.harness import ALICE, DEADLINE_SECONDS, Harness, eventually

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
        assert harness.engine.view.live.nodes[node].reach is Reachability.READY
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


async def with_a_job_each_and_no_store(harness: Harness) -> int:
    """Job 1 runs, and the store fails from now on. Answers the id of a second job, which is held."""
    node = await harness.join(gpus=1)
    await harness.submit(spec(gpus=1))
    await harness.advance(PASS_INTERVAL)
    await harness.started(node, 1)
    held = await harness.submit(held=True)
    harness.store.failures = ALWAYS
    with pytest.raises(StoreAway):
        await harness.ask(held=True)
    await away(harness)
    return held


async def test_a_cancellation_is_told_before_it_is_stored_once_decided_when_the_store_is_back() -> None:
    harness = Harness()
    async with harness.running():
        waits = await with_a_job_each_and_no_store(harness)
        told = await harness.cancel(1, waits)
        again = await harness.cancel(1)
        assert isinstance(told, JobsChanged) and isinstance(again, JobsChanged)
        assert [change.changed for change in (*told.changes, *again.changes)] == [True, False, True]
        assert told.changes[0].message == "job 1 is told to stop; not yet stored: disk full"
        assert told.changes[1].message == f"job {waits} is left as it is: the store takes no commits (disk full)"
        stops = [command for command, _ in harness.link.sent if isinstance(command, StopAttempt)]
        assert [stop.cause for stop in stops] == [StopCause.CANCELLED] * 2, "told twice it is one Stop"
        assert isinstance(harness.job(1).state, Running), "nothing is shown as done that is not stored"
        with pytest.raises(StoreAway):
            await harness.cancel(waits)
        with pytest.raises(StoreAway):
            await harness.cancel(1, abandon=True)
        await back(harness)
        await harness.poke()
        assert isinstance(harness.job(1).state, Stopping)
        assert isinstance(harness.job(waits).state, Held), "what was refused changed nothing"
        assert (
            sum(isinstance(record, AttemptStopping) for each in harness.store.commits for record in each.records) == 1
        )
        harness.check_agreement()


async def test_a_cancellation_that_is_caught_in_the_commit_that_fails_is_told_as_well() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        harness.store.failures = ALWAYS
        told = await harness.cancel(1)
        assert isinstance(told, JobsChanged) and "not yet stored" in told.changes[0].message
        assert any(isinstance(command, StopAttempt) for command, _ in harness.link.sent)
        await back(harness)
        await eventually("it is stored", lambda: isinstance(harness.job(1).state, Stopping))
        harness.check_agreement()


async def test_a_scheduler_killed_between_telling_and_storing_ends_the_job_as_cancelled_and_runs_it_once() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(replace(spec(gpus=1), retries=3))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        harness.store.failures = ALWAYS
        await harness.cancel(1)
        after_crash = harness.restarted()
    after_crash.store.failures = 0
    async with after_crash.running():
        assert isinstance(after_crash.job(1).state, Running)
        exit_ = RankExit(exit=ExitSignal(signal=15), reason="SIGNALLED", stop_cause=StopCause.CANCELLED)
        await after_crash.inventory(node, [(RankKey(JobId(1), 1, 0), ReportedExited(exit=exit_))])
        await after_crash.synced(1)
        await after_crash.advance(PASS_INTERVAL)
        ended = after_crash.job(1)
        assert isinstance(ended.state, Finished) and ended.state.outcome is Outcome.CANCELLED
        assert ended.attempt_count == 1


async def test_a_job_that_is_held_in_its_write_is_told_to_watchers_at_once_with_and_without_a_store() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        key = RankKey(JobId(1), 1, 0)

        def told() -> list[str]:
            return [output_blocked(job, harness.engine.view, "") for each in harness.changes for job in jobs_in(each)]

        def full(is_full: bool) -> SpoolFilled:
            return SpoolFilled(at=harness.clock.now(), node=node, key=key, is_full=is_full, message="the disk is full")

        why = "it is held in its write until there is room on node n1: the disk is full"
        harness.changes.clear()
        await harness.engine.report(full(True))
        await eventually("it is told", lambda: told() == [why])
        await harness.engine.report(full(False))
        await eventually("its end is told", lambda: told() == [""] * 2)
        harness.store.failures = ALWAYS
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        await away(harness)
        harness.changes.clear()
        waits = harness.engine.report(full(True))
        assert told() == [why] and not waits.done(), "its line in the story waits for the store"
        await back(harness)
        await waits
        seen = ReportedRunning(run_span=Span(SECOND), output_blocked="")
        await harness.inventory(node, [(key, seen)])
        await eventually("an inventory tells it as well", lambda: told()[-1] == "")
        assert not harness.engine.view.live.blocked


def jobs_in(changes: Changes) -> list[Job]:
    return [each for each in changes.jobs if isinstance(each, Job)]


def signals(harness: Harness) -> list[SignalAttempt]:
    return [command for command, _ in harness.link.sent if isinstance(command, SignalAttempt)]


def ask_signal(harness: Harness, *jobs: int, request_id: str = "") -> asyncio.Future[Reply]:
    ids = tuple(map(JobId, jobs))
    return harness.engine.request(
        SignalRequested(
            at=harness.clock.now(), by=ALICE, jobs=ids, signal=10, request_id=request_id, request_digest=request_id
        )
    )


def signals_stored(harness: Harness) -> int:
    return sum(isinstance(record, SignalSent) for each in harness.store.commits for record in each.records)


async def test_a_signal_is_sent_once_before_it_is_stored_and_stored_when_the_store_is_back() -> None:
    harness = Harness()
    async with harness.running():
        waits = await with_a_job_each_and_no_store(harness)
        told = await ask_signal(harness, 1, waits, request_id="once")
        again = await ask_signal(harness, 1, waits, request_id="once")
        assert isinstance(told, JobsChanged) and isinstance(again, JobsChanged)
        assert [change.message for change in (*told.changes, again.changes[0])] == [
            "signal 10 is sent to job 1; not yet stored: disk full",
            f"job {waits} does not run",
            "job 1 was signalled before by this request",
        ]
        with pytest.raises(StoreAway):
            await ask_signal(harness, waits)
        assert len(signals(harness)) == 1
        await back(harness)
        await harness.poke()
        assert (len(signals(harness)), signals_stored(harness)) == (1, 1)
        remembered = await ask_signal(harness, 1, request_id="once")
        assert isinstance(remembered, JobsChanged) and not remembered.changes[0].changed
        assert len(signals(harness)) == 1
        await ask_signal(harness, 1)
        assert (len(signals(harness)), signals_stored(harness)) == (2, 2)
        harness.check_agreement()


async def test_a_signal_that_is_caught_in_the_commit_that_fails_is_sent_once() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=1)
        await harness.submit(spec(gpus=1))
        await harness.advance(PASS_INTERVAL)
        await harness.started(node, 1)
        harness.store.failures = ALWAYS
        told = await ask_signal(harness, 1, request_id="once")
        assert isinstance(told, JobsChanged) and "not yet stored" in told.changes[0].message
        again = await ask_signal(harness, 1, request_id="once")
        assert isinstance(again, JobsChanged) and not again.changes[0].changed
        await back(harness)
        await harness.poke()
        assert (len(signals(harness)), signals_stored(harness)) == (1, 1)
        harness.check_agreement()


async def test_an_array_is_cancelled_without_a_store_what_runs_at_once_and_the_rest_when_it_is_back() -> None:
    harness = Harness()
    async with harness.running():
        node = await harness.join(gpus=2)
        submitted = JobsSubmitted(
            at=harness.clock.now(),
            user=ALICE,
            jobs=(WantedJob(spec=spec(gpus=1), band=Band.NORMAL),),
            items=Items(indices=Indices.of_ranges([range(1, 5)])),
        )
        reply = await harness.engine.request(submitted)
        assert isinstance(reply, Submitted)
        array = reply.first
        await harness.advance(PASS_INTERVAL)
        for item in (array + 1, array + 2):
            await harness.started(node, item)
        harness.store.failures = ALWAYS
        with pytest.raises(StoreAway):
            await harness.ask(held=True)
        await away(harness)
        told = await harness.cancel(array)
        assert isinstance(told, JobsChanged)
        (change,) = told.changes
        assert change.changed and change.message == (
            f"array {array}: 2 items are told to stop, the others are cancelled when there is room;"
            " not yet stored: disk full"
        )
        stops = [command for command, _ in harness.link.sent if isinstance(command, StopAttempt)]
        assert [stop.key.job for stop in stops] == [array + 1, array + 2]
        of_item = await harness.cancel(array + 2)
        assert isinstance(of_item, JobsChanged) and of_item.changes[0].changed, "one item by itself is told as well"
        await back(harness)
        await harness.poke()
        assert all(isinstance(harness.job(array + number).state, Stopping) for number in (1, 2))
        assert harness.view.lines.count == 0, "none of the others can start"
        harness.check_agreement()
