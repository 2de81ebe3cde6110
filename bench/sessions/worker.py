"""A worker alone: from an input to its frame, frames a second, and how old the newest input is that a frame shows.

The floor is a bare grpc.aio server that echoes 30 kB on an open stream, in a process of its own as the worker is.
"""

import asyncio
import os
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import simplejpeg
from gpufleet.v1 import inference_pb2, inference_pb2_grpc

from gpufleet.net.addresses import parse_address
from gpufleet.net.channel import Target, connect_async
from gpufleet.security.tickets import sign_ticket, ticket_for
from inference.models.test_pattern import TestPattern

from ..floors import SERVICE, echo_channel
from ..measures import cpu_seconds
from ..rows import Row, Run, percentile

FRAME = b"x" * 30_000
STEP_MS = 20.0
FLOOD_S = 5.0
RATE_S = 3.0
SESSIONS = 16
START_S_MAX = 60.0
MOVES_A_SECOND, CLICKS_A_SECOND = 1_000, 10
ECHOES_IN_FLIGHT = 4


@dataclass(frozen=True)
class Served:
    """A running worker."""

    stub: Any
    pid: int
    start: str
    secret: bytes

    async def open(self, session: str) -> "Turn":
        """A stream with a frame already shown."""
        ticket = ticket_for(session, 1, worker_start=self.start, identity="0" * 64, now_s=time.time())
        call = self.stub.Stream()
        opening = inference_pb2.OpenTurn(ticket=sign_ticket(ticket, self.secret), encodings=["jpeg"])
        await call.write(inference_pb2.StreamRequest(open=opening))
        assert (await call.read()).WhichOneof("body") == "opened"
        turn = Turn(call)
        await turn.frame()
        return turn


@dataclass
class Turn:
    """One stream: sends inputs and remembers when, reads frames and says that they are shown."""

    call: Any
    sent_at: list[float] = field(default_factory=lambda: [0.0])
    _one_write: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def input(self, x: float, *, is_click: bool) -> None:
        """A move, or a button that goes down."""
        self.sent_at.append(time.perf_counter())
        number = len(self.sent_at) - 1
        pointer = inference_pb2.PointerInput(x=x, y=0.5, buttons=int(is_click), is_button_change=is_click)
        message = inference_pb2.Input(sequence=number, pointer=pointer)
        await self._write(inference_pb2.StreamRequest(input=message))

    async def frame(self) -> inference_pb2.Frame:
        """The next frame, said to be shown."""
        message = await self.call.read()
        assert message is not grpc.aio.EOF and message.WhichOneof("body") == "frame", message
        shown = inference_pb2.FrameShown(frame=message.frame.sequence)
        await self._write(inference_pb2.StreamRequest(shown=shown))
        frame: inference_pb2.Frame = message.frame
        return frame

    async def leave(self) -> None:
        """End the turn, so that its seat is free."""
        await self._write(inference_pb2.StreamRequest(leave=True))
        while await self.call.read() is not grpc.aio.EOF:
            pass

    async def _write(self, message: inference_pb2.StreamRequest) -> None:
        # grpc.aio breaks the call where a second write comes before the first one's end.
        async with self._one_write:
            await self.call.write(message)


@asynccontextmanager
async def serving(
    folder: Path, *, model: str = "test-pattern", words: Sequence[str] = (), **arguments: object
) -> AsyncIterator[Served]:
    """A worker with this model, as a person starts it; `words` are options of its own."""
    secret = folder / "ticket.secret"
    words = [*words]
    words += [word for name, value in arguments.items() for word in ("--model-arg", f"{name}={value}")]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.inference", model, "--standalone", "--port", "0"),
        *("--ticket-secret-file", str(secret), *words),
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "XDG_STATE_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)},
    )
    assert process.stderr is not None
    try:
        said = ""
        async with asyncio.timeout(START_S_MAX):
            while "ready: " not in said:
                line = (await process.stderr.readline()).decode()
                assert line, said
                said += line
        found = re.search(r"listening on (\S+), start (\w+)", said)
        assert found is not None, said
        async with connect_async(Target(address=parse_address(found[1]))) as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            yield Served(stub, process.pid, found[2], bytes.fromhex(secret.read_text()))
    finally:
        process.terminate()
        await process.communicate()


async def echo_ms(count: int) -> list[float]:
    """Round trips of 30 kB on an open stream, in milliseconds."""
    times: list[float] = []
    async with echo_channel() as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Stream")()
        for _ in range(count):
            begin = time.perf_counter()
            await call.write(FRAME)
            await call.read()
            times.append((time.perf_counter() - begin) * 1e3)
        call.cancel()
    return times


async def echoes_a_second() -> float:
    """Echoes of 30 kB a second on an open stream, a few in flight."""
    async with echo_channel() as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/Stream")()
        for _ in range(ECHOES_IN_FLIGHT):
            await call.write(FRAME)
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < RATE_S:
            await call.read()
            await call.write(FRAME)
            count += 1
        call.cancel()
        return count / (time.perf_counter() - begin)


async def input_to_frame_ms(served: Served, count: int) -> list[float]:
    """From a click to the frame that shows it, one after the other on an idle worker, in milliseconds."""
    times: list[float] = []
    turn = await served.open("latency")
    for number in range(1, count + 1):
        await turn.input(0.5, is_click=True)
        while (await turn.frame()).input_sequence < number:
            pass
        times.append((time.perf_counter() - turn.sent_at[number]) * 1e3)
    await turn.leave()
    return times


async def frames_a_second(served: Served, sessions: int) -> tuple[float, float]:
    """Frames that arrive in a second in all, and processor time of the worker for each, in milliseconds."""
    turns = [await served.open(f"rate-{sessions}-{number}") for number in range(sessions)]
    busy = cpu_seconds(served.pid)
    begin = time.perf_counter()
    until = begin + RATE_S

    async def take(turn: Turn) -> int:
        count = 0
        while time.perf_counter() < until:
            await turn.frame()
            count += 1
        return count

    count = sum(await asyncio.gather(*(take(turn) for turn in turns)))
    seconds, busy = time.perf_counter() - begin, cpu_seconds(served.pid) - busy
    for turn in turns:
        turn.call.cancel()
    return count / seconds, busy / count * 1e3


async def ages_ms(served: Served, moves: int, clicks: int) -> tuple[list[float], int]:
    """How old the newest input of each frame is when it arrives, and how many clicks no frame has shown.

    `moves` and `clicks` a second, sent at their times whatever comes back. The picture itself says what it shows.
    """
    turn = await served.open(f"flood-{moves}-{clicks}")
    ages: list[float] = []
    total, each_s = moves + clicks, 1 / (moves + clicks)
    last = inference_pb2.Frame()
    number_max = round(FLOOD_S * total)

    async def read() -> None:
        nonlocal last
        while last.input_sequence < number_max:
            last = await turn.frame()
            if last.input_sequence:
                ages.append((time.perf_counter() - turn.sent_at[last.input_sequence]) * 1e3)

    reading = asyncio.create_task(read())
    begin = time.perf_counter()
    clicked = 0
    for number in range(number_max):
        if (wait_s := begin + number * each_s - time.perf_counter()) > 0:
            await asyncio.sleep(wait_s)
        is_click = number % (total // clicks) == 0
        clicked += is_click
        await turn.input(number % 97 / 97, is_click=is_click)
    async with asyncio.timeout(START_S_MAX):
        await reading
    seen = shown_clicks(last.data)
    await turn.leave()
    return ages, clicked - seen


def shown_clicks(picture: bytes) -> int:
    """The number in the picture's last row: how many times a button went down."""
    return int(TestPattern().read(simplejpeg.decode_jpeg(picture), 2))


async def _measure(run: Run) -> list[Row]:
    echo = await echo_ms(run.rounds)
    echoes = await echoes_a_second()
    rows = [Row("floor: 30 kB echo on a stream p50", statistics.median(echo), "ms")]
    rows += [Row("floor: 30 kB echo on a stream p99", percentile(echo, 0.99), "ms")]
    rows += [Row(f"floor: 30 kB echoes, {ECHOES_IN_FLIGHT} in flight", echoes, "/s")]
    async with serving(run.folder) as served:
        times = await input_to_frame_ms(served, run.rounds)
        floor = statistics.median(echo)
        rows += [Row("input to frame, 512×384 JPEG p50", statistics.median(times), "ms", floor, "30 kB echo p50")]
        rows += [Row("input to frame, 512×384 JPEG p99", percentile(times, 0.99), "ms", floor, "30 kB echo p50")]
    async with serving(run.folder, rate=2_000) as served:
        one, one_ms = await frames_a_second(served, 1)
        rows += [Row("frames of one session", one, "/s", echoes, "30 kB echoes")]
        rows += [Row("processor time of the worker a frame, one session", one_ms, "ms")]
    async with serving(run.folder, rate=150) as served:
        many, many_ms = await frames_a_second(served, SESSIONS)
        rows += [Row(f"frames of {SESSIONS} sessions, total", many, "/s", echoes, "30 kB echoes")]
        rows += [Row(f"processor time of the worker a frame, {SESSIONS} sessions", many_ms, "ms")]
    async with serving(run.folder, sleep_ms=STEP_MS) as served:
        for moves, clicks in ((MOVES_A_SECOND, CLICKS_A_SECOND), (0, 50)):
            ages, lost = await ages_ms(served, moves, clicks)
            name = f"{moves:,} moves/s + {clicks} clicks/s" if moves else f"{clicks} clicks/s"
            rows += [Row(f"age of the newest input p99, {name}", percentile(ages, 0.99), "ms", STEP_MS, "one step")]
            rows += [Row(f"clicks lost, {name}", lost, "")]
    return rows


def measure(run: Run) -> list[Row]:
    """The rows of the group `worker`."""
    return asyncio.run(_measure(run))
