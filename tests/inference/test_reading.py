"""What a model may read of its inputs: text, keys, what is held, the pointer's way, and the room for the picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpufleet.v1 import inference_pb2

from gpufleet.model import Inputs, Key, Pointer, Session, Size, Text
from gpufleet.sessions import inputs
from inference import wire
from tests.inference.serving import Client, Running, serving, until


class Reader:
    """Keeps what it was given, and shows another picture with each step."""

    seats = 4

    def __init__(self) -> None:
        self.sessions: list[Session] = []
        self.steps: list[Inputs] = []

    def open(self, session: Session) -> None:
        self.sessions.append(session)

    def step(self, state: None, inputs: Inputs) -> Any:
        self.steps.append(inputs)
        return np.full((8, 8, 3), len(self.steps) % 256, np.uint8)

    def close(self, state: None) -> None:
        pass

    @property
    def events(self) -> list[Any]:
        return [event for inputs in self.steps for event in inputs.events]


async def type_(client: Client, key: str) -> None:
    """As a page says it: the key, what it writes, the key again."""
    await client.key(key)
    await client.input(text=key)
    await client.key(key, is_down=False)


async def seen(client: Client, reader: Reader) -> Inputs:
    """What the last step was given, once there was one with every input."""
    await client.frame_with(client.sequence)
    return reader.steps[-1]


async def test_text_keys_and_what_is_held_are_read_without_looking_at_events() -> None:
    reader = Reader()
    async with serving(lambda: reader) as running:
        client = await running.open("s")
        await client.key("Shift")
        await type_(client, "H")
        await type_(client, "i")
        await client.key("ArrowLeft")
        last = await seen(client, reader)
        assert "".join(each.typed for each in reader.steps) == "Hi"
        keys = [(key.key, key.is_down) for each in reader.steps for key in each.keys]
        assert keys == [
            ("Shift", True),
            *(("H", True), ("H", False)),
            *(("i", True), ("i", False)),
            ("ArrowLeft", True),
        ]
        assert last.held == {"Shift", "ArrowLeft"}
        await client.key("Shift", is_down=False)
        assert (await seen(client, reader)).held == {"ArrowLeft"}
        await client.move(0.1, 0.1)
        assert (await seen(client, reader)).held == {"ArrowLeft"}, "also in a step without a key"
        await client.leave()


async def test_the_path_has_every_position_since_the_step_before() -> None:
    inputs = Inputs(
        events=(Pointer(0.2, 0.2, 1), Text("a"), Key("b", True), Text("c")), path=(Pointer(0.1, 0.1), Pointer(0.2, 0.2))
    )
    assert (inputs.typed, inputs.keys) == ("ac", (Key("b", True),))
    reader = Reader()
    async with serving(lambda: reader) as running:
        client = await running.open("s")
        way = [(round(0.05 * number, 2), 0.5) for number in range(1, 15)]
        for at in way:
            await client.move(*at)
        await client.click(0.9, 0.5)
        last = await seen(client, reader)
        assert [(each.x, each.y) for inputs in reader.steps for each in inputs.path] == [*way, (0.9, 0.5)]
        assert last.path[-1] == last.pointer
        await client.key("a")
        assert (await seen(client, reader)).path == ()
        await client.leave()


@pytest.mark.parametrize("is_taken_over", [False, True])
async def test_what_is_held_as_a_connection_is_lost_comes_up_by_itself(is_taken_over: bool) -> None:
    reader = Reader()
    async with serving(lambda: reader) as running:
        client = await running.open("s")
        await client.key("w")
        await client.click(0.3, 0.4)
        await seen(client, reader)
        if not is_taken_over:
            client.vanish()
            await until(lambda: len(reader.events) >= 4)
        again = await running.open("s", 2)
        await again.move(0.5, 0.5)
        last = await seen(again, reader)
        assert reader.events == [
            Key("w", True, False, 1),
            Pointer(0.3, 0.4, 1, 2),
            Key("w", False),
            Pointer(0.3, 0.4, 0),
        ]
        assert last.held == frozenset() and last.pointer is not None and last.pointer.buttons == 0
        await again.leave()


async def test_a_model_is_told_the_room_for_its_picture_and_each_change_of_it() -> None:
    reader = Reader()
    async with serving(lambda: reader) as running:
        client = await running.open("s", width=1_280, height=720, density=2.0)
        await client.frame()
        assert reader.sessions == [Session(id="s", width=1_280, height=720, density=2.0)]
        assert reader.steps[0].size == Size(1_280, 720, 2.0)
        steps = len(reader.steps)
        await client.say(resized=inference_pb2.ViewSize(width=640, height=360, density=1.0))
        await until(lambda: reader.steps[-1].size == Size(640, 360, 1.0))
        assert len(reader.steps) == steps + 1, "a change is stepped, once"
        await client.say(resized=inference_pb2.ViewSize(width=640, height=360, density=1.0))
        again = await running.open("s", 2)
        await again.move(0.1, 0.1)
        assert (await seen(again, reader)).size == Size(640, 360, 1.0), "who does not say it leaves it as it was"
        await running.open("s", 3, width=100, height=50, density=3.0)
        await until(lambda: reader.steps[-1].size == Size(100, 50, 3.0))


@pytest.mark.parametrize(
    ("said", "size"),
    [
        (inference_pb2.ViewSize(), Size()),
        (inference_pb2.ViewSize(width=-5, height=2**30, density=float("nan")), Size(0, inputs.PIXELS_MAX, 0.0)),
        (inference_pb2.ViewSize(width=5, density=1e9), Size(5, 0, inputs.DENSITY_MAX)),
    ],
)
def test_a_size_that_makes_no_sense_is_cut_or_counts_as_unsaid(said: inference_pb2.ViewSize, size: Size) -> None:
    assert wire.size_from_proto(said) == size


async def idle_us(running: Running) -> int:
    return int(running.worker.turning.live()[0].since_input.ToMicroseconds())


async def test_a_stream_that_a_person_asked_for_is_real_input_and_one_that_is_opened_again_is_not() -> None:
    async with serving(Reader) as running:
        client = await running.open("s")
        assert client.opened is not None and client.opened.move_min == pytest.approx(0.004)
        presence = running.worker.turning.held["s"].presence
        presence._idle_us = 10_000_000
        await running.open("s", 2)
        assert presence._idle_us >= 10_000_000
        last = await running.open("s", 3, is_deliberate=True)
        assert presence._idle_us < 10_000_000
        await last.leave()


async def test_real_input_after_a_long_time_is_told_at_once() -> None:
    async with serving(Reader) as running:
        client = await running.open("s")
        await client.frame()
        presence = running.worker.turning.held["s"].presence
        changed = running.worker.changed
        for seconds, is_told in ((5, True), (1, False)):
            presence._idle_us = seconds * 1_000_000
            changed.clear()
            await client.key("a")
            await client.frame_with(client.sequence)
            assert (changed.is_set(), presence._idle_us) == (is_told, 0)
        await client.leave()
