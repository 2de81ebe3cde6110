"""A model and the stream of its first frame are on two threads: whichever is first, the idle time runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpufleet.model import Frame, Inputs, Session, Traits
from inference import worker as worker_module
from inference.core.inputs import StepInputs
from inference.loading import Loaded
from inference.stepping import ModelCallbacks, ModelThread, RenderedFrame, Seat
from tests.inference.serving import WAIT_S_MAX, Running, serving, until

GRACE_S = 0.05
"""What a thread gets to do what it must not do."""


class Still:
    """It answers inputs, and makes no step by itself."""

    def __init__(self, first: Frame = None) -> None:
        self.first = first

    def open(self, session: Session) -> None:
        return None

    def step(self, state: None, inputs: Inputs) -> Frame:
        return np.full((16, 32, 3), len(inputs.events), np.uint8) if inputs.events else self.first

    def close(self, state: None) -> None:
        pass


def is_counting(running: Running) -> Callable[[], bool]:
    """Whether the worker's only turn says that time goes by without input."""
    return lambda: running.worker.turning.live()[0].since_input.ToMicroseconds() > 1_000


@pytest.fixture(autouse=True)
def no_step_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """A late step, as any may be on a busy machine, would stop the idle time as well."""
    monkeypatch.setattr(worker_module, "STEP_US_LATE", WAIT_S_MAX * 1_000_000)


async def test_idle_time_runs_where_the_first_frame_is_there_before_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ModelThread.begin_stream

    def begin_behind_the_frame(self: ModelThread, seat: Seat, *sinks: Any) -> Any:
        until_s = time.monotonic() + WAIT_S_MAX
        while seat.last is None and time.monotonic() < until_s:
            time.sleep(0.001)
        assert seat.last is not None
        return begin(self, seat, *sinks)

    monkeypatch.setattr(ModelThread, "begin_stream", begin_behind_the_frame)
    async with serving(lambda: Still(np.zeros((16, 32, 3), np.uint8))) as running:
        client = await running.open("s")
        await client.frame()
        await until(is_counting(running))
        client.vanish()
        await until(lambda: not running.worker.turning.held["s"].presence.is_running)
        again = await running.open("s", 2)
        await again.frame()
        await until(lambda: running.worker.turning.held["s"].presence.is_running)
        await again.leave()


async def test_idle_time_runs_where_the_first_frame_comes_behind_the_stream() -> None:
    shows = threading.Event()

    class Slow(Still):
        def step(self, state: None, inputs: Inputs) -> Frame:
            shows.wait(WAIT_S_MAX)
            return super().step(state, inputs)

    async with serving(lambda: Slow(np.zeros((16, 32, 3), np.uint8))) as running:
        client = await running.open("s")
        assert not running.worker.turning.held["s"].presence.is_running
        shows.set()
        await client.frame()
        await until(is_counting(running))
        await client.leave()


async def test_idle_time_runs_where_a_model_has_no_picture_before_the_first_input() -> None:
    async with serving(Still) as running:
        client = await running.open("s")
        await until(is_counting(running))
        await client.leave()


def test_the_frame_that_a_new_stream_begins_with_never_comes_behind_a_newer_one() -> None:
    """A model that answers inputs only would not show the newer one again."""
    nothing: Any = lambda *_: None  # noqa: E731
    told = ModelCallbacks(loaded=nothing, not_loaded=nothing, begun=nothing, failed=nothing, has_room=nothing)
    model = ModelThread(lambda: Loaded(Still(), Traits()), told)
    seat = Seat(session=Session(id="s"), deliver=lambda _: None)
    older, newer = np.zeros((1, 1, 3), np.uint8), np.ones((1, 1, 3), np.uint8)
    taken: StepInputs[Any] = StepInputs(events=(), pointer=None, newest=0, coalesced=0)
    model._deliver(seat, taken, older, 1)
    stepping = threading.Thread(target=model._deliver, args=(seat, taken, newer, 1))
    came: list[Frame] = []

    def first(shot: RenderedFrame) -> None:
        stepping.start()
        stepping.join(GRACE_S)
        came.append(shot.frame)

    model.begin_stream(seat, lambda shot: came.append(shot.frame), first)
    stepping.join()
    assert [each is older for each in came] == [True, False]
