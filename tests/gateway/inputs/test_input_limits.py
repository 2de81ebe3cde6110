"""One set of limits for a session's inputs: the worker takes what the gateway lets pass, and texts and page agree."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2
from hypothesis import example, given
from hypothesis import strategies as st

from gateway import protocol
from gpufleet.errors import GpufleetError, Reason
from gpufleet.model import Key, Pointer, Size, Text, Wheel
from gpufleet.sessions import inputs
from inference import wire

ROOT = Path(__file__).parents[3]
EDGES = (
    *(
        edge
        for most in (0, 1, inputs.BUTTONS_MAX, 255, inputs.WHEEL_PIXELS_MAX, 1_000_000)
        for edge in (most, most + 1)
    ),
    *(-1, 0.5, 1e308, 10**400, -(10**400), float("inf"), float("nan"), True, None, "1"),
)
numbers = st.sampled_from(EDGES) | st.floats() | st.integers()
lengths = st.sampled_from(
    [most + more for most in (0, inputs.KEY_CHARS_MAX, 40, inputs.TEXT_CHARS_MAX) for more in (0, 1)]
)
characters = st.sampled_from(["a", "é", "\U0001f600", "\u200b", "\0"])
texts = st.builds(lambda each, length: each * length, characters, lengths) | st.text(max_size=40)
sequences = st.sampled_from([-1, 0, 1, inputs.SEQUENCE_MAX, inputs.SEQUENCE_MAX + 1]) | st.integers()
flags = st.booleans()
messages = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("pointer"), "seq": sequences, "x": numbers, "y": numbers},
        optional={"buttons": numbers, "button_change": flags},
    ),
    st.fixed_dictionaries({"type": st.just("key"), "seq": sequences, "key": texts}, optional={"down": flags}),
    st.fixed_dictionaries({"type": st.just("text"), "seq": sequences, "text": texts}),
    st.fixed_dictionaries(
        {"type": st.just("wheel"), "seq": sequences, "dx": numbers, "dy": numbers, "x": numbers, "y": numbers}
    ),
)


@given(messages)
@example({"type": "key", "seq": 1, "key": ""})
@example({"type": "key", "seq": 1, "key": "k" * 33})
@example({"type": "wheel", "seq": 1, "dx": 10**400, "dy": 0, "x": 0, "y": 0})
def test_what_the_gateway_lets_pass_the_worker_takes_unchanged(message: dict[str, Any]) -> None:
    try:
        passed = protocol.read(json.dumps(message))
    except GpufleetError as refused:
        assert refused.reason is Reason.INVALID_ARGUMENT
        assert refused.violations[0].field in message
        return
    assert isinstance(passed, inference_pb2.Input)
    _, event = wire.input_from_proto(passed)
    assert event.sequence == passed.sequence >= 1
    match event:
        case Pointer():
            assert (event.x, event.y, event.buttons) == (passed.pointer.x, passed.pointer.y, passed.pointer.buttons)
            assert 0 <= event.x <= 1 and 0 <= event.y <= 1
        case Key():
            assert event.key == passed.key.key == message["key"]
        case Text():
            assert event.text == passed.text == message["text"]
        case Wheel():
            assert (event.delta_x, event.delta_y) == (passed.wheel.delta_x, passed.wheel.delta_y)


def browser(kind: str, **fields: object) -> str:
    return json.dumps({"type": kind, "seq": 1, **fields})


@pytest.mark.parametrize(
    ("said", "sent"),
    [
        (browser("key", key=""), inference_pb2.Input(key=inference_pb2.KeyInput(key=""))),
        (browser("key", key="k" * 33), inference_pb2.Input(key=inference_pb2.KeyInput(key="k" * 33))),
        (browser("text", text="x" * 1_001), inference_pb2.Input(text="x" * 1_001)),
        (
            browser("pointer", x=0, y=0, buttons=32),
            inference_pb2.Input(pointer=inference_pb2.PointerInput(buttons=32)),
        ),
        (
            browser("wheel", x=0, y=0, dx=float("inf"), dy=0),
            inference_pb2.Input(wheel=inference_pb2.WheelInput(delta_x=float("inf"))),
        ),
    ],
)
def test_what_one_side_refuses_the_other_refuses_too(said: str, sent: inference_pb2.Input) -> None:
    with pytest.raises(GpufleetError) as at_gateway:
        protocol.read(said)
    with pytest.raises(GpufleetError) as at_worker:
        wire.input_from_proto(sent)
    (one,), (other,) = at_gateway.value.violations, at_worker.value.violations
    assert other.field.startswith("input.") and one.field in ("key", "text", "buttons", "dx")


def test_a_turn_of_the_wheel_and_a_position_beyond_the_limits_count_as_the_limit_on_both_sides() -> None:
    passed = protocol.read(browser("wheel", dx=2e6, dy=-2e6, x=7, y=-7))
    direct = inference_pb2.Input(sequence=1, wheel=inference_pb2.WheelInput(delta_x=2e6, delta_y=-2e6, x=7, y=-7))
    assert isinstance(passed, inference_pb2.Input)
    most = float(inputs.WHEEL_PIXELS_MAX)
    assert wire.input_from_proto(passed) == wire.input_from_proto(direct)
    assert wire.input_from_proto(passed)[1] == Wheel(most, -most, 1.0, 0.0, 1)


def test_the_largest_room_that_the_gateway_lets_pass_is_the_worker_s_largest() -> None:
    most, density = inputs.PIXELS_MAX, inputs.DENSITY_MAX
    said = protocol.read(json.dumps({"type": "resize", "width": most, "height": most, "density": density}))
    assert isinstance(said, protocol.Resized)
    size = inference_pb2.ViewSize(width=said.width, height=said.height, density=said.density)
    assert wire.size_from_proto(size) == Size(most, most, density)
    beyond = inference_pb2.ViewSize(width=most + 1, height=most + 1, density=density + 1)
    assert wire.size_from_proto(beyond) == Size(most, most, density)


def test_the_documented_limits_are_those_of_the_code() -> None:
    text = (ROOT / "docs" / "web-protocol.md").read_text()
    rows = dict(re.findall(r"^\| (`.*?) \| (.*?) \| .*\|$", text.partition("same limits")[2], re.MULTILINE))
    documented = {
        names: [int(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", row)] for names, row in rows.items()
    }
    assert documented == {
        "`seq`": [1, inputs.SEQUENCE_MAX],
        "`x`, `y`": [],
        "`buttons`": [0, inputs.BUTTONS_MAX],
        "`key`": [1, inputs.KEY_CHARS_MAX],
        "`text`": [inputs.TEXT_CHARS_MAX],
        "`dx`, `dy`": [inputs.WHEEL_PIXELS_MAX],
        "`width`, `height`": [0, inputs.PIXELS_MAX],
        "`density`": [0, int(inputs.DENSITY_MAX)],
    }


def test_the_page_has_the_limits_of_the_code() -> None:
    source = (ROOT / "gateway" / "web" / "src" / "wire.ts").read_text()
    found = {name: int(value.replace("_", "")) for name, value in re.findall(r"const (\w+_MAX) = ([\d_]+);", source)}
    assert found == {name: getattr(inputs, name) for name in found}
    assert set(found) == {name for name in vars(inputs) if name.endswith("_MAX")} - {"SEQUENCE_MAX"}
