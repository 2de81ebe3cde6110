"""5,000 sockets of people who mean ill, at a real gateway, while somebody draws."""

from __future__ import annotations

import asyncio
import resource
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from gateway.app import REFUSED_ADDRESS, REFUSED_FULL
from gateway.person import HELLO_S_MAX, SILENT
from gpufleet.host.facts import raise_open_files
from tests.e2e.processes import until
from tests.gateway.stage import Stage, browser
from tests.gateway.test_hostile import people_at, watching
from tests.gateway.test_memory import resident_bytes

SOCKETS, ADDRESSES = 5_000, 10
"""Of one storm. The first one warms the gateway: it has most of what it keeps of the system by then."""

STORMS_MAX = 4
"""Storms that are looked at, at most. What is lost with a socket is lost in each of them; what the gateway keeps of the
system for more sockets at the same time than ever before, as chance has it, is kept once."""

PER_ADDRESS, PEOPLE = 100, 600
"""The limits of this gateway: so many sessions of one address, and so many in all."""

STORM_SECONDS_MAX = 240.0
"""Each storm; some seconds, and the time of those who are waited for, where the machine does nothing else."""

OPENING_AT_ONCE = 100
"""Of the sockets that are opened: who draws is on the same event loop, and must not seem to be silent."""

SPARE_FILES = 500
GROWTH_BYTES_MAX = 10_000_000
"""2 kB for each socket; one that stays has cost more."""

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: gateway\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)
TAKEN, CLOSE_FRAME = b"HTTP/1.1 101 ", 0x88
CUT = 0
"""In place of a close code: the connection was cut before it was one of a person."""


async def ending_of(address: tuple[str, int], source: str, opening: asyncio.Semaphore) -> int:
    """Open a WebSocket from that address and say nothing; answers how the gateway ended it."""
    async with opening:
        reader, writer = await asyncio.open_connection(*address, local_addr=(source, 0))
        writer.write(UPGRADE)
    try:
        with suppress(ConnectionError):
            said = await reader.read()
            if said.startswith(TAKEN):
                closing = said.partition(b"\r\n\r\n")[2]
                assert closing[0] == CLOSE_FRAME, closing
                return int.from_bytes(closing[2:4], "big")
            assert said == b"", said
        return CUT
    finally:
        writer.close()


async def storm(address: tuple[str, int], sockets: int) -> Counter[int]:
    """So many, as fast as they can be opened, from several addresses; how often each ending came."""
    async with asyncio.timeout(STORM_SECONDS_MAX):
        sources = [f"127.0.0.{2 + number % ADDRESSES}" for number in range(sockets)]
        opening = asyncio.Semaphore(OPENING_AT_ONCE)
        return Counter(await asyncio.gather(*(ending_of(address, source, opening) for source in sources)))


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_5000_sockets_are_refused_by_code_and_who_means_well_goes_on(stage: Stage) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if raise_open_files() < SOCKETS + SPARE_FILES:
        pytest.skip(f"this account may open {before[1]:,} files at once, and {SOCKETS:,} sockets need more")
    file = stage.folder / "stormy.toml"
    file.write_text(f"[limits]\npeople_per_address_max = {PER_ADDRESS}\npeople_max = {PEOPLE}\n")
    side = stage.another_gateway("stormy", "--config", str(file))
    host, _, port = (await side.address()).rpartition(":")
    address = (host, int(port))
    worker = stage.worker("stormed", rate="30")
    await worker.is_served()
    assert side.process is not None
    pid = side.process.pid

    async def are_gone() -> bool:
        return await people_at(address) == 1

    try:
        async with watching(stage, "stormed", gateway=f"{host}:{port}") as goes_on:
            await storm(address, SOCKETS)
            await until("the first ones are gone", are_gone)
            files, grown = open_files(pid), list[int]()
            while not grown or (min(grown) >= GROWTH_BYTES_MAX and len(grown) < STORMS_MAX):
                memory, drawn = resident_bytes(pid), 0
                began_s = time.monotonic()
                raging = asyncio.create_task(storm(address, SOCKETS))
                while not raging.done():
                    await goes_on()  # a click of theirs is shown
                    drawn += 1
                    await asyncio.sleep(0.2)
                ends = await raging
                assert drawn > 1, "their session went on meanwhile"

                # Nobody had a turn or a place: each was told why, or cut as one of a crowd.
                assert ends.total() == SOCKETS
                assert set(ends) <= {CUT, SILENT, REFUSED_ADDRESS, REFUSED_FULL}, ends
                # Each who was let in kept a place until they were found silent.
                in_turn = 1 + int((time.monotonic() - began_s) / HELLO_S_MAX)
                assert 0 < ends[SILENT] < PEOPLE * in_turn
                assert ends[REFUSED_ADDRESS] + ends[REFUSED_FULL] > 0

                await until("all are gone", are_gone)
                await until("their sockets are closed", lambda: open_files(pid) <= files)
                grown.append(resident_bytes(pid) - memory)
            assert min(grown) < GROWTH_BYTES_MAX, f"{grown} bytes grown by storms of {SOCKETS:,} sockets"
        async with browser(stage, gateway=f"{host}:{port}") as next_one:
            await next_one.hello("stormed")
            await next_one.text("turn")
            await next_one.say(type="leave")
            await next_one.text("end")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    side.end()
    worker.end()
