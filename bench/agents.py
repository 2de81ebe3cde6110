"""Many simulated agents in one process: each registers, opens a stream, and beats with samples of eight devices.

`python -m bench.agents ADDRESS TOKEN_FILE COUNT [full]` says `ready` once every stream stands, and goes on until it is
ended. With `full` a sample has all that an H100 tells, else what is decided by. They take launches and do nothing with
them: what the scheduler does with what is heard is what is measured.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from gpufleet.v1 import node_agent_pb2, node_agent_pb2_grpc, node_pb2

from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect_async

BEAT_SECONDS = 2.0
CHANNELS = 4
DEVICES = 8
MEMORY_BYTES = 80_000_000_000
AT_ONCE = 50
"""Agents that register at the same time."""


def node_info(name: str) -> node_pb2.NodeInfo:
    """A machine with 128 CPUs, 1 TB of memory and eight devices."""
    devices = [
        node_pb2.Device(uuid=f"{name}-{index}", index=index, name="NVIDIA H100", memory_bytes=MEMORY_BYTES)
        for index in range(DEVICES)
    ]
    return node_pb2.NodeInfo(
        hostname=name, cpus=128, memory_bytes=1_000_000_000_000, devices=devices, agent_version="bench"
    )


def counters(sequence: int) -> dict[str, Any]:
    """What an H100 tells beside what is decided by."""
    return {
        "memory_total_bytes": MEMORY_BYTES,
        "memory_utilization_percent": sequence % 50,
        "temperature_c": 40 + sequence % 30,
        "power_mw": 300_000 + sequence,
        "power_limit_mw": 700_000,
        "energy_mj": 10**12 + 600_000 * sequence,
        "clock_sm_mhz": 1_980,
        "clock_memory_mhz": 2_619,
        "ecc_uncorrected_count": 0,
    }


def beat(name: str, sequence: int, *, is_full: bool = False) -> node_agent_pb2.HeartbeatRequest:
    """A sign of life with eight samples that differ from the last ones."""
    samples = [
        node_pb2.DeviceSample(
            uuid=f"{name}-{index}",
            utilization_percent=(sequence + index) % 100,
            memory_used_bytes=500_000_000 + sequence,
            memory_free_bytes=MEMORY_BYTES - 500_000_000 - sequence,
            processes_are_known=True,
            is_healthy=True,
            **(counters(sequence) if is_full else {}),
        )
        for index in range(DEVICES)
    ]
    return node_agent_pb2.HeartbeatRequest(
        node=name, incarnation=1, sequence=sequence, beat=node_agent_pb2.Beat(samples=samples)
    )


async def agent(
    stub: Any, name: str, gate: asyncio.Semaphore, ready: asyncio.Queue[str], *, is_full: bool = False
) -> None:
    """One agent, until cancelled."""
    info = node_info(name)
    async with gate:
        await stub.Register(
            node_agent_pb2.RegisterRequest(
                node=name, agent_id=name, incarnation=1, boot_id="boot", info=info, protocol_version=1
            )
        )
        call = stub.Heartbeat()
        inventory = node_agent_pb2.Inventory(boot_id="boot", info=info)
        await call.write(node_agent_pb2.HeartbeatRequest(node=name, incarnation=1, sequence=1, inventory=inventory))
        await call.write(beat(name, 2, is_full=is_full))
    reader = asyncio.create_task(_read(call))
    ready.put_nowait(name)
    try:
        sequence = 2
        while True:
            await asyncio.sleep(BEAT_SECONDS)
            sequence += 1
            await call.write(beat(name, sequence, is_full=is_full))
    finally:
        reader.cancel()


async def _read(call: Any) -> None:
    async for _ in call:
        pass


async def main(address: str, token: str, count: int, *, is_full: bool = False) -> None:
    """Start all, say `ready`, and go on."""
    host, _, port = address.rpartition(":")
    target = Target(address=Address(host, int(port)), token=token)
    stubs: list[Any] = [node_agent_pb2_grpc.NodeAgentStub(connect_async(target)) for _ in range(CHANNELS)]
    gate, ready = asyncio.Semaphore(AT_ONCE), asyncio.Queue[str]()
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(agent(stubs[number % CHANNELS], f"sim{number:05}", gate, ready, is_full=is_full))
        for _ in range(count):
            await ready.get()
        print("ready", flush=True)


if __name__ == "__main__":
    asyncio.run(
        main(sys.argv[1], Path(sys.argv[2]).read_text().strip(), int(sys.argv[3]), is_full=sys.argv[4:] == ["full"])
    )
