"""One stream to a worker, and what many of them leave behind."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway.protocol import Hello
from gateway.turn import Turn
from gpufleet.addresses import parse_address
from gpufleet.channel import Target
from inference.models.test_pattern import TestPattern
from tests.inference.serving import serving

WARM, TURNS = 200, 600
GROWTH_BYTES_MAX = 3_000_000
"""A read that is cancelled while it waits would leave 10 kB: twice as much in all."""

PAGE_BYTES = 4_096


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


async def test_many_turns_one_after_the_other_leave_the_memory_flat() -> None:
    async with serving(lambda: TestPattern(width=512, height=384)) as running:
        before = 0
        for number in range(WARM + TURNS):
            if number == WARM:
                gc.collect()
                before = resident_bytes()
            session = f"s{number}"
            grant = sessions_pb2.TurnGrant(endpoint=running.endpoint, ticket=running.ticket(session))
            turn = Turn(grant, Hello("m", "", 0, 0, ("jpeg",)), lambda text: Target(address=parse_address(text)))
            has_frame = asyncio.Event()

            async def take(message: Any, has_frame: asyncio.Event = has_frame) -> None:
                if message.WhichOneof("body") == "frame":
                    has_frame.set()

            streaming = asyncio.create_task(turn.run(take))
            await has_frame.wait()
            turn.put(inference_pb2.StreamRequest(leave=True))
            turn.stop()
            await streaming
            running.worker.turning.end(session, 1, "LEFT")
        gc.collect()
        grown = resident_bytes() - before
        assert grown < GROWTH_BYTES_MAX, f"grown by {grown / 1e6:.1f} MB in {TURNS} turns"
