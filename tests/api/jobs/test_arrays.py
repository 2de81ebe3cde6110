"""Arrays through the contract: one line however many items, pages of items, and everything that a job can do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from google.protobuf.field_mask_pb2 import FieldMask
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, InvalidRequestError, Reason
from tests.e2e.client import Client, refusal, select
from tests.e2e.processes import DEADLINE_SECONDS, until

Item = scheduler_pb2.ArrayItem
SUCCEEDED, FAILED = job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED
CANCELLED, HELD = job_pb2.JOB_STATE_CANCELLED, job_pb2.JOB_STATE_HELD


async def submit(
    admin: Client, script: str, indices: str, *, cap: int = 0, max_fails: int = 0, **fields: object
) -> int:
    array = job_pb2.ArraySpec(indices=indices, max_active_count=cap, max_fails=max_fails)
    return await admin.submit("sh", "-c", script, array=array, **fields)


async def items(admin: Client, array: int, **fields: object) -> list[Item]:
    found: list[Item] = []
    token = ""
    while True:
        request = scheduler_pb2.ListArrayItemsRequest(job_id=array, page_token=token, **fields)  # type: ignore[arg-type]
        page = await admin.stub.ListArrayItems(request, timeout=DEADLINE_SECONDS)
        found += page.items
        token = page.next_page_token
        if not token:
            return found


async def rerun(admin: Client, job: int) -> scheduler_pb2.SubmitResponse:
    request = scheduler_pb2.SubmitRequest(rerun_failed_job_id=job)
    return await admin.stub.Submit(request, timeout=DEADLINE_SECONDS)


def field_of(error: GpufleetError) -> str:
    assert isinstance(error, InvalidRequestError)
    return error.violations[0].field


def states(found: Sequence[Item]) -> dict[int, job_pb2.JobState.ValueType]:
    return {item.index: item.state for item in found}


async def test_an_array_runs_each_index_once_and_ends_with_the_highest_code(admin: Client) -> None:
    array = await submit(
        admin,
        'echo "$GPUFLEET_ARRAY_ID.$GPUFLEET_ARRAY_INDEX $GPUFLEET_JOB_ID"; exit $((GPUFLEET_ARRAY_INDEX % 4))',
        "2,4-8:2,9",
    )
    ended = await admin.wait(array)
    assert (ended.state, ended.exit.code, ended.exit_reason) == (FAILED, 2, "ITEMS_ENDED")
    assert ended.spec.array.indices == "2,4-8:2,9" and not ended.attempts
    counts = ended.array_counts
    assert (counts.items, counts.succeeded, counts.failed) == (5, 2, 3)
    found = await items(admin, array, page_size=2)
    assert [(item.index, item.job_id - array, item.exit.code) for item in found] == [
        (2, 1, 2),
        (4, 2, 0),
        (6, 3, 2),
        (8, 4, 0),
        (9, 5, 1),
    ]
    for item in found:
        assert await admin.stdout(item.job_id) == f"{array}.{item.index} {item.job_id}\n".encode()
    one = await admin.job(found[-1].job_id)
    assert (one.array_id, one.array_index, one.exit.code) == (array, 9, 1)
    assert await admin.story(array) == [
        f"Array {array} of 5 items was submitted by {ended.user} in band normal.",
        *_end(array),
    ]
    assert (await admin.story(one.id))[0] == f"Array {array} of 5 items was submitted by {ended.user} in band normal."


def _end(array: int) -> list[str]:
    return [f"Job {array} failed (of 5 items 3 failed, 2 succeeded)."]


async def test_the_queue_has_one_line_for_an_array_on_whatever_page(admin: Client) -> None:
    first = await submit(admin, "true", "1-300", is_held=True, name="many")
    one_gpu = [job_pb2.DeviceRequest(count=1)]
    second = await submit(admin, "sleep 60", "1-300", cap=1, devices=one_gpu, name="running")
    third = await submit(admin, "true", "1-3000", cap=0, begin_time=_in_an_hour(), name="later")
    blocked = await submit(admin, "true", "7-9", devices=[job_pb2.DeviceRequest(count=2)], is_held=True, name="small")
    try:
        await admin.wait(second, job_pb2.JOB_STATE_RUNNING)
        await admin.stub.UpdateJob(
            scheduler_pb2.UpdateJobRequest(jobs=select(blocked + 2), update_mask=FieldMask(paths=["is_held"]))
        )
        shown: list[job_pb2.Job] = []
        token = ""
        while True:
            page = await admin.queue(page_size=1, page_token=token)
            shown += page.jobs
            token = page.next_page_token
            if not token:
                break
        lines = [(job.id, job.spec.name) for job in shown if job.id in (first, second, third, blocked)]
        assert sorted(lines) == [(first, "many"), (second, "running"), (third, "later"), (blocked, "small")]
        of = {job.id: job for job in shown}
        assert not [job.id for job in shown if job.array_id]
        assert of[second].array_counts.running == 1 and of[second].array_counts.queued == 299
        assert "1 of at most 1 at a time" in of[second].wait_reason.sentence
        assert (of[first].state, of[first].array_counts.held) == (HELD, 300)
        assert of[third].state == job_pb2.JOB_STATE_QUEUED and of[third].wait_reason.reason == "BEGIN_TIME"
        assert page.counts.held >= 302 and page.counts.queued >= 3299
        held = await admin.queue(states=[HELD])
        assert {first} <= {job.id for job in held.jobs} and second not in {job.id for job in held.jobs}
        assert [job.id for job in (await admin.queue(name="many")).jobs] == [first]
    finally:
        await admin.cancel(first, second, third, blocked)
    for array in (first, second, third, blocked):
        await admin.wait(array)
    ended = (await admin.queue(include_finished=True, states=[CANCELLED], name="many")).jobs
    assert first in [job.id for job in ended] and not [job for job in ended if job.array_id]


def _in_an_hour() -> object:
    from google.protobuf.timestamp_pb2 import Timestamp

    time = Timestamp()
    time.GetCurrentTime()
    time.seconds += 3600
    return time


async def test_items_that_were_cancelled_at_once_can_be_asked_for_each(admin: Client) -> None:
    array = await submit(admin, "true", "0-99", is_held=True)
    changes = await admin.cancel(array, reason="wrong data")
    assert [(change.job_id, change.changed, change.state) for change in changes] == [(array, True, CANCELLED)]
    assert "100 items are cancelled" in changes[0].message
    found = await items(admin, array, first_index=40, last_index=44)
    assert [(item.index, item.state, item.exit_reason) for item in found] == [
        (index, CANCELLED, "CANCELLED") for index in range(40, 45)
    ]
    item = await admin.job(found[0].job_id)
    assert (item.array_id, item.array_index, item.state) == (array, 40, CANCELLED)
    assert item.exit_message == f"cancelled by {item.user}: wrong data"
    assert (await admin.story(item.id))[
        -1
    ] == f"100 waiting items of array {array} were cancelled by {item.user}: wrong data."
    gone = await refusal(admin.stub.GetJob(scheduler_pb2.GetJobRequest(job_id=array + 10**9)))
    assert gone.reason is Reason.JOB_NOT_FOUND


async def test_too_many_failures_cancel_the_rest_and_what_failed_is_run_again(admin: Client) -> None:
    array = await submit(admin, "test -e flag || exit 3", "1-40", cap=1, max_fails=2)
    ended = await admin.wait(array)
    assert (ended.state, ended.array_counts.failed, ended.array_counts.cancelled) == (FAILED, 2, 38)
    assert (await admin.job(array + 40)).exit_reason == "MAX_FAILS"
    assert states(await items(admin, array, states=[FAILED])) == {1: FAILED, 2: FAILED}
    (admin.cwd / "flag").touch()
    try:
        again = await rerun(admin, array)
        assert (again.count, again.job.spec.array.indices, again.job.spec.array.max_fails) == (1, "1-2", 2)
        assert list(again.job.spec.argv) == list(ended.spec.argv) and again.job.spec.cwd == ended.spec.cwd
        assert (await admin.wait(again.first_job_id)).state == SUCCEEDED
        assert (await refusal(_awaited(rerun(admin, again.first_job_id)))).reason is Reason.NOTHING_FAILED
        one = await rerun(admin, array + 2)
        assert one.job.spec.array.indices == "2" and (await admin.wait(one.first_job_id)).state == SUCCEEDED
    finally:
        (admin.cwd / "flag").unlink()


async def _awaited(call: object) -> object:
    return await call  # type: ignore[misc]


async def test_a_plain_job_that_failed_is_run_again_as_it_was(admin: Client) -> None:
    failed = await admin.run("sh", "-c", "exit 4", name="fails", labels={"a": "b"})
    again = await rerun(admin, failed.id)
    ended = await admin.wait(again.first_job_id)
    assert (ended.exit.code, ended.spec.name, ended.spec.labels["a"]) == (4, "fails", "b")
    request = scheduler_pb2.SubmitRequest(rerun_failed_job_id=failed.id, specs=[admin.spec("true")])
    assert field_of(await refusal(admin.stub.Submit(request))) == "rerun_failed_job_id"
    item = await refusal(admin.stub.ListArrayItems(scheduler_pb2.ListArrayItemsRequest(job_id=failed.id)))
    assert item.reason is Reason.NOT_AN_ARRAY


async def test_a_watcher_is_told_of_an_array_and_not_of_its_items(admin: Client, tmp_path: Path) -> None:
    request = scheduler_pb2.WatchRequest(skip_snapshot=True)
    # Short ones may have begun and ended by the time at which anything is told: the first waits until it was seen.
    seen = tmp_path / "seen"
    script = f"[ $GPUFLEET_ARRAY_INDEX != 1 ] || until [ -e {seen} ]; do sleep 0.1; done; exit 1"
    array, told = 0, list[scheduler_pb2.WatchResponse]()
    async for response in admin.stub.Watch(request, timeout=DEADLINE_SECONDS):
        if response.event == scheduler_pb2.WATCH_EVENT_SYNCED:
            array = await submit(admin, script, "1-50", cap=2)
        if array and response.HasField("job") and array <= response.job.id <= array + 50:
            told.append(response)
            if response.job.array_counts.running:
                seen.touch()
            if response.job.state == FAILED:
                break
    assert {each.job.id for each in told} == {array} and told[-1].job.array_counts.failed == 50
    assert any(each.job.array_counts.running for each in told)
    item = scheduler_pb2.WatchRequest(job_ids=[array + 3])
    async for response in admin.stub.Watch(item, timeout=DEADLINE_SECONDS):
        assert not response.HasField("job") or response.job.id == array + 3
        if response.event == scheduler_pb2.WATCH_EVENT_SYNCED:
            break


async def test_a_dry_run_of_an_array_says_what_would_happen(admin: Client) -> None:
    spec = admin.spec("true", array=job_pb2.ArraySpec(indices="1-9", max_active_count=3))
    answer = await admin.submit_specs([spec], dry_run=True)
    assert (answer.first_job_id, answer.count) == (0, 1)
    assert answer.job.spec.array.indices == "1-9" and answer.job.array_counts.items == 9
    assert answer.job.wait_reason.sentence.startswith("it would")
    both = await refusal(admin.stub.Submit(scheduler_pb2.SubmitRequest(specs=[spec, spec])))
    assert field_of(both) == "specs[0].array"


@pytest.mark.parametrize("whole", [True, False])
async def test_holding_and_releasing_goes_for_the_whole_array_or_one_item(admin: Client, whole: bool) -> None:
    array = await submit(admin, "true", "1-5", is_held=True)

    async def hold(job: int, is_held: bool) -> None:
        request = scheduler_pb2.UpdateJobRequest(
            jobs=select(job), update_mask=FieldMask(paths=["is_held"]), is_held=is_held
        )
        await admin.stub.UpdateJob(request, timeout=DEADLINE_SECONDS)

    await hold(array if whole else array + 2, False)
    if whole:
        assert (await admin.wait(array)).state == SUCCEEDED
        return
    await admin.wait(array + 2)
    assert states(await items(admin, array)) == {1: HELD, 2: SUCCEEDED, 3: HELD, 4: HELD, 5: HELD}
    await admin.cancel(array)

    async def has_ended() -> bool:
        return (await admin.job(array)).state == CANCELLED

    await until("the array has ended", has_ended)
