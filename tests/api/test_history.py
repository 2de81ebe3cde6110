"""What was: devices and the queue over time, and who used how much, asked of a real scheduler with a real agent."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import capacity_pb2, job_pb2

from gpufleet.errors import Reason
from tests.api.calls import Caller
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

NodeHistory = capacity_pb2.GetNodeHistoryRequest
QueueHistory = capacity_pb2.GetQueueHistoryRequest
Usage = capacity_pb2.ListUsageRequest


async def test_devices_have_a_history_of_their_own_and_as_a_node(admin: Client) -> None:
    async def answer(**asked: Any) -> capacity_pb2.GetNodeHistoryResponse:
        return await admin.stub.GetNodeHistory(NodeHistory(node="n1", **asked))

    async def has_points() -> bool:
        return any(value >= 0 for device in (await answer()).devices for value in device.memory_used_mb.mean)

    await until("points are recorded", has_points)
    told = await answer()
    assert [(each.node, each.index) for each in told.devices] == [("n1", 0), ("n1", 1)]
    steps = len(told.devices[0].utilization_percent.mean)
    assert 1 <= steps <= 600
    assert told.step.seconds * steps >= 3600
    assert told.devices[0].memory_bytes == 16 * 10**9
    (second,) = (await answer(index=1, points_max=10)).devices
    assert second.index == 1 and len(second.power_draw_w.mean) <= 10
    (node,) = (await answer(by_node=True)).devices
    assert not node.HasField("index") and not node.uuid and node.memory_bytes == 32 * 10**9


async def test_the_queue_has_a_history_and_jobs_their_waits(admin: Client) -> None:
    job = await admin.submit("true")
    await admin.wait(job, job_pb2.JOB_STATE_SUCCEEDED)

    async def has_waited() -> bool:
        told = await admin.stub.GetQueueHistory(QueueHistory())
        return any(max(band.wait_seconds.max) >= 0 for band in told.bands if band.band == job_pb2.BAND_NORMAL)

    await until("the wait is recorded", has_waited)


async def test_usage_is_what_attempts_held_by_user_node_model_band_and_group(admin: Client) -> None:
    before = (await admin.stub.ListUsage(Usage())).total
    job = await admin.submit("true", gpus=2)
    await admin.wait(job, job_pb2.JOB_STATE_SUCCEEDED)
    (attempt,) = (await admin.job(job)).attempts
    seconds = (attempt.end_time.ToMicroseconds() - attempt.place_time.ToMicroseconds()) / 1e6
    for group in capacity_pb2.UsageGroup.values()[1:]:
        told = await admin.stub.ListUsage(Usage(group=capacity_pb2.UsageGroup.ValueType(group), steps_max=10))
        assert sum(row.gpu_seconds for row in told.rows) == pytest.approx(told.total.gpu_seconds)
        assert told.total.gpu_seconds == pytest.approx(before.gpu_seconds + 2 * seconds)
        assert told.total.job_count == before.job_count + 1
        assert told.total.start_count == before.start_count + 1
        assert sum(told.total.gpu_seconds_course) == pytest.approx(told.total.gpu_seconds)


def at(seconds: int) -> Timestamp:
    return Timestamp(seconds=seconds)


@pytest.mark.parametrize(
    ("call", "request_", "field"),
    [
        ("GetNodeHistory", NodeHistory(points_max=1_001), "points_max"),
        ("GetNodeHistory", NodeHistory(points_max=-1), "points_max"),
        ("GetNodeHistory", NodeHistory(start_time=at(200), end_time=at(100)), "start_time"),
        ("GetNodeHistory", NodeHistory(start_time=at(100), end_time=at(100)), "start_time"),
        ("GetNodeHistory", NodeHistory(end_time=Timestamp(nanos=-1)), "end_time"),
        ("GetNodeHistory", NodeHistory(index=-1), "index"),
        ("GetNodeHistory", NodeHistory(index=0, by_node=True), "by_node"),
        ("GetNodeHistory", NodeHistory(start_time=at(4_000_000_000)), "start_time"),
        ("GetQueueHistory", QueueHistory(points_max=9_999), "points_max"),
        ("GetQueueHistory", QueueHistory(start_time=at(0), end_time=at(1_700_000_000)), "start_time"),
        ("ListUsage", Usage(group=capacity_pb2.UsageGroup.ValueType(77)), "group"),
        ("ListUsage", Usage(steps_max=1_001), "steps_max"),
        ("ListUsage", Usage(start_time=at(200), end_time=at(100)), "start_time"),
    ],
)
async def test_wrong_spans_are_named(fleet: Fleet, caller: Caller, call: str, request_: Any, field: str) -> None:
    error = await caller.error(f"Scheduler/{call}", request_, token=fleet.scheduler.token("admin"))
    assert error is not None and error.reason is Reason.INVALID_ARGUMENT
    assert [violation.field for violation in error.violations] == [field]
    assert error.next_step


async def test_a_node_that_nobody_knows_is_named(fleet: Fleet, caller: Caller) -> None:
    error = await caller.error("Scheduler/GetNodeHistory", NodeHistory(node="n9"), token=fleet.scheduler.token("admin"))
    assert error is not None and error.reason is Reason.NODE_NOT_FOUND
