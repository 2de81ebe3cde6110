"""Devices by their scores, and what a model needs, asked of a real scheduler with a real agent."""

from __future__ import annotations

import asyncio

import pytest
from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import Reason
from scheduler.series.history_file import CourseFacts, CourseKey
from scheduler.series.queries import History
from scheduler.state.ids import DeviceUuid, NodeName
from scheduler.state.units import SECOND, Instant, Span
from scheduler.wire.usages import add_courses_of_histories
from tests.api.calls import Caller
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

Request = scheduler_pb2.ListDevicesRequest
GB = 10**9


async def listed(admin: Client, **asked: object) -> list[tuple[str, int, float]]:
    answer = await admin.stub.ListDevices(Request(nodes=["n1"], **asked))  # type: ignore[arg-type]
    return [(each.node, each.device.index, each.availability_score) for each in answer.devices]


async def test_devices_are_listed_by_score_and_a_held_one_is_not_free(admin: Client) -> None:
    async def are_free() -> bool:
        return await listed(admin, only_free=True) == [("n1", 0, 1.0), ("n1", 1, 1.0)]

    await until("both are free", are_free)
    job = await admin.submit("sleep", "600", gpus=1)
    await admin.wait(job, job_pb2.JOB_STATE_RUNNING)

    async def is_the_other_free() -> bool:
        return len(await listed(admin, only_free=True, fresh=True)) == 1

    await until("only the other one is free", is_the_other_free)
    assert len(await listed(admin)) == 2
    await admin.cancel(job)
    await admin.wait(job)


async def test_devices_are_filtered_and_paged(admin: Client) -> None:
    assert await listed(admin, min_memory_bytes=17 * GB) == []
    assert len(await listed(admin, min_memory_bytes=16 * GB, max_utilization_percent=0)) == 2
    first = await admin.stub.ListDevices(Request(nodes=["n1"], page_size=1))
    second = await admin.stub.ListDevices(Request(nodes=["n1"], page_size=1, page_token=first.next_page_token))
    assert [each.device.index for each in (*first.devices, *second.devices)] == [0, 1]
    assert not second.next_page_token


async def test_fresh_samples_come_with_the_nodes(admin: Client) -> None:
    (node,) = (await admin.stub.ListNodes(scheduler_pb2.ListNodesRequest(names=["n1"], fresh=True))).nodes
    assert [each.sample.memory_total_bytes for each in node.devices] == [16 * GB, 16 * GB]


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Request(nodes=["nowhere"]), "nodes[0]"),
        (Request(min_memory_bytes=-1), "min_memory_bytes"),
        (Request(max_utilization_percent=101), "max_utilization_percent"),
        (Request(page_size=-1), "page_size"),
    ],
)
async def test_wrong_filters_are_named(fleet: Fleet, caller: Caller, request_: Request, field: str) -> None:
    error = await caller.error("Scheduler/ListDevices", request_, token=fleet.scheduler.token("admin"))
    assert error is not None
    assert [violation.field for violation in error.violations] == [field]


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ("{", "config_json"),
        ('{"parameters": {"tp": 1, "tp": 2}}', "config_json"),
        ('{"parameters": {"tp": NaN}}', "config_json"),
        ("[" * 100_000, "config_json"),
        (" " * 1_000_001, "config_json"),
        ('{"parameters": {"tp": 1e999}}', "config_json: parameters.tp"),
        ('{"parameters": {"TP": 4}}', "config_json: parameters.TP"),
    ],
)
async def test_a_configuration_that_cannot_be_read_is_refused(
    fleet: Fleet, caller: Caller, config: str, field: str
) -> None:
    request = capacity_pb2.EstimateRequest(config_json=config)
    error = await caller.error("Scheduler/Estimate", request, token=fleet.scheduler.token("admin"))
    assert error is not None and error.reason is Reason.INVALID_ARGUMENT
    assert [violation.field for violation in error.violations] == [field]
    assert len(error.message) < 500


async def test_what_a_job_used_is_told_while_it_runs_and_kept_with_its_end(admin: Client) -> None:
    job = await admin.submit("sleep", "600", gpus=1)
    asked = capacity_pb2.GetJobStatsRequest(job_id=job)
    try:
        await admin.wait(job, job_pb2.JOB_STATE_RUNNING)

        async def are_read() -> bool:
            told = await admin.stub.GetJobStats(asked)
            return bool(told.processes and told.devices)

        await until("its processes and its GPU are read", are_read)
        so_far = await admin.stub.GetJobStats(asked)
        assert (so_far.attempt, so_far.is_final, len(so_far.devices)) == (1, False, 1)
        assert so_far.processes[0].memory_mb.max > 0
    finally:
        await admin.cancel(job)
        ended = await admin.wait(job)
    stored = await admin.stub.GetJobStats(asked)
    assert stored.is_final and stored.sample_count >= so_far.sample_count >= 1
    device = stored.devices[0]
    # A virtual GPU has a load and memory by definition, and no other counter.
    assert (device.utilization_percent.max, device.memory_used_mb.max, device.node) == (0, 0, "n1")
    assert not device.HasField("temperature_c") and not stored.HasField("energy_wh")
    assert stored.idle_share == 1 and stored.gpu_seconds > 0
    info = ended.attempts[0].gpu_info
    assert (list(info.indices), list(info.uuids)) == ([str(device.index)], [device.uuid])


def wanting(gpus: int, wait_s: int = 0) -> capacity_pb2.CheckCapacityRequest:
    request = capacity_pb2.CheckCapacityRequest()
    request.spec.devices.add(count=gpus)
    request.spec.nodelist.append("n1")
    request.wait.FromSeconds(wait_s)
    return request


async def test_who_waits_for_room_is_told_when_it_comes_or_that_it_did_not(admin: Client) -> None:
    job = await admin.submit("sleep", "600", gpus=2)
    try:
        await admin.wait(job, job_pb2.JOB_STATE_RUNNING)
        told = [answer async for answer in admin.stub.CheckCapacity(wanting(1, wait_s=1))]
        assert [told[0].is_available, told[-1].is_available] == [False, False]
        assert told[-1].reason == "DEVICES_IN_USE"
        assert told[-1].message.startswith("free now: 0 of 1 GPU with 8 GB, 1 missing; node n1 has no free GPU")
        answers = admin.stub.CheckCapacity(wanting(1, wait_s=60)).__aiter__()
        assert not (await anext(answers)).is_available
        await admin.cancel(job)
        told = [answer async for answer in answers]
        assert told[-1].is_available and told[-1].message == "1 GPU with 8 GB would start now on node n1"
    finally:
        await admin.cancel(job)
        await admin.wait(job)


async def test_what_can_never_be_checked_is_refused(fleet: Fleet, caller: Caller) -> None:
    late = wanting(1)
    late.wait.FromSeconds(100_000)
    held = wanting(1)
    held.spec.is_held = True
    for request, reason in (
        (wanting(64), Reason.NEVER_FITS),
        (late, Reason.INVALID_ARGUMENT),
        (held, Reason.INVALID_ARGUMENT),
    ):
        assert await caller.reason("Scheduler/CheckCapacity", request, fleet.scheduler.token("admin")) is reason


async def test_devices_are_watched_through_the_server(admin: Client) -> None:
    watching = admin.stub.WatchDevices(scheduler_pb2.WatchDevicesRequest(nodes=["n1"])).__aiter__()
    first = await anext(watching)
    assert first.is_whole and [(each.node, each.device.index) for each in first.devices] == [("n1", 0), ("n1", 1)]
    job = await admin.submit("sleep", "600", gpus=2)
    try:
        holder: dict[int, str] = {}
        async with asyncio.timeout(60):
            while not holder:
                holder = {each.job_id: each.user for each in (await anext(watching)).devices if each.job_id}
        shown = (await admin.stub.GetJob(scheduler_pb2.GetJobRequest(job_id=job))).job
        assert holder == {job: shown.user}
    finally:
        await admin.cancel(job)
        await admin.wait(job)


async def test_what_cannot_be_watched_is_named(fleet: Fleet, caller: Caller) -> None:
    fast = scheduler_pb2.WatchDevicesRequest()
    fast.interval.FromMilliseconds(10)
    for request, reason, field in (
        (fast, Reason.INVALID_ARGUMENT, "interval"),
        (scheduler_pb2.WatchDevicesRequest(nodes=["n1", "n9"]), Reason.NODE_NOT_FOUND, "nodes[1]"),
    ):
        error = await caller.error("Scheduler/WatchDevices", request, token=fleet.scheduler.token("admin"))
        assert error is not None and error.reason is reason and error.next_step
        assert [violation.field for violation in error.violations] == [field]


def test_a_step_that_ends_behind_an_attempt_is_no_part_of_its_course() -> None:
    device, step = capacity_pb2.DeviceStats(uuid="a"), ((10.0, 90.0, 50.0), *[(1.0, 1.0, 1.0)] * 3)
    facts = CourseFacts(key=CourseKey(node=NodeName("n1"), uuid=DeviceUuid("a")), index=0, name="", memory_bytes=0)
    courses = History(Instant(5 * SECOND), Span(10 * SECOND), [(facts, [step, None, step, step])])
    add_courses_of_histories([device], courses, Instant(5 * SECOND), Instant(44 * SECOND))
    assert list(device.series.offset_ms) == [10_000, 30_000] and list(device.series.utilization_percent) == [50, 50]
