"""A person far away: on a machine of their own, with a cable between that takes 25 ms each way.

The machines are Linux network namespaces, as the tests have them; where they cannot be made, there are no rows. The
floor is a bare socket over the same line, that answers a byte with as many as a frame has: a kernel whose TCP paces
what it sends (BBR) takes several milliseconds for them that another (CUBIC) does not.
"""

import asyncio
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.drills.faults import Fault, Kind
from tests.drills.links import Links, check_permitted
from tests.several_nodes.network import Machine, Network, NotPermitted

from ..rows import Row, percentile
from .people import Person, Stage, person

ONE_WAY_MS = 25.0
RATE = 30
WATCHED_S = 10.0
CLICK_EVERY_S = 0.1
FRAME = b"x" * 21_000
WARM_S = 2.0
"""The window of frames under way grows to what the line holds first."""


async def far_rows(folder: Path) -> list[Row]:
    """One session over such a line: frames a second, and the age of what they show."""
    try:
        check_permitted()
        with Network() as network:
            return await _measure(network, folder)
    except NotPermitted as problem:
        print(f"no rows over a long line: {problem}", file=sys.stderr)
        return []


async def _measure(network: Network, folder: Path) -> list[Row]:
    servers, browser = network.machine("servers"), network.machine("browser")
    links = Links(network)
    delay = Fault(at=0.0, kind=Kind.DELAY, target="link browser", amount=ONE_WAY_MS)
    stage = Stage(folder, host=servers.address, inside=servers.inside)
    with stage.running("--insecure"), stage.worker("film", rate=RATE):
        await links.spoil(delay)
        try:
            floor = await _bare_ms(servers, browser)
            ann = await person(stage.gateway, await _dialled(browser, stage.gateway))
            await ann.turn("film")
            await _watch(ann, [], WARM_S)
            ages: list[float] = []
            before, begin = ann.frames, time.perf_counter()
            await _watch(ann, ages, WATCHED_S)
            rate = (ann.frames - before) / (time.perf_counter() - begin)
            await ann.leave()
        finally:
            links.mend(delay)
    name = f"a line of {2 * ONE_WAY_MS:.0f} ms there and back, {RATE}/s"
    floor_99 = percentile(floor, 0.99)
    return [
        Row(f"floor: {len(FRAME) // 1_000} kB by a bare socket over such a line, p99", floor_99, "ms"),
        Row(f"{name}: frames", rate, "/s"),
        Row(f"{name}: input to frame p99", percentile(ages, 0.99), "ms", floor_99, "the line, p99"),
    ]


async def _bare_ms(servers: Machine, browser: Machine) -> list[float]:
    """From a byte to the last one of what answers it, asked for as often as there are frames, in milliseconds."""
    with servers.sockets():
        listening = socket.create_server((servers.address, 0))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await reader.read(len(FRAME)):
            writer.write(FRAME * len(asked))
        writer.close()

    every_s = 1 / (RATE + 1 / CLICK_EVERY_S)
    asked_at: list[float] = []
    times: list[float] = []
    async with await asyncio.start_server(answer, sock=listening):
        dialled = await _dialled(browser, f"{servers.address}:{listening.getsockname()[1]}")
        reader, writer = await asyncio.open_connection(sock=dialled)

        async def ask() -> None:
            for _ in range(round((WARM_S + WATCHED_S) / every_s)):
                asked_at.append(time.perf_counter())
                writer.write(b"x")
                await asyncio.sleep(every_s)
            writer.write_eof()

        asking = asyncio.create_task(ask())
        with suppress(asyncio.IncompleteReadError):
            while await reader.readexactly(len(FRAME)):
                times.append((time.perf_counter() - asked_at[len(times)]) * 1e3)
        await asking
        writer.close()
        await writer.wait_closed()
    return times[round(WARM_S / every_s) :]


async def _dialled(browser: Machine, gateway: str) -> socket.socket:
    host, _, port = gateway.rpartition(":")
    with browser.sockets():
        made = socket.socket()
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, (host, int(port)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


async def _watch(ann: Person, ages: list[float], seconds: float) -> None:
    """Watch, and click now and then; `ages` takes how long it was from each click to its frame, in milliseconds."""

    async def watch() -> None:
        seen = ann.newest
        while True:
            if await ann.frame() > seen:
                seen = ann.newest
                ages.append(ann.age_ms())

    async def click() -> None:
        while True:
            await ann.input(0.5, is_click=True)
            await asyncio.sleep(CLICK_EVERY_S)

    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.gather(watch(), click())
