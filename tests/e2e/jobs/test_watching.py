"""Watch tells every change, survives lost connections and slow readers; Queue pages without gaps."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from tests.e2e.client import Client, refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

SNAPSHOT, SYNCED = scheduler_pb2.WATCH_EVENT_SNAPSHOT, scheduler_pb2.WATCH_EVENT_SYNCED
CHANGED, RESYNC = scheduler_pb2.WATCH_EVENT_CHANGED, scheduler_pb2.WATCH_EVENT_RESYNC


class Watching:
    """One Watch stream."""

    def __init__(self, client: Client, **fields: Any) -> None:
        self.call: Any = client.stub.Watch(scheduler_pb2.WatchRequest(**fields))

    async def next(self) -> scheduler_pb2.WatchResponse:
        """The next message that is no sign of life."""
        while True:
            message: scheduler_pb2.WatchResponse = await asyncio.wait_for(self.call.read(), DEADLINE_SECONDS)
            if message.event != scheduler_pb2.WATCH_EVENT_KEEPALIVE:
                return message

    async def up_to(self, event: scheduler_pb2.WatchEvent.ValueType) -> list[scheduler_pb2.WatchResponse]:
        """Every message up to the first of this kind."""
        messages = [await self.next()]
        while messages[-1].event != event:
            messages.append(await self.next())
        return messages

    async def until_state(self, job_id: int, state: job_pb2.JobState.ValueType) -> list[scheduler_pb2.WatchResponse]:
        """Every message until the job is in this state."""
        messages = [await self.next()]
        while not (messages[-1].job.id == job_id and messages[-1].job.state == state):
            messages.append(await self.next())
        return messages

    def __enter__(self) -> Watching:
        return self

    def __exit__(self, *_: object) -> None:
        self.call.cancel()


async def test_a_watcher_sees_the_present_and_then_every_state(person: Client) -> None:
    held = await person.submit("true", is_held=True)
    with Watching(person, include_nodes=True) as watching:
        first = await watching.up_to(SYNCED)
        assert {message.event for message in first[:-1]} == {SNAPSHOT}
        assert held in {message.job.id for message in first}
        assert "n1" in {message.node.name for message in first}
        job_id = await person.submit("true")
        seen = await watching.until_state(job_id, job_pb2.JOB_STATE_SUCCEEDED)
        states = [message.job.state for message in seen if message.job.id == job_id]
        assert states == sorted(states), "a job never goes back"
        assert {message.event for message in seen} == {CHANGED}
    await person.cancel(held)


async def test_a_watcher_of_one_job_hears_of_no_other(person: Client) -> None:
    wanted = await person.submit("true", is_held=True)
    with Watching(person, job_ids=[wanted], skip_snapshot=True) as watching:
        await watching.up_to(SYNCED)
        await person.run("true")
        await person.cancel(wanted)
        assert (await watching.next()).job.id == wanted


async def test_a_lost_watcher_catches_up_with_its_resume_token(person: Client) -> None:
    with Watching(person, skip_snapshot=True) as watching:
        token = (await watching.up_to(SYNCED))[-1].resume_token
    jobs = [await person.run("true") for _ in range(3)]
    with Watching(person, resume_token=token) as watching:
        seen = await watching.until_state(jobs[-1].id, job_pb2.JOB_STATE_SUCCEEDED)
    assert {message.event for message in seen} == {CHANGED}
    assert {job.id for job in jobs} <= {message.job.id for message in seen}
    tokens = [int(message.resume_token.rpartition(".")[2]) for message in seen]
    assert tokens == sorted(set(tokens))


async def test_a_token_of_before_a_restart_brings_the_full_picture(fleet: Fleet) -> None:
    async with fleet.client() as client:
        held = await client.submit("true", is_held=True)
        with Watching(client, skip_snapshot=True) as watching:
            token = (await watching.up_to(SYNCED))[-1].resume_token
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        with Watching(client, resume_token=token) as watching:
            messages = await watching.up_to(SYNCED)
    assert [message.event for message in messages] == [RESYNC, SNAPSHOT, SYNCED]
    assert messages[1].job.id == held


async def test_a_nonsense_resume_token_is_refused(person: Client) -> None:
    error = await refusal(person.stub.Watch(scheduler_pb2.WatchRequest(resume_token="yesterday")))
    assert error.reason is Reason.RESUME_TOKEN_EXPIRED
    assert error.violations[0].field == "resume_token"


async def test_a_reader_that_is_too_slow_is_told_to_begin_anew(fleet: Fleet, admin: Client) -> None:
    with Watching(admin, skip_snapshot=True) as watching:
        await watching.up_to(SYNCED)
        # More changes than wait for a watcher, and more bytes than the connection buffers, while nobody reads.
        spec = admin.spec("true", "x" * 4_000, is_held=True)
        await admin.submit_specs([spec], count=5_000)
        selector = scheduler_pb2.JobSelector(all_mine=True)
        mask = FieldMask(paths=["band"])
        await admin.stub.UpdateJob(
            scheduler_pb2.UpdateJobRequest(jobs=selector, update_mask=mask, band=job_pb2.BAND_HIGH)
        )
        await watching.up_to(RESYNC)
        picture: dict[int, job_pb2.Job] = {}
        while len(picture) < 5_000:
            message = await watching.next()
            if message.event == RESYNC:
                picture.clear()
            elif message.HasField("job"):
                picture[message.job.id] = message.job
    assert sorted(picture) == list(range(1, 5_001))


async def test_equal_jobs_are_told_one_by_one_and_a_lost_watcher_misses_none(fleet: Fleet, admin: Client) -> None:
    with Watching(admin, skip_snapshot=True) as watching:
        token = (await watching.up_to(SYNCED))[-1].resume_token
        await admin.submit_specs([admin.spec("true", is_held=True)], count=30)
        told = [await watching.next() for _ in range(30)]
    assert [message.job.id for message in told] == list(range(1, 31))
    assert {message.resume_token for message in told[:-1]} == {token}, "cut off in the middle, all are told again"
    with Watching(admin, resume_token=told[10].resume_token) as again:
        assert [(await again.next()).job.id for _ in range(30)] == list(range(1, 31))
    with Watching(admin, resume_token=told[-1].resume_token) as after:
        cancelled = await admin.stub.Cancel(
            scheduler_pb2.CancelRequest(jobs=scheduler_pb2.JobSelector(job_ids=[7]), reason="test")
        )
        assert cancelled.changes[0].changed
        assert (await after.next()).job.id == 7


async def test_pages_of_the_queue_join_without_gap_or_repetition(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--cpus", "4")
    ended = [(await admin.run("true")).id for _ in range(3)]
    bands = [job_pb2.BAND_LOW, job_pb2.BAND_NORMAL, job_pb2.BAND_HIGH]
    await admin.stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node="n1", is_draining=True))
    waiting = [await admin.submit("true", band=bands[number % 3]) for number in range(11)]
    held = [await admin.submit("true", is_held=True) for _ in range(2)]
    whole = [job.id for job in (await admin.queue(include_finished=True)).jobs]
    assert sorted(whole) == sorted(ended + waiting + held)
    assert whole[-3:] == ended[::-1]
    for size in (1, 2, 3, 5, 15, 16, 17):
        pages: list[int] = []
        token = ""
        while True:
            page = await admin.queue(include_finished=True, page_size=size, page_token=token)
            pages += [job.id for job in page.jobs]
            token = page.next_page_token
            assert len(page.jobs) == size or not token
            if not token:
                break
        assert pages == whole, size
    positions = [job.queue_position for job in (await admin.queue(states=[job_pb2.JOB_STATE_QUEUED])).jobs]
    assert positions == list(range(1, 12))


@pytest.mark.parametrize("change", ["cut", "flip", "garbage", "foreign"])
async def test_a_changed_page_token_is_refused(person: Client, change: str) -> None:
    held = [await person.submit("true", is_held=True) for _ in range(3)]
    try:
        token = (await person.queue(page_size=1)).next_page_token
    finally:
        await person.cancel(*held)
    raw = base64.urlsafe_b64decode(token)
    changed = {
        "cut": token[:-4],
        "flip": base64.urlsafe_b64encode(raw[:-2] + bytes([raw[-2] ^ 1]) + raw[-1:]).decode(),
        "garbage": "☃ no token",
        "foreign": token,
    }[change]
    user = "somebody-else" if change == "foreign" else ""
    error = await refusal(person.stub.Queue(scheduler_pb2.QueueRequest(page_size=1, page_token=changed, user=user)))
    assert error.reason is Reason.PAGE_TOKEN_INVALID
    assert error.violations[0].field == "page_token"
    assert error.next_step


async def test_a_page_token_of_before_a_restart_is_refused_and_not_misread(fleet: Fleet) -> None:
    async with fleet.client() as client:
        await client.submit_specs([client.spec("true", is_held=True)], count=3)
        token = (await client.queue(page_size=1)).next_page_token
    fleet.scheduler.kill()
    await fleet.scheduler.start()
    async with fleet.client() as client:
        error = await refusal(client.stub.Queue(scheduler_pb2.QueueRequest(page_size=1, page_token=token)))
    assert error.reason is Reason.PAGE_TOKEN_INVALID


async def test_the_queue_is_filtered_by_user_state_name_and_label(fleet: Fleet, admin: Client) -> None:
    plain = await admin.submit("true", is_held=True)
    labelled = await admin.submit("true", is_held=True, labels={"team": "x"}, name="labelled")
    assert [job.id for job in (await admin.queue(labels={"team": "x"})).jobs] == [labelled]
    assert [job.id for job in (await admin.queue(name="labelled")).jobs] == [labelled]
    assert [job.id for job in (await admin.queue(user="nobody")).jobs] == []
    assert [job.id for job in (await admin.queue(states=[job_pb2.JOB_STATE_HELD])).jobs] == [plain, labelled]
    assert [job.id for job in (await admin.queue(states=[job_pb2.JOB_STATE_RUNNING])).jobs] == []
    assert not (await admin.queue(omit_env=True)).jobs[0].spec.env
    assert (await admin.queue()).counts.held == 2
