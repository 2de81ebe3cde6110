"""Samples that come late, all at once, or from a node whose clock went back."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing

from gpufleet.v1 import node_agent_pb2, node_agent_pb2_grpc, node_pb2, scheduler_pb2

from scheduler.state.units import SECOND, Instant
from scheduler.wire.validate_reports import device_sample
from tests.api.asking import forget_node
from tests.e2e.client import Client, dial
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS

LATE_BEATS = 10_000
GB = 10**9
A_FEW_PAGES_BYTES = 64 * 4096
DEVICE = node_pb2.Device(uuid="GPU-late", name="NVIDIA H100", memory_bytes=80 * GB, is_healthy=True)
INFO = node_pb2.NodeInfo(hostname="here", cpus=1, devices=[DEVICE])


def beat(sequence: int, age_seconds: float) -> node_agent_pb2.HeartbeatRequest:
    """One with a sample of that age, whose load is the number of the beat, from 0 to 99."""
    sample = node_pb2.DeviceSample(
        uuid="GPU-late",
        utilization_percent=sequence % 100,
        memory_free_bytes=80 * GB,
        is_healthy=True,
        processes_are_known=True,
    )
    sample.age.FromNanoseconds(round(age_seconds * 1e9))
    return node_agent_pb2.HeartbeatRequest(
        node="late", incarnation=1, sequence=sequence, beat=node_agent_pb2.Beat(samples=[sample])
    )


def stored_bytes(fleet: Fleet) -> int:
    """What the store holds, wherever it is written by now: files grow when it is moved from the one into the other."""
    url = f"file:{fleet.scheduler.data / 'scheduler.db'}?mode=ro"
    with closing(sqlite3.connect(url, uri=True)) as connection:
        pages, page_bytes = (connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size"))
    return int(pages * page_bytes)


async def test_of_ten_thousand_late_samples_at_once_the_newest_stands_and_none_is_stored(
    fleet: Fleet, admin: Client
) -> None:
    """As after a link that was cut for hours, or an agent that stood still: nothing is placed on what is old."""
    stored_before = stored_bytes(fleet)
    shown: list[node_pb2.NodeDevice] = []

    async def all_at_once() -> AsyncIterator[node_agent_pb2.HeartbeatRequest]:
        inventory = node_agent_pb2.Inventory(boot_id="b", info=INFO)
        yield node_agent_pb2.HeartbeatRequest(node="late", incarnation=1, sequence=1, inventory=inventory)
        for sequence in range(2, LATE_BEATS + 2):
            yield beat(sequence, age_seconds=float(LATE_BEATS + 60 - sequence))
        yield beat(LATE_BEATS + 2, age_seconds=30.0)

    async with dial(fleet.scheduler.address, fleet.scheduler.token("agent")) as channel:
        stub = node_agent_pb2_grpc.NodeAgentStub(channel)
        announced = node_agent_pb2.RegisterRequest(
            node="late", agent_id="a", incarnation=1, boot_id="b", info=INFO, protocol_version=1
        )
        await stub.Register(announced, timeout=DEADLINE_SECONDS)
        async for answer in stub.Heartbeat(all_at_once(), timeout=DEADLINE_SECONDS):
            if answer.acked_sequence >= LATE_BEATS + 2 or answer.newest_heartbeat >= LATE_BEATS + 2:
                request = scheduler_pb2.ListDevicesRequest(nodes=["late"])
                shown = list((await admin.stub.ListDevices(request)).devices)
                break
    (device,) = shown
    assert device.sample.utilization_percent == (LATE_BEATS + 2) % 100
    assert device.sample.age.ToTimedelta().total_seconds() >= 30
    assert not device.is_free
    assert stored_bytes(fleet) < stored_before + A_FEW_PAGES_BYTES
    await forget_node(admin, "late")


def test_a_sample_of_the_future_counts_as_one_of_now() -> None:
    sample = beat(1, age_seconds=-3600).beat.samples[0]
    assert device_sample(sample, Instant(100 * SECOND)).taken_at == 100 * SECOND
    sample = beat(1, age_seconds=7).beat.samples[0]
    assert device_sample(sample, Instant(100 * SECOND)).taken_at == 93 * SECOND
