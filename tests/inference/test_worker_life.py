"""A worker's life: what loading says, what a hanging step costs, and what a thousand sessions leave behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf.json_format import MessageToDict
from gpufleet.v1 import inference_pb2

from gpufleet.errors import Reason
from gpufleet.model import Inputs, Progress, Session, Traits, traits_of
from gpufleet.runtimes import facts
from inference import wire
from inference import worker as worker_module
from inference.loading import NotLoaded, Wanted, load
from inference.turning import Turning
from inference.worker import FAILED
from tests.inference.serving import WAIT_S_MAX, Client, serving, until

SESSIONS = 1_000
WARM_SESSIONS = 200
GROWTH_BYTES_MAX = 8_000_000


class State:
    """A session's state, large enough to be missed."""

    def __init__(self) -> None:
        self.field = np.zeros(200_000, np.uint8)


class Small:
    """A model whose states are counted."""

    seats = 4

    def __init__(self) -> None:
        self.states: weakref.WeakSet[State] = weakref.WeakSet()
        self.hang = threading.Event()
        self.hang.set()

    def open(self, session: Session) -> State:
        state = State()
        self.states.add(state)
        return state

    def step(self, state: State, inputs: Inputs) -> Any:
        self.hang.wait(WAIT_S_MAX)
        state.field[: len(inputs.events)] += 1
        return state.field[: 16 * 16 * 3].reshape(16, 16, 3).copy()

    def close(self, state: State) -> None:
        pass


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4_096


async def test_a_thousand_sessions_leave_the_memory_flat() -> None:
    model = Small()
    async with serving(lambda: model) as running:
        before = 0
        for number in range(SESSIONS):
            if number == WARM_SESSIONS:
                gc.collect()
                before = resident_bytes()
            client = await running.open(f"s{number}", encodings=["raw"])
            await client.frame()
            if number % 2:
                await client.leave()
            else:
                running.worker.turning.end(f"s{number}", 1, "TURN_ENDED")
                await client.end()
        await until(lambda: not running.worker.turning.held)
        gc.collect()
        grown = resident_bytes() - before
        # 800 states of 200 kB each would be 160 MB.
        assert grown < GROWTH_BYTES_MAX, f"grown by {grown / 1e6:.1f} MB in {SESSIONS - WARM_SESSIONS} sessions"
        await until(lambda: len(model.states) <= 1)


async def test_a_step_that_hangs_costs_the_worker_which_names_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Small()
    async with serving(lambda: model) as running:
        try:
            other = await running.open("other")
            client = await running.open("s")
            await other.frame()
            await client.frame()
            # Not before: on a busy machine any step may take so long.
            await until(lambda: running.worker.model.call is None)
            monkeypatch.setattr(worker_module, "STEP_US_MAX", 300_000)
            monkeypatch.setattr(worker_module, "STEP_US_LATE", 100_000)
            model.hang.clear()
            await client.key("a")
            for each in (client, other):
                last = await each.end()
                assert last is not None and last.reason == "WORKER_LOST"
            worker = running.worker
            assert worker.failure is not None and worker.failure.reason is Reason.MODEL_HANGS
            said = worker.report().report
            assert (said.state, list(said.suspects)) == (FAILED, ["s"])
        finally:
            model.hang.set()
        await until(lambda: running.worker.model.call is None)
        assert running.worker.model.stop(WAIT_S_MAX)


async def test_a_late_step_stops_the_idle_time_and_its_end_lets_it_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "STEP_US_LATE", 50_000)
    model = Small()
    async with serving(lambda: model) as running:
        client = await running.open("s")
        await client.frame()
        presence = running.worker.turning.held["s"].presence
        await until(lambda: presence.is_running)
        model.hang.clear()
        await client.move(0.1, 0.1)
        await until(lambda: not presence.is_running)
        model.hang.set()
        await until(lambda: presence.is_running)
        await client.leave()


async def test_idle_time_is_told_and_only_real_input_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # A late step, as any may be on a busy machine, would stop the idle time as well.
    monkeypatch.setattr(worker_module, "STEP_US_LATE", WAIT_S_MAX * 1_000_000)
    async with serving(Small) as running:
        client = await running.open("s")
        await client.frame()
        turning = running.worker.turning
        held = turning.held["s"]
        await until(lambda: turning.live()[0].since_input.ToMicroseconds() > 1_000)
        since = held.presence._counted_us
        await client.move(0.5, 0.5)
        await until(lambda: held.presence._counted_us != since)
        since = held.presence._counted_us
        await client.move(0.5005, 0.5)
        await client.key("a", is_repeat=True)
        await client.key("a", is_down=False)
        await until(lambda: held.seat.inputs._added == 4)
        assert held.presence._counted_us == since
        acts: tuple[Callable[[], Awaitable[Any]], ...] = (
            lambda: client.click(0.6, 0.5),
            lambda: client.key("b"),
            lambda: client.move(0.9, 0.5),
            lambda: client.input(text="c"),
            lambda: client.say(still_here=True),
        )
        for act in acts:
            since = held.presence._counted_us
            await act()
            await until(lambda since=since: held.presence._counted_us != since)  # type: ignore[misc]
        await client.leave()


async def test_a_turn_without_a_stream_ends_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.core.turns.KEPT_US_MAX", 200_000)
    model = Small()
    async with serving(lambda: model) as running:
        client = await running.open("s")
        await client.frame()
        client.vanish()
        await until(lambda: not running.worker.turning.held)
        assert running.worker.turning.ends[-1].reason == "DISCONNECTED"
        await until(lambda: not model.states)


async def test_old_words_change_nothing_and_acknowledged_ends_are_dropped() -> None:
    async with serving(Small) as running:
        turning: Turning = running.worker.turning
        await running.open("s", 3)
        assert not turning.end("s", 2, "IDLE")
        assert not turning.end("t", 9, "IDLE")
        assert turning.end("s", 3, "IDLE")
        assert [(each.session, each.epoch, each.reason, each.number) for each in turning.ends] == [("s", 3, "IDLE", 1)]
        turning.acknowledged(1)
        assert not turning.ends


async def test_a_worker_whose_model_cannot_be_loaded_says_what_is_missing() -> None:
    async with serving(entry_point="no_such_package.models:Lamp") as running:
        worker = running.worker
        assert worker.state == FAILED
        assert worker.failure is not None and worker.failure.reason is Reason.MODEL_NOT_LOADED
        assert "there is no module no_such_package" in worker.message
        info = await running.stub.GetModelInfo(inference_pb2.GetModelInfoRequest())
        assert (info.state, info.seats) == (FAILED, 0)


COMPUTES = """
import numpy as np
from gpufleet.onnx import session
from gpufleet.runtimes.probe import one_node_model

class Twice:
    def __init__(self, device):
        self.net = session(one_node_model(), device)
    def open(self, session): ...
    def step(self, state, inputs): return np.zeros((8, 8, 3), np.uint8)
    def close(self, state): ...
"""


async def test_a_worker_says_what_its_model_computes_with_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(facts, "_noted", {})
    name = f"computes_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(COMPUTES)
    monkeypatch.syspath_prepend(tmp_path)
    async with serving(entry_point=f"{name}:Twice") as running:
        (said,) = (await running.stub.GetModelInfo(inference_pb2.GetModelInfoRequest())).runtimes
        assert (said.name, said.version, said.provider) == ("onnxruntime", onnxruntime.__version__, "cpu")
        assert said.device == "cpu" and said.device_name and said.device_memory_bytes > 0


def test_every_fact_of_a_runtime_reaches_the_contract() -> None:
    words = {each.name: each.name for each in fields(facts.RuntimeFacts)}
    given: Any = words | {"device_memory_bytes": 7, "memory_limit_bytes": 3, "passed_over": ("a: b",)}
    said = wire.runtime(facts.RuntimeFacts(**given))
    assert {each.name for each, _ in said.ListFields()} == set(words)
    assert MessageToDict(said, preserving_proto_field_name=True) == {
        **words,
        "device_memory_bytes": "7",
        "memory_limit_bytes": "3",
        "passed_over": ["a: b"],
    }
    assert set(words) == {each.name for each in inference_pb2.ModelRuntime.DESCRIPTOR.fields}


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of models that tests write; its name."""
    name = f"models_{tmp_path.name.replace('-', '_')}"
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / f"{name}.py").write_text(
        """
class Model:
    def __init__(self, *, steps: int = 1, gain: float = 1.0, is_on: bool = False, name="x", device="", progress=None):
        self.given = (steps, gain, is_on, name, device)
        if progress:
            progress(0.5, "half of it")
    def open(self, session): ...
    def step(self, state, inputs): ...
    def close(self, state): ...

class NeedsFile(Model):
    def __init__(self): open("/nowhere/weights.pt")

class NeedsModule(Model):
    def __init__(self): import flash_attention_9

class Leaves(Model):
    def __init__(self): raise SystemExit(3)

class Unread(Model):
    def __init__(self): import unread

class Mute: ...

class Greedy(Model):
    seats = 0
"""
    )
    (tmp_path / "unread.py").write_text("a = 1\ndef step(\n")
    return name


def loaded(entry_point: str, **arguments: str) -> Any:
    said: list[tuple[float, str]] = []
    progress: Progress = lambda share, words: said.append((share, words))  # noqa: E731
    found = load(Wanted(entry_point=entry_point, arguments=arguments, device="cuda:3"), progress)
    assert [share for share, _ in said] == sorted(share for share, _ in said)
    return found


def test_arguments_are_read_as_what_they_are_annotated_with(models: str) -> None:
    found = loaded(f"{models}:Model", steps="7", gain="0.5", is_on="on", name="5")
    assert found.model.given == (7, 0.5, True, "5", "cuda:3")
    assert found.traits == Traits()


@pytest.mark.parametrize(
    ("entry_point", "arguments", "said"),
    [
        ("Model", {"stepps": "1"}, 'has no argument stepps; did you mean "steps"? (it takes steps, gain'),
        ("Model", {"steps": "1.5"}, '--model-arg steps: "1.5" is not a whole number'),
        ("Model", {"is_on": "maybe"}, "is not on or off"),
        ("NeedsFile", {}, "there is no file /nowhere/weights.pt"),
        ("NeedsModule", {}, "the model needs flash_attention_9, which is not installed"),
        ("Leaves", {}, "SystemExit: 3"),
        ("Mute", {}, "TypeError: Mute has no method open"),
        ("Greedy", {}, "TypeError: Greedy.seats is 0, and should be a number from 1"),
        ("Modell", {}, "has no Modell"),
        ("Unread", {}, "/unread.py, line 2)"),
    ],
)
def test_what_cannot_be_loaded_says_so_in_one_sentence(
    models: str, entry_point: str, arguments: dict[str, str], said: str
) -> None:
    with pytest.raises(NotLoaded) as caught:
        loaded(f"{models}:{entry_point}", **arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_no_entry_point_is_compared_with_what_is_shipped() -> None:
    with pytest.raises(NotLoaded, match="test-pattern"):
        loaded("test-patern")


def test_what_a_model_says_of_itself_is_read() -> None:
    class Ticking(Small):
        ticks_per_second = 30
        takes_one_input = True
        width, height = 64, 48

        def step_many(self, states: Any, inputs: Any) -> Any: ...

    assert traits_of(Ticking()) == Traits(
        ticks_per_second=30.0, seats=4, takes_one_input=True, width=64, height=48, steps_together=True
    )


async def test_a_model_that_animates_ticks_by_itself_and_sleeps_while_nobody_is_there() -> None:
    class Ticking(Small):
        ticks_per_second = 200

        def __init__(self) -> None:
            super().__init__()
            self.count = 0
            self.elapsed: list[float] = []

        def step(self, state: State, inputs: Inputs) -> Any:
            self.count += 1
            self.elapsed.append(inputs.elapsed_s)
            return np.full((8, 8, 3), self.count % 256, np.uint8)

    model = Ticking()
    async with serving(lambda: model) as running:
        client: Client = await running.open("s", encodings=["raw"])
        for _ in range(20):
            await client.frame()
        assert model.elapsed[0] == 0.0 and all(each > 0 for each in model.elapsed[1:])
        await client.leave()
        await until(lambda: not model.states)
        count = model.count
        await asyncio.sleep(0.05)
        assert model.count == count
