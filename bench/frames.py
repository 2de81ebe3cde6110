"""Frames at a person's WebSocket: from input to frame, frames a second, and how old is what a frame shows.

Scheduler, gateway and worker run as a user starts them; the person is this process. The floor is `chain.py`: a
WebSocket server that asks a bare grpc.aio echo for 30 kB.
"""

import asyncio
import statistics
import time
from contextlib import suppress

import simplejpeg

from gateway.protocol import FRAME_HEADER
from inference.models.test_pattern import TestPattern

from . import chain
from .far import far_rows
from .measures import cpu_seconds
from .people import Person, Stage, person
from .rows import Row, Run, percentile

SESSIONS = 16
RATE = 30
"""Frames a second of a model that animates."""

RATE_S = 3.0
MANY_S = 10.0
STEP_MS = 20.0
FLOOD_S = 30.0
CLICKS = 200
MOVES_A_SECOND = 1_000
SEATS_FREED = 30
LATE_S_MAX = 30.0


async def input_to_frame_ms(stage: Stage, model: str, count: int) -> list[float]:
    """From a click to the frame that shows it, one after the other, in milliseconds."""
    times: list[float] = []
    ann = await person(stage.gateway)
    await ann.turn(model)
    for _ in range(count):
        number = await ann.input(0.5, is_click=True)
        while await ann.frame() < number:
            pass
        times.append(ann.age_ms())
    await ann.leave()
    return times


async def frames_a_second(stage: Stage, model: str, pid: int, sessions: int) -> tuple[float, float, float]:
    """Frames that arrive in a second in all, and of the slowest session; processor time of gateway and worker for each.

    The time is in milliseconds.
    """
    people = [await person(stage.gateway) for _ in range(sessions)]
    for each in people:
        await each.turn(model)
    before = [each.frames for each in people]
    busy = cpu_seconds(pid) + cpu_seconds(stage.gateway_pid)
    begin = time.perf_counter()
    await asyncio.gather(*(_watch(each, begin + RATE_S) for each in people))
    seconds = time.perf_counter() - begin
    busy = cpu_seconds(pid) + cpu_seconds(stage.gateway_pid) - busy
    counts = [each.frames - count for each, count in zip(people, before, strict=True)]
    await asyncio.gather(*(each.leave() for each in people))
    return sum(counts) / seconds, min(counts) / seconds, busy / sum(counts) * 1e3


async def _watch(ann: Person, until: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(until - time.perf_counter()):
            while True:
                await ann.frame()


async def many_at_once(stage: Stage, model: str, sessions: int) -> tuple[float, list[float]]:
    """Frames a second of the slowest of so many sessions, and from a click to its frame in all, in milliseconds."""
    people = [await person(stage.gateway) for _ in range(sessions)]
    for each in people:
        await each.turn(model)
    before = [each.frames for each in people]
    ages: list[float] = []
    begin = time.perf_counter()

    async def watch(ann: Person) -> None:
        seen = 0
        while True:
            if await ann.frame() > seen:
                seen = ann.newest
                ages.append(ann.age_ms())

    async def click(ann: Person, after_s: float) -> None:
        await asyncio.sleep(after_s)
        while True:
            await ann.input(0.5, is_click=True)
            await asyncio.sleep(0.5)

    tasks = [watch(each) for each in people] + [click(each, n / 32) for n, each in enumerate(people)]
    with suppress(TimeoutError):
        async with asyncio.timeout(MANY_S):
            await asyncio.gather(*tasks)
    seconds = time.perf_counter() - begin
    slowest = min(each.frames - count for each, count in zip(people, before, strict=True)) / seconds
    await asyncio.gather(*(each.leave() for each in people))
    return slowest, ages


async def freed_seat_ms(stage: Stage, model: str, count: int) -> tuple[list[float], list[float]]:
    """From a person's leave to the next one's turn, and to their first frame; the model has one seat."""
    told: list[float] = []
    shown: list[float] = []
    ann = await person(stage.gateway)
    await ann.turn(model)
    for _ in range(count):
        bob = await person(stage.gateway)
        await bob.join(model)
        await bob.text("place")
        begin = time.perf_counter()
        await ann.say(type="leave")
        await bob.text("turn")
        told.append((time.perf_counter() - begin) * 1e3)
        await bob.frame()
        shown.append((time.perf_counter() - begin) * 1e3)
        await ann.socket.wait_closed()
        ann = bob
    await ann.leave()
    return told, shown


async def ages_ms(stage: Stage, model: str, moves: int, clicks: int, seconds: float) -> tuple[list[float], int]:
    """How old the newest input of each frame is when it arrives, and how many clicks no frame has shown.

    `moves` and `clicks` a second, sent at their times whatever comes back. The picture itself says what it shows.
    """
    ann = await person(stage.gateway)
    await ann.turn(model)
    ages: list[float] = []
    total = moves + clicks
    count = round(seconds * total)

    async def read() -> None:
        seen = 0
        while seen < count:
            if await ann.frame() > seen:
                seen = ann.newest
                ages.append(ann.age_ms())

    reading = asyncio.create_task(read())
    begin, clicked = time.perf_counter(), 0
    for number in range(count):
        if (wait_s := begin + number / total - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        is_click = number % (total // clicks) == 0
        clicked += is_click
        await ann.input(number % 97 / 97, is_click=is_click)
    async with asyncio.timeout(LATE_S_MAX):
        await reading
    seen = TestPattern().read(simplejpeg.decode_jpeg(ann.picture[FRAME_HEADER.size :]), 2)
    await ann.leave()
    return ages, clicked - seen


async def _measure(run: Run) -> list[Row]:
    floor = await chain.round_trips_ms(run.rounds)
    floor_50, floor_99 = statistics.median(floor), percentile(floor, 0.99)
    floor_rate = await chain.round_trips_a_second()
    rows = [Row("floor: 30 kB by a WebSocket server from a bare echo, p50", floor_50, "ms")]
    rows += [Row("floor: 30 kB by a WebSocket server from a bare echo, p99", floor_99, "ms")]
    rows += [Row(f"floor: the same, {chain.IN_FLIGHT} in flight", floor_rate, "/s")]
    with Stage(run.folder / "stage").running() as stage:
        with stage.worker("still"):
            times = await input_to_frame_ms(stage, "still", run.rounds)
            p50, p99 = statistics.median(times), percentile(times, 0.99)
            rows += [Row("input to frame at a WebSocket, 512×384 JPEG, p50", p50, "ms", floor_50, "the chain, p50")]
            rows += [Row("input to frame at a WebSocket, 512×384 JPEG, p99", p99, "ms", floor_99, "the chain, p99")]
        with stage.worker("fast", rate=2_000) as pid:
            one, _, one_ms = await frames_a_second(stage, "fast", pid, 1)
            rows += [Row("frames at a WebSocket, one session", one, "/s", floor_rate, "the chain")]
            rows += [Row("processor time of gateway and worker a frame, one session", one_ms, "ms")]
        with stage.worker("crowd", rate=150) as pid:
            many, _, many_ms = await frames_a_second(stage, "crowd", pid, SESSIONS)
            rows += [Row(f"frames at {SESSIONS} WebSockets, total", many, "/s", floor_rate, "the chain")]
            rows += [Row(f"processor time of gateway and worker a frame, {SESSIONS} sessions", many_ms, "ms")]
        with stage.worker("film", rate=RATE):
            slowest, ages = await many_at_once(stage, "film", SESSIONS)
            name = f"{SESSIONS} sessions at {RATE}/s"
            rows += [Row(f"{name}: the slowest", slowest, "/s")]
            rows += [Row(f"{name}: input to frame p99", percentile(ages, 0.99), "ms", floor_99, "the chain, p99")]
        with stage.worker("one-seat", seats=1):
            told, shown = await freed_seat_ms(stage, "one-seat", SEATS_FREED)
            rows += [Row("freed seat to the next person's turn p50", statistics.median(told), "ms")]
            rows += [Row("freed seat to the next person's first frame p50", statistics.median(shown), "ms")]
        with stage.worker("slow", sleep_ms=STEP_MS):
            for moves, clicks, seconds in ((MOVES_A_SECOND, 10, FLOOD_S), (0, 50, FLOOD_S / 3)):
                ages, lost = await ages_ms(stage, "slow", moves, clicks, seconds)
                name = f"{moves:,} moves/s + {clicks} clicks/s" if moves else f"{clicks} clicks/s"
                rows += [
                    Row(f"age of a frame's newest input p99, {name}", percentile(ages, 0.99), "ms", STEP_MS, "step")
                ]
                rows += [Row(f"clicks that no frame has shown, {name}", lost, "")]
    return rows + await far_rows(run.folder / "far")


def measure(run: Run) -> list[Row]:
    """The rows of the group `frames`."""
    return asyncio.run(_measure(run))
