"""What many sessions, one after the other, leave behind in the gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.stage import Stage, browser

WARM, SESSIONS = 100, 300
GROWTH_BYTES_MAX = 1_800_000
"""A read of grpc.aio that is cancelled while it waits leaves 10 kB: 3 MB in all, where turns were ended by that."""

PAGE_BYTES = 4_096


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


@pytest.mark.nightly
async def test_many_sessions_leave_the_gateways_memory_flat(stage: Stage) -> None:
    worker = stage.worker("often")
    await worker.is_served()
    gateway = stage.another_gateway("flat")
    address = await gateway.address()
    assert gateway.process is not None
    pid, before = gateway.process.pid, 0
    for number in range(WARM + SESSIONS):
        if number == WARM:
            before = resident_bytes(pid)
        async with browser(stage, gateway=address) as ann:
            await ann.hello("often")
            await ann.text("turn")
            await ann.frame()
            await ann.say(type="leave")
            await ann.text("end")
    grown = resident_bytes(pid) - before
    assert grown < GROWTH_BYTES_MAX, f"grown by {grown / 1e6:.1f} MB in {SESSIONS} sessions"
    gateway.end()
    worker.end()
