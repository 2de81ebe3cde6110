"""Streams against a real server: what goes up comes back as frames, and turns begin and end as they should."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from gpufleet.v1 import inference_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from PIL import Image

from gpufleet.errors import Code, GpufleetError, Reason
from gpufleet.model import Inputs, Key, Pointer, Session, Text
from gpufleet.net.local_stream import can_be_local
from gpufleet.security.tickets import TICKET_LIFE_S
from inference import turning, worker
from inference.models.test_pattern import TestPattern
from inference.worker import READY
from tests.inference import serving as served
from tests.inference.serving import WAIT_S_MAX, Running, until

Serving = Callable[..., AbstractAsyncContextManager[Running]]
CARRIERS = ("grpc", "local") if can_be_local() else ("grpc",)


@pytest.fixture(params=CARRIERS)
def serving(request: pytest.FixtureRequest) -> Serving:
    """A worker that is reached by gRPC, and one by its local socket: what is said is the same."""
    return partial(served.serving, is_local=request.param == "local")


class Recorder:
    """Shows how many inputs it was given, and keeps them. It fails on the text "fail"."""

    seats = 8
    width, height = 32, 16

    def __init__(self) -> None:
        self.events: dict[str, list[Any]] = {}
        self.closed: list[str] = []
        self.batches: list[int] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def open(self, session: Session) -> str:
        self.events[session.id] = []
        if session.id == "no entry":
            raise PermissionError("not you")
        return session.id

    def step(self, state: str, inputs: Inputs) -> Any:
        self.go_on.wait(WAIT_S_MAX)
        for event in inputs.events:
            self.events[state].append(event)
            match event:
                case Text("fail"):
                    raise MemoryError("out of memory: 80 GB wanted")
                case Text("nonsense"):
                    return "no picture"
        return np.full((16, 32, 3), len(self.events[state]) % 256, np.uint8)

    def close(self, state: str) -> None:
        self.closed.append(state)
        if state == "bad end":
            raise OSError("cannot close")


class Together(Recorder):
    """Steps sessions together."""

    def step_many(self, states: Sequence[str], inputs: Sequence[Inputs]) -> list[Any]:
        self.batches.append(len(states))
        return [self.step(state, each) for state, each in zip(states, inputs, strict=True)]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker for which no step takes too long: a test holds one for as long as what it sends is on its way."""
    monkeypatch.setattr(worker, "STEP_US_MAX", 10 * WAIT_S_MAX * 1_000_000)


def pixel(frame: inference_pb2.Frame) -> int:
    """The one value of a Recorder's picture."""
    return int(np.frombuffer(frame.data, np.uint8)[0])


async def refused(running: Running, ticket: str) -> Reason:
    with pytest.raises(GpufleetError) as caught:
        await (await running.client()).open(ticket)
    return caught.value.reason


async def test_a_click_is_shown_and_the_frame_names_it(serving: Serving) -> None:
    pattern = TestPattern(width=256, height=192)
    async with serving(lambda: pattern) as running:
        client = await running.open("s", encodings=["webm", "png"])
        assert client.opened is not None
        assert (client.opened.encoding, client.opened.is_resumed) == ("png", False)
        first = await client.frame()
        assert (first.sequence, first.input_sequence, first.width, first.height) == (1, 0, 256, 192)
        await client.move(0.25, 0.25)
        await client.click()
        frame = await client.frame_with(2)
        picture = np.asarray(Image.open(io.BytesIO(frame.data)))
        assert [pattern.read(picture, row) for row in (0, 2)] == [2, 1]
        await client.leave()
        await until(lambda: not running.worker.turning.held)


@pytest.mark.parametrize("encoding", ["jpeg", "webp", "png", "raw"])
async def test_every_encoding_shows_the_same_numbers(encoding: str, serving: Serving) -> None:
    pattern = TestPattern(width=512, height=384)
    async with serving(lambda: pattern) as running:
        client = await running.open("s", encodings=[encoding])
        for _ in range(12):
            await client.click()
        frame = await client.frame_with(12)
        if encoding == "raw":
            picture: Any = np.frombuffer(frame.data, np.uint8).reshape(frame.height, frame.width, 3)
        else:
            picture = np.asarray(Image.open(io.BytesIO(frame.data)).convert("RGB"))
        assert pattern.read(picture, 0) == 12
        await client.leave()


@pytest.mark.usefixtures("patient")
async def test_a_flood_of_moves_loses_no_click_and_keeps_their_order_and_places(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s")
        await client.frame()
        model.go_on.clear()
        for number in range(200):
            for _ in range(5):
                await client.move(0.9, 0.9)
            await client.click(number / 200, 0.25)
        held = running.worker.turning.held["s"]
        await until(lambda: held.seat.inputs._added == client.sequence)
        model.go_on.set()
        frames = [await client.frame()]
        while frames[-1].input_sequence < client.sequence:
            frames.append(await client.frame())
        assert sum(frame.coalesced_count for frame in frames) >= 990
        clicks = [event for event in model.events["s"] if isinstance(event, Pointer)]
        assert [(each.x, each.y, each.sequence) for each in clicks] == [
            (number / 200, 0.25, 6 * (number + 1)) for number in range(200)
        ]
        await client.leave()


async def test_a_picture_that_has_not_changed_is_not_sent(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s", encodings=["raw"])
        assert pixel(await client.frame()) == 0
        for _ in range(5):
            await client.move(0.1, 0.1)
        await client.key("a")
        frame = await client.frame()
        assert (frame.sequence, frame.input_sequence, pixel(frame)) == (2, 6, 1)
        await client.leave()


class Expecting:
    """A rhythm that has a step wait until two inputs have come."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, at_us: int) -> None:
        self.count += 1

    def better_at(self, at_us: int, step_us: int) -> int | None:
        return None if self.count == 2 else at_us + 1_000_000 * round(WAIT_S_MAX)


async def test_a_step_waits_for_an_input_that_is_about_to_come_and_begins_with_it(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s", encodings=["raw"])
        await client.frame()
        running.worker.turning.held["s"].seat.rhythm = Expecting()  # type: ignore[assignment]
        await client.key("a")
        await client.key("b")
        frame = await client.frame()
        assert (frame.input_sequence, pixel(frame)) == (2, 2)
        await client.leave()


async def test_nobody_waits_for_the_inputs_of_somebody_else(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        ann, bob = [await running.open(name, encodings=["raw"]) for name in ("ann", "bob")]
        for each in (ann, bob):
            await each.frame()
        running.worker.turning.held["ann"].seat.rhythm = Expecting()  # type: ignore[assignment]
        await ann.key("a")
        assert (await ann.frame()).input_sequence == 1
        for each in (ann, bob):
            await each.leave()


async def test_who_says_nothing_is_shown_gets_a_few_frames_and_then_the_newest(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s", encodings=["raw"])
        frames = [await client.frame(says_shown=False)]
        for number in range(1, 50):
            await client.key("a")
            while len(model.events["s"]) < number:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        frames.append(await client.frame(says_shown=False))
        # The model's thread has been given the last key, and may still be on its way with the picture.
        stream = running.worker.turning.held["s"].stream
        assert stream is not None
        outlet = stream.sender._outlet
        await until(lambda: outlet.waiting is not None and outlet.waiting.newest == 49)
        await client.say(shown=inference_pb2.FrameShown(frame=2))
        frames.append(await client.frame())
        assert [each.sequence for each in frames] == [1, 2, 3]
        assert (pixel(frames[2]), frames[2].input_sequence) == (49, 49)
        await client.leave()


async def test_an_input_may_bring_the_word_that_a_frame_was_shown(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s", encodings=["raw"])
        assert pixel(await client.frame(says_shown=False)) == 0
        await client.key("a")
        await until(lambda: len(model.events["s"]) == 1)
        await client.key("a")
        await until(lambda: len(model.events["s"]) == 2)
        assert pixel(await client.frame(says_shown=False)) == 1
        # The window is full, and the picture of two keys waits behind it.
        key = inference_pb2.Input(sequence=3, key=inference_pb2.KeyInput(key="a", is_down=True))
        await client.say(input=key, shown_frame=2)
        frames = [await client.frame(says_shown=False)]
        while frames[-1].input_sequence < 3:
            frames.append(await client.frame(says_shown=False))
        assert pixel(frames[-1]) == 3
        client.sequence = 3
        await client.leave()


async def test_a_higher_epoch_takes_the_turn_over_with_its_state_and_the_old_stream_hears_so(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        old = await running.open("s", encodings=["raw"])
        await old.input(text="a")
        await old.frame_with(1)
        new = await running.open("s", 2, encodings=["raw"])
        assert new.opened is not None and new.opened.is_resumed
        last = await old.end()
        assert last is not None and (last.reason, last.is_end) == ("MOVED", True)
        frame = await new.frame()
        assert (frame.sequence, frame.input_sequence, pixel(frame)) == (1, 0, 1)
        await new.key("b")
        assert pixel(await new.frame_with(1)) == 2
        assert [turn.epoch for turn in running.worker.turning.turns.live()] == [2]
        await new.leave()
        await until(lambda: model.closed == ["s"])


async def test_a_stream_that_vanishes_leaves_the_turn_waiting_and_comes_back(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s", encodings=["raw"])
        await client.input(text="a")
        await client.frame_with(1)
        client.vanish()
        await until(lambda: running.worker.turning.turns.live()[0].detached_us is not None)
        assert not model.closed
        again = await running.open("s", 2, encodings=["raw"])
        assert pixel(await again.frame()) == 1
        await again.leave()


async def test_a_ticket_opens_once_and_nothing_else_opens_anything(serving: Serving) -> None:
    async with serving(Recorder) as running:
        ticket = running.ticket("s")
        client = await running.client()
        await client.open(ticket)
        assert await refused(running, ticket) is Reason.TICKET_REFUSED
        assert await refused(running, running.ticket("s", 0)) is Reason.TICKET_REFUSED
        assert await refused(running, running.ticket("s", 2, identity="1" * 64)) is Reason.TICKET_REFUSED
        late = time.time() - TICKET_LIFE_S - 1
        assert await refused(running, running.ticket("t", at_s=late)) is Reason.TICKET_REFUSED
        assert await refused(running, ticket[:-1]) is Reason.TICKET_REFUSED
        assert await refused(running, "") is Reason.TICKET_REFUSED
        await client.leave()
        assert await refused(running, ticket) is Reason.TICKET_REFUSED
        assert not running.worker.turning.held


async def test_a_stream_that_comes_before_its_seat_is_free_waits_for_it(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        clients = [await running.open(f"s{number}") for number in range(8)]
        with patch.object(turning, "SEAT_WAIT_S", WAIT_S_MAX):
            early = asyncio.ensure_future(running.open("t"))
            await until(lambda: running.worker.turning.early_count == 1)
            running.worker.turning.end("s3", 1, "TURN_ENDED", "Your turn is over.")
            await (await early).leave()
        for client in clients[:3] + clients[4:]:
            await client.leave()


async def test_no_seat_is_given_twice(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        clients = [await running.open(f"s{number}") for number in range(8)]
        with patch.object(turning, "SEAT_WAIT_S", 0.05):
            assert await refused(running, running.ticket("t")) is Reason.NO_FREE_SEAT
        running.worker.turning.end("s3", 1, "TURN_ENDED", "Your turn is over.")
        last = await clients[3].end()
        assert last is not None and (last.reason, last.message) == ("TURN_ENDED", "Your turn is over.")
        await (await running.open("t")).leave()
        for client in clients[:3] + clients[4:]:
            await client.leave()


@pytest.mark.usefixtures("patient")
async def test_several_sessions_are_stepped_together(serving: Serving) -> None:
    model = Together()
    async with serving(lambda: model) as running:
        clients = [await running.open(f"s{number}", encodings=["raw"]) for number in range(5)]
        for client in clients:
            await client.frame()
        model.go_on.clear()
        for client in clients:
            await client.key("a")
        # The first to come is being stepped; those that wait are stepped together then.
        held = running.worker.turning.held
        await until(lambda: all(each.seat.inputs._added for each in held.values()))
        model.go_on.set()
        for client in clients:
            assert pixel(await client.frame_with(1)) == 1
        assert max(model.batches) >= 2
        # One fails: it alone ends, though the step together fell.
        model.go_on.clear()
        await clients[0].key("b")
        for client in clients[1:]:
            await client.input(text="fail" if client is clients[2] else "fine")
        model.go_on.set()
        last = await clients[2].end()
        assert last is not None and last.reason == "MODEL_FAILED"
        for client in clients[:2] + clients[3:]:
            await client.leave()


@pytest.mark.parametrize(
    ("session", "text", "said"),
    [
        ("s", "fail", "MemoryError: out of memory: 80 GB wanted"),
        ("s", "nonsense", "step gave str of <U10 and shape (), expected uint8 of (height, width, 3)"),
        ("no entry", "", "PermissionError: not you"),
        ("bad end", "fail", "MemoryError: out of memory: 80 GB wanted"),
    ],
)
async def test_a_model_that_fails_ends_that_session_only_and_says_why(
    session: str, text: str, said: str, serving: Serving
) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        other = await running.open("other", encodings=["raw"])
        client = await running.open(session)
        if text:
            await client.input(text=text)
        last = await client.end()
        assert last is not None and (last.reason, last.message, last.is_end) == ("MODEL_FAILED", said, True)
        assert running.worker.turning.ends[-1].reason == "MODEL_FAILED"
        assert running.worker.turning.ends[-1].message == said
        await other.key("a")
        assert pixel(await other.frame_with(1)) == 1
        await other.leave()
        assert running.worker.state == READY


@pytest.mark.parametrize(
    "message",
    [
        inference_pb2.StreamRequest(open=inference_pb2.OpenTurn()),
        inference_pb2.StreamRequest(input=inference_pb2.Input(sequence=1)),
        inference_pb2.StreamRequest(input=inference_pb2.Input(sequence=0, text="a")),
        inference_pb2.StreamRequest(input=inference_pb2.Input(sequence=1, text="a" * 1_001)),
        inference_pb2.StreamRequest(
            input=inference_pb2.Input(sequence=1, pointer=inference_pb2.PointerInput(x=float("nan")))
        ),
        inference_pb2.StreamRequest(
            input=inference_pb2.Input(sequence=1, wheel=inference_pb2.WheelInput(delta_x=float("inf")))
        ),
        inference_pb2.StreamRequest(
            input=inference_pb2.Input(sequence=1, pointer=inference_pb2.PointerInput(buttons=-1))
        ),
        inference_pb2.StreamRequest(input=inference_pb2.Input(sequence=1, key=inference_pb2.KeyInput())),
    ],
)
async def test_what_makes_no_sense_ends_the_stream_and_not_the_turn(
    message: inference_pb2.StreamRequest, serving: Serving
) -> None:
    async with serving(Recorder) as running:
        client = await running.open("s")
        await client.call.write(message)
        with pytest.raises(GpufleetError) as caught:
            await client.end()
        assert caught.value.code is Code.INVALID_ARGUMENT
        await (await running.open("s", 2)).leave()


async def test_positions_beyond_the_edge_count_as_the_edge(serving: Serving) -> None:
    model = Recorder()
    async with serving(lambda: model) as running:
        client = await running.open("s")
        await client.click(-3.0, 7.5)
        await client.key("a")
        await client.frame_with(2)
        assert model.events["s"] == [Pointer(0.0, 1.0, 1, 1), Key("a", True, False, 2)]
        await client.leave()


async def test_a_worker_says_what_it_serves_and_that_it_is_well(serving: Serving) -> None:
    async with serving(Recorder) as running:
        info = await running.stub.GetModelInfo(inference_pb2.GetModelInfoRequest())
        assert (info.model, info.seats, info.width, info.height) == ("C", 8, 32, 16)
        assert info.worker_start == running.worker.described.start
        assert list(info.encodings) == ["jpeg", "png", "webp", "raw"]
        await running.server.tell_health()
        health = health_pb2_grpc.HealthStub(running.stub_channel)
        answer = await health.Check(health_pb2.HealthCheckRequest(service="gpufleet.v1.Inference"))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_a_draining_worker_finishes_after_its_last_turn(serving: Serving) -> None:
    async with serving(Recorder) as running:
        client = await running.open("s")
        running.worker.drain()
        assert await refused(running, running.ticket("t")) is Reason.WORKER_NOT_READY
        assert not running.worker._finished.is_set()
        await client.leave()
        await until(running.worker._finished.is_set)
        assert running.worker.failure is None
