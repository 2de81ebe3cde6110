"""Watch: the full picture, then every change, without a hole; coalesced for the slow, resumable for the lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from scheduler import watching as hub_module
from scheduler.api.fleet.nodes import shown_node
from scheduler.api.jobs import sent_reasons as told_reasons
from scheduler.api.jobs import watch
from scheduler.api.jobs.reasons import WaitReasons
from scheduler.api.jobs.watch import watch_changes
from scheduler.api.roles import Caller, _caller
from scheduler.engine import PASS_INTERVAL, Changes
from scheduler.policy.explain import WaitReason
from scheduler.policy.forecast import Estimates
from scheduler.state.access import Role
from scheduler.state.events import DrainRequested, ForgetRequested, HoldRequested, JobsSubmitted, WantedJob
from scheduler.state.ids import JobId, NodeName, TokenId
from scheduler.state.indices import Indices
from scheduler.state.jobs import Items
from scheduler.state.specs import Band
from scheduler.state.units import HOUR, SECOND, Span
from scheduler.watching import ChangeHub
from tests.core.fleet import spec
from tests.engine.harness import ALICE, DEADLINE_SECONDS, Harness

Message = scheduler_pb2.WatchResponse
SNAPSHOT, SYNCED = scheduler_pb2.WATCH_EVENT_SNAPSHOT, scheduler_pb2.WATCH_EVENT_SYNCED
CHANGED, REMOVED = scheduler_pb2.WATCH_EVENT_CHANGED, scheduler_pb2.WATCH_EVENT_REMOVED
RESYNC, KEEPALIVE = scheduler_pb2.WATCH_EVENT_RESYNC, scheduler_pb2.WATCH_EVENT_KEEPALIVE
HELD, CANCELLED = job_pb2.JOB_STATE_HELD, job_pb2.JOB_STATE_CANCELLED


class Watched(Harness):
    """An engine whose changes are watched."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.hub = ChangeHub(self.store.term)
        self.engine._publish = self._publish
        self.source: Any = SimpleNamespace(
            engine=self.engine,
            changes=self.hub,
            reasons=WaitReasons(self.engine),
            facts=SimpleNamespace(output_error=lambda: "", output_is_shared=lambda: True),
            node_as_shown=lambda name: shown_node(self.engine, name),
        )

    def _publish(self, changes: Changes) -> None:
        self.changes.append(changes)
        self.hub.publish(changes)

    def watch(self, **fields: Any) -> aclosing[Reader]:
        _caller.set(Caller(user=ALICE, role=Role.ADMIN, token=TokenId("t")))
        return aclosing(Reader(watch_changes(self.source, scheduler_pb2.WatchRequest(**fields))))

    async def hold(self, job: int, *, is_held: bool) -> None:
        """A change of a job."""
        event = HoldRequested(at=self.clock.now(), by=ALICE, jobs=(JobId(job),), is_held=is_held)
        await self.engine.request(event)


class Reader:
    """Takes messages one by one; what it does not take waits."""

    def __init__(self, messages: AsyncIterator[Message]) -> None:
        self._messages: Any = messages

    async def next(self) -> Message:
        async with asyncio.timeout(DEADLINE_SECONDS):
            message: Message = await anext(self._messages)
            return message

    async def until(self, event: int) -> list[Message]:
        """Every message up to and with the next one of this kind."""
        found = [await self.next()]
        while found[-1].event != event:
            found.append(await self.next())
        return found

    async def aclose(self) -> None:
        await self._messages.aclose()


def told(messages: list[Message]) -> list[tuple[int, str]]:
    """Kind and key of each message."""
    return [
        (message.event, message.node.name if message.HasField("node") else str(message.job.id or ""))
        for message in messages
    ]


async def test_the_picture_comes_first_and_then_every_change() -> None:
    watched = Watched()
    async with watched.running():
        node = await watched.join(gpus=1)
        await watched.submit(held=True)
        async with watched.watch(include_nodes=True) as reader:
            assert told(await reader.until(SYNCED)) == [(SNAPSHOT, "1"), (SNAPSHOT, "n1"), (SYNCED, "")]
            await watched.cancel(1)
            ended = await reader.next()
            assert (ended.event, ended.job.state) == (CHANGED, CANCELLED)
            watched.clock.advance(PASS_INTERVAL)
            await watched.submit(spec(gpus=1))
            messages = [await reader.next(), await reader.next()]
            assert told(messages) == [(CHANGED, "2"), (CHANGED, "n1")]
            assert list(messages[1].node.job_ids) == [2], "what it holds is part of a node"
            await watched.started(node, 2)
            assert (await reader.next()).job.state == job_pb2.JOB_STATE_RUNNING
            await watched.exited(node, 2)
            await watched.synced(2)
            messages = [await reader.next(), await reader.next()]
            assert told(messages) == [(CHANGED, "2"), (CHANGED, "n1")]
            assert not messages[1].node.job_ids


async def test_a_node_that_is_suspected_is_a_change_and_one_that_is_forgotten_is_removed() -> None:
    watched = Watched()
    async with watched.running():
        node = await watched.join()
        async with watched.watch(include_nodes=True, skip_snapshot=True) as reader:
            assert told(await reader.until(SYNCED)) == [(SYNCED, "")]
            watched.clock.advance(6 * SECOND)
            watched.engine._last_tick = watched.clock.now()
            await watched.poke()
            suspected = await reader.next()
            assert suspected.node.state == node_pb2.NODE_STATE_SUSPECT
            watched.engine.view.live.nodes[node].is_connected = False
            await watched.engine.request(ForgetRequested(at=watched.clock.now(), by=ALICE, node=node))
            assert told([await reader.next()]) == [(REMOVED, "n1")]


async def test_only_what_was_asked_for_is_told() -> None:
    watched = Watched()
    async with watched.running():
        await watched.join()
        for _ in range(3):
            await watched.submit(held=True)
        async with (
            watched.watch(job_ids=[2, 77]) as one,
            watched.watch(user="bob", include_nodes=True) as bobs,
            watched.watch(user="alice") as hers,
        ):
            assert told(await one.until(SYNCED)) == [(SNAPSHOT, "2"), (SYNCED, "")]
            assert told(await bobs.until(SYNCED)) == [(SNAPSHOT, "n1"), (SYNCED, "")]
            assert len(await hers.until(SYNCED)) == 4
            await watched.cancel(1, 2, 3)
            assert told([await one.next()]) == [(CHANGED, "2")]
            assert [(await hers.next()).job.id for _ in range(3)] == [1, 2, 3]


async def test_a_job_that_is_named_and_has_ended_is_in_the_picture_as_it_ended() -> None:
    watched = Watched()
    async with watched.running():
        for _ in range(3):
            await watched.submit(held=True)
        await watched.cancel(1, 2)
        watched.engine.recently_finished.pop(JobId(2))  # it ended long ago, and only the store knows it
        async with (
            watched.watch(job_ids=[3, 2, 1, 2, 77, -1]) as named,
            watched.watch(job_ids=[1], user="bob") as anothers,
            watched.watch() as everything,
        ):
            picture = await named.until(SYNCED)
            assert told(picture) == [(SNAPSHOT, "3"), (SNAPSHOT, "2"), (SNAPSHOT, "1"), (SYNCED, "")]
            assert [message.job.state for message in picture[1:3]] == [CANCELLED, CANCELLED]
            assert told(await anothers.until(SYNCED)) == [(SYNCED, "")]
            assert told(await everything.until(SYNCED)) == [(SNAPSHOT, "3"), (SYNCED, "")]
            await watched.cancel(3)
            assert told([await named.next()]) == [(CHANGED, "3")], "nothing follows of what had ended"


async def test_an_item_of_an_array_is_told_with_its_index_also_when_all_of_it_ended_long_ago() -> None:
    watched = Watched()
    async with watched.running():
        event = JobsSubmitted(
            at=watched.clock.now(),
            user=ALICE,
            jobs=(WantedJob(spec=spec(), band=Band.NORMAL, is_held=True),),
            items=Items(indices=Indices.of_ranges([range(5, 8)])),
        )
        await watched.engine.request(event)
        async with watched.watch(job_ids=[3]) as reader:
            assert [(each.job.id, each.job.array_index) for each in await reader.until(SYNCED)] == [(3, 6), (0, 0)]
            await watched.cancel(3)
            assert (await reader.next()).job.array_index == 6
        await watched.cancel(1)
        watched.engine.recently_finished.clear()
        async with watched.watch(job_ids=[4, 3]) as reader:
            picture = await reader.until(SYNCED)
            told_of = [(each.job.id, each.job.array_index, each.job.state) for each in picture[:-1]]
            assert told_of == [(4, 7, CANCELLED), (3, 6, CANCELLED)]


async def test_a_slow_reader_gets_the_newest_of_each_job_and_nothing_twice() -> None:
    watched = Watched()
    async with watched.running():
        await watched.submit(held=True)
        await watched.submit(held=True)
        async with watched.watch(skip_snapshot=True) as reader:
            await reader.until(SYNCED)
            for number in range(10):
                await watched.hold(1, is_held=number % 2 == 1)
            await watched.hold(2, is_held=False)
            messages = [await reader.next(), await reader.next()]
            assert [(message.job.id, message.job.version) for message in messages] == [(1, 11), (2, 2)]
            await watched.cancel(1)
            assert (await reader.next()).job.state == CANCELLED


async def test_a_reader_with_too_much_waiting_gets_a_new_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "PENDING_PER_WATCHER", 3)
    watched = Watched()
    async with watched.running(), watched.watch() as reader:
        await reader.until(SYNCED)
        for _ in range(5):
            await watched.submit(held=True)
        await watched.cancel(2)
        messages = await reader.until(SYNCED)
        assert told(messages) == [(RESYNC, ""), *((SNAPSHOT, str(job)) for job in (1, 3, 4, 5)), (SYNCED, "")]
        await watched.cancel(3)
        assert told([await reader.next()]) == [(CHANGED, "3")], "nothing older comes behind the picture"


async def test_what_changes_while_the_picture_is_sent_comes_behind_it() -> None:
    watched = Watched()
    async with watched.running():
        for _ in range(3):
            await watched.submit(held=True)
        async with watched.watch() as reader:
            first = await reader.next()
            await watched.cancel(2)
            await watched.submit(held=True)
            messages = [first, *await reader.until(SYNCED)]
            token = messages[-1].resume_token
            assert told(messages) == [*((SNAPSHOT, str(job)) for job in (1, 2, 3)), (SYNCED, "")]
            behind = [await reader.next(), await reader.next()]
            assert told(behind) == [(CHANGED, "2"), (CHANGED, "4")]
        async with watched.watch(resume_token=token) as reader:
            again = [await reader.next(), await reader.next()]
            assert told(again) == told(behind), "the token of the picture loses nothing of what came during it"


@pytest.mark.parametrize("event", [RESYNC, SNAPSHOT])
async def test_a_job_never_goes_back_after_a_picture(event: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that a picture shows already is not told behind it as if it were newer."""
    monkeypatch.setattr(hub_module, "PENDING_PER_WATCHER", 3)
    watched = Watched()
    async with watched.running():
        await watched.submit(held=True)
        async with watched.watch(resume_token="" if event == SNAPSHOT else "0.5") as reader:
            messages = [await reader.next()]
            assert messages[0].event == event
            for number in range(3):
                await watched.hold(1, is_held=number % 2 == 1)
            messages += await reader.until(SYNCED)
            await watched.cancel(1)
            messages += [await reader.next()]
            while messages[-1].job.state != CANCELLED:
                messages.append(await reader.next())
        versions = [message.job.version for message in messages if message.HasField("job")]
        assert versions == sorted(set(versions))


async def test_a_lost_reader_goes_on_where_it_was() -> None:
    watched = Watched()
    async with watched.running():
        await watched.submit(held=True)
        async with watched.watch() as reader:
            await reader.until(SYNCED)
            await watched.submit(held=True)
            token = (await reader.next()).resume_token
        await watched.hold(1, is_held=False)
        await watched.hold(1, is_held=True)
        await watched.submit(held=True)
        async with watched.watch(resume_token=token) as reader:
            messages = [await reader.next(), await reader.next()]
            assert told(messages) == [(CHANGED, "1"), (CHANGED, "3")], "the newest of each, in order"
            assert messages[0].job.version == 3
            numbers = [int(message.resume_token.partition(".")[2]) for message in messages]
            assert numbers == sorted(numbers)
            await watched.cancel(3)
            assert (await reader.next()).job.state == CANCELLED
        async with watched.watch(resume_token=messages[-1].resume_token) as reader:
            assert (await reader.next()).job.state == CANCELLED


@pytest.mark.parametrize(
    "token",
    [
        pytest.param("1.999", id="from the future"),
        pytest.param("2.0", id="another term"),
        pytest.param("0.0", id="an older term"),
    ],
)
async def test_a_token_that_cannot_be_resumed_brings_a_new_picture(token: str) -> None:
    watched = Watched()
    async with watched.running():
        await watched.submit(held=True)
        async with watched.watch(resume_token=token) as reader:
            assert told(await reader.until(SYNCED)) == [(RESYNC, ""), (SNAPSHOT, "1"), (SYNCED, "")]


async def test_a_token_older_than_what_is_kept_brings_a_new_picture() -> None:
    watched = Watched()
    watched.hub._kept = type(watched.hub._kept)(maxlen=4)
    async with watched.running():
        async with watched.watch() as reader:
            token = (await reader.until(SYNCED))[-1].resume_token
        assert token == "1.0"
        await watched.submit(held=True)
        for number in range(3):
            await watched.hold(1, is_held=number % 2 == 1)
        async with watched.watch(resume_token=token) as reader:
            assert told([await reader.next()]) == [(CHANGED, "1")], "all four are kept"
        await watched.hold(1, is_held=True)
        async with watched.watch(resume_token=token) as reader:
            assert told(await reader.until(SYNCED))[0] == (RESYNC, "")


@pytest.mark.parametrize("token", ["garbage", "1", "1.", ".1", "1.-1", "1.1.1", "١.١", "1." + "9" * 5000, "1.1\n"])
async def test_a_token_that_never_was_one_is_refused(token: str) -> None:
    watched = Watched()
    async with watched.running(), watched.watch(resume_token=token) as reader:
        with pytest.raises(GpufleetError) as refused:
            await reader.next()
    assert refused.value.reason is Reason.RESUME_TOKEN_EXPIRED
    assert refused.value.violations[0].field == "resume_token"


async def test_a_quiet_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "KEEPALIVE_SECONDS", 0.01)
    watched = Watched()
    async with watched.running(), watched.watch() as reader:
        await reader.until(SYNCED)
        for _ in range(3):
            alive = await reader.next()
            assert (alive.event, alive.resume_token) == (KEEPALIVE, "1.0")
        await watched.submit(held=True)
        while (message := await reader.next()).event == KEEPALIVE:
            pass
        assert message.job.state == HELD
        assert message.resume_token == "1.1"
        assert (await reader.next()).resume_token == "1.1"


async def test_a_reader_that_leaves_is_forgotten() -> None:
    watched = Watched()
    async with watched.running():
        readers = [watched.watch() for _ in range(3)]
        for reader in readers:
            async with reader as each:
                await each.until(SYNCED)
                assert len(watched.hub._watchers) == 1
        assert not watched.hub._watchers


async def test_those_who_wait_for_a_job_hear_of_it_and_of_no_other() -> None:
    hub = ChangeHub(1)
    watched = Watched()
    async with watched.running():
        await watched.submit(held=True)
        await watched.submit(held=True)
        first, second = (watched.view.jobs[JobId(number)] for number in (1, 2))
    wakeups = [asyncio.Event() for _ in range(3)]
    hub.follow_job(JobId(1), wakeups[0])
    hub.follow_job(JobId(1), wakeups[1])
    hub.follow_job(JobId(2), wakeups[2])
    hub.publish(Changes(jobs=(first,), nodes=(NodeName("n1"),)))
    assert [each.is_set() for each in wakeups] == [True, True, False]
    hub.unfollow_job(JobId(1), wakeups[0])
    wakeups[0].clear()
    hub.publish(Changes(jobs=(first, second), nodes=()))
    assert [each.is_set() for each in wakeups] == [False, True, True]
    hub.unfollow_job(JobId(1), wakeups[1])
    hub.unfollow_job(JobId(2), wakeups[2])
    hub.unfollow_job(JobId(2), wakeups[2])
    assert not hub._waiting


async def test_why_a_job_waits_is_told_again_when_only_that_changed() -> None:
    watched = Watched()
    async with watched.running():
        node = await watched.join(gpus=1)
        await watched.submit(spec(gpus=1))
        await watched.started(node, 1)
        await watched.submit(spec(gpus=1))
        async with watched.watch(job_ids=[2]) as reader:
            picture = await reader.until(SYNCED)
            assert picture[0].job.wait_reason.sentence == "node n1 has no free GPU (1 in use)"
            await watched.engine.request(
                DrainRequested(at=watched.clock.now(), by=ALICE, node=node, is_draining=True, reason="fan")
            )
            assert watched.engine.awaits_pass
            watched.clock.advance(PASS_INTERVAL)
            again = await reader.next()
            while again.job.wait_reason.sentence != "node n1 drains (fan)":  # that its bound is gone may come before
                again = await reader.next()
            assert (again.event, again.job.id, again.job.version) == (CHANGED, 2, picture[0].job.version)
            assert again.resume_token == "", "it has no place in the row of changes"


async def test_a_reason_that_changes_without_any_change_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_reasons, "LOOK_SECONDS", 0.01)
    watched = Watched()
    clause = ["its samples are old"]
    watched.source.reasons = SimpleNamespace(
        of=lambda jobs: {job.id: WaitReason("SAMPLE_TOO_OLD", clause[0]) for job in jobs}, starts=Estimates, bounds=dict
    )
    async with watched.running():
        await watched.submit()
        async with watched.watch(skip_snapshot=True) as reader:
            await reader.until(SYNCED)
            clause[0] = "its samples are older"
            again = await reader.next()
            assert (again.event, again.job.wait_reason.sentence) == (CHANGED, "its samples are older")


async def test_when_a_job_starts_is_told_and_told_anew_with_the_cause_when_it_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(told_reasons, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(told_reasons, "TIMES_PAUSE_SECONDS", 0.01)
    watched = Watched()
    async with watched.running():
        await watched.join("n1", gpus=1)
        node = await watched.join("n2", gpus=1)
        await watched.submit(spec(gpus=1, time_limit=Span(3 * HOUR)), spec(gpus=1, time_limit=Span(HOUR)))
        await watched.submit(spec(gpus=1, time_limit=Span(HOUR)))
        async with watched.watch(job_ids=[3]) as reader:
            first = await reader.next()
            while not first.job.HasField("latest_start_time"):
                first = await reader.next()
            assert first.job.HasField("estimated_start_time")
            assert first.job.bound_sentence == ""
            await watched.engine.request(
                DrainRequested(at=watched.clock.now(), by=ALICE, node=node, is_draining=True, reason="fan")
            )
            again = await reader.next()
            while not again.job.bound_sentence:
                again = await reader.next()
            assert again.job.bound_sentence.endswith(" later than it was: node n2 drains (fan)")
            assert again.job.latest_start_time.seconds > first.job.latest_start_time.seconds + 3600
            assert again.job.version == first.job.version


async def test_reasons_that_stay_are_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(told_reasons, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(watch, "KEEPALIVE_SECONDS", 0.1)
    watched = Watched()
    async with watched.running():
        await watched.submit(count=3)
        async with watched.watch() as reader:
            assert len(await reader.until(SYNCED)) == 4
            assert told([await reader.next()]) == [(KEEPALIVE, "")]


async def test_one_who_was_away_is_told_every_reason_of_now() -> None:
    watched = Watched()
    async with watched.running():
        await watched.submit(count=2)
        async with watched.watch(skip_snapshot=True) as reader:
            token = (await reader.until(SYNCED))[-1].resume_token
        async with watched.watch(resume_token=token) as reader:
            assert told([await reader.next(), await reader.next()]) == [(CHANGED, "1"), (CHANGED, "2")]


async def test_reasons_are_followed_for_the_first_jobs_of_the_order_that_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(told_reasons, "FOLLOWED_MAX", 2)
    watched = Watched()
    async with watched.running():
        await watched.submit(count=4)
        request = scheduler_pb2.WatchRequest
        reasons = [
            told_reasons.SentReasons(watched.engine, watched.source.reasons, wanted)
            for wanted in (request(), request(user="bob"), request(job_ids=[4, 9]))
        ]
        assert [[job.id for job in each.changed()] for each in reasons] == [[1, 2], [], [4]]
