"""Frames at a person's WebSocket: from input to frame, frames a second, and how old is what a frame shows.

Scheduler, gateway and worker run as a user starts them; the person is this process. The floor is `chain.py`: a
WebSocket server that asks a bare grpc.aio echo for 30 kB.
"""

import asyncio
import statistics
import sys
import time
from contextlib import suppress

import simplejpeg

from gateway.protocol import FRAME_HEADER
from gpufleet.model import Inputs, Pointer, Session
from inference.models.test_pattern import TestPattern

from ..measures import cpu_seconds, resident_mb
from ..rows import Row, Run, percentile
from . import chain
from .far import far_rows
from .people import Person, Stage, person
from .storm import SOCKETS

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
SESSIONS_WARM, SESSIONS_IN_A_ROW = 100, 1_000
STEPS = 2_000
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


async def _click(ann: Person, after_s: float = 0.0) -> None:
    """Click now and then, for ever."""
    await asyncio.sleep(after_s)
    while True:
        await ann.input(0.5, is_click=True)
        await asyncio.sleep(0.5)


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

    tasks = [watch(each) for each in people] + [_click(each, n / 32) for n, each in enumerate(people)]
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


async def grown_mb(stage: Stage, model: str, pid: int) -> tuple[float, float]:
    """By how much the memory of the worker and of the gateway has grown in 1,000 sessions, one after the other."""
    before = (0.0, 0.0)
    for number in range(SESSIONS_WARM + SESSIONS_IN_A_ROW):
        if number == SESSIONS_WARM:
            before = resident_mb(pid), resident_mb(stage.gateway_pid)
        ann = await person(stage.gateway)
        await ann.turn(model)
        await ann.leave()
    return resident_mb(pid) - before[0], resident_mb(stage.gateway_pid) - before[1]


async def besieged(stage: Stage, model: str) -> tuple[int, float]:
    """One address opens many sockets that say nothing: how many stay, and the frames a second of somebody meanwhile."""
    ann = await person(stage.gateway)
    await ann.turn(model)
    command = (sys.executable, "-m", "bench.sessions.storm", stage.gateway)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert process.stdout is not None and process.stdin is not None
    try:
        await process.stdout.readline()
        before, begin = ann.frames, time.perf_counter()
        tasks = [asyncio.create_task(_watch(ann, begin + 4 * LATE_S_MAX)), asyncio.create_task(_click(ann))]
        staying = int(await process.stdout.readline())
        rate = (ann.frames - before) / (time.perf_counter() - begin)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        process.stdin.close()
        await process.wait()
    await ann.leave()
    return staying, rate


def step_ms(count: int) -> float:
    """Processor time of one step of the model alone, in milliseconds."""
    model = TestPattern()
    state = model.open(Session(id="bench"))
    inputs = Inputs(events=(), pointer=Pointer(0.5, 0.5, 0, 1), elapsed_s=0.03, coalesced=0, newest=1)
    begin = time.process_time()
    for _ in range(count):
        model.step(state, inputs)
    return (time.process_time() - begin) / count * 1e3


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
            one, _, _ = await frames_a_second(stage, "fast", pid, 1)
            rows += [Row("frames at a WebSocket, one session", one, "/s", floor_rate, "the chain")]
        with stage.worker("crowd", rate=150) as pid:
            many, _, _ = await frames_a_second(stage, "crowd", pid, SESSIONS)
            rows += [Row(f"frames at {SESSIONS} WebSockets, total", many, "/s", floor_rate, "the chain")]
        with stage.worker("film", rate=RATE) as pid:
            _, _, film_ms = await frames_a_second(stage, "film", pid, SESSIONS)
            step = step_ms(STEPS)
            rows += [Row("processor time of a step of the model alone", step, "ms")]
            name = f"processor time a frame beside the model, {SESSIONS} sessions at {RATE}/s"
            rows += [Row(name, film_ms - step, "ms")]
            slowest, ages = await many_at_once(stage, "film", SESSIONS)
            name = f"{SESSIONS} sessions at {RATE}/s"
            rows += [Row(f"{name}: the slowest", slowest, "/s")]
            rows += [Row(f"{name}: input to frame p99", percentile(ages, 0.99), "ms", floor_99, "the chain, p99")]
        with stage.worker("one-seat", seats=1):
            told, shown = await freed_seat_ms(stage, "one-seat", SEATS_FREED)
            rows += [Row("freed seat to the next person's turn p50", statistics.median(told), "ms")]
            rows += [Row("freed seat to the next person's first frame p50", statistics.median(shown), "ms")]
        with stage.worker("row") as pid:
            worker_mb, gateway_mb = await grown_mb(stage, "row", pid)
            rows += [Row(f"memory of the worker, grown in {SESSIONS_IN_A_ROW:,} sessions", worker_mb, "MB")]
            rows += [Row(f"memory of the gateway, grown in {SESSIONS_IN_A_ROW:,} sessions", gateway_mb, "MB")]
        with stage.worker("besieged", rate=RATE):
            staying, rate = await besieged(stage, "besieged")
            rows += [Row(f"{SOCKETS:,} sockets of one address: sessions that it gets", staying, "")]
            rows += [Row(f"{SOCKETS:,} sockets of one address: frames of a person meanwhile, of {RATE}", rate, "/s")]
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
