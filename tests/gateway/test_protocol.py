"""What browsers say, and what they are sent: nothing that they say gets through without its bounds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gpufleet.v1 import inference_pb2
from hypothesis import given
from hypothesis import strategies as st

from gateway.identity import Identities, identity_of
from gateway.protocol import (
    FRAME_HEADER,
    Hello,
    Leave,
    Resized,
    Shown,
    StillHere,
    frame_bytes,
    is_mere_move,
    read,
    read_hello,
)
from gpufleet.errors import GpufleetError


def said(**message: Any) -> Any:
    return read(json.dumps(message))


def test_each_input_becomes_that_of_the_contract() -> None:
    pointer = said(type="pointer", seq=3, x=0.25, y=1, buttons=1, button_change=True)
    assert (pointer.sequence, pointer.pointer.x, pointer.pointer.y) == (3, 0.25, 1.0)
    assert (pointer.pointer.buttons, pointer.pointer.is_button_change) == (1, True)
    assert not is_mere_move(pointer)
    assert is_mere_move(said(type="pointer", seq=4, x=0, y=0))
    key = said(type="key", seq=5, key="Enter", down=True)
    assert (key.key.key, key.key.is_down, key.key.is_repeat) == ("Enter", True, False)
    assert said(type="text", seq=6, text="schön").text == "schön"
    wheel = said(type="wheel", seq=7, dx=1, dy=-2.5, x=0.5, y=0.5).wheel
    assert (wheel.delta_x, wheel.delta_y, wheel.x) == (1.0, -2.5, 0.5)
    assert said(type="shown", frame=9) == Shown(9)
    assert said(type="still_here") == StillHere()
    assert said(type="leave") == Leave()
    assert said(type="resize", width=2_560, height=1_440, density=2) == Resized(2_560, 1_440, 2.0)


def test_a_hello_says_the_room_for_the_picture_and_whether_a_person_asked_for_it() -> None:
    bare: dict[str, Any] = {"type": "hello", "version": 1, "model": "drawn"}
    assert read_hello(json.dumps(bare)) == Hello("drawn", "", 0, 0, ("jpeg",))
    whole = bare | {"width": 780, "height": 1_200, "density": 2.5, "deliberate": True}
    assert read_hello(json.dumps(whole)) == Hello("drawn", "", 780, 1_200, ("jpeg",), density=2.5, is_deliberate=True)
    for field, value in (("width", 8_193), ("height", -1), ("density", 17), ("density", "2"), ("density", True)):
        with pytest.raises(GpufleetError) as refused:
            read_hello(json.dumps(bare | {field: value}))
        assert refused.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"type": "pointer", "seq": 1, "x": "0", "y": 0}, "x"),
        ({"type": "pointer", "seq": -1, "x": 0, "y": 0}, "seq"),
        ({"type": "pointer", "seq": True, "x": 0, "y": 0}, "seq"),
        ({"type": "key", "seq": 1, "key": "k" * 33}, "key"),
        ({"type": "text", "seq": 1, "text": "x" * 1_001}, "text"),
        ({"type": "wheel", "seq": 1, "dx": 0, "dy": None, "x": 0, "y": 0}, "dy"),
        ({"type": "shown"}, "frame"),
        ({"type": "resize", "height": 5}, "width"),
        ({"type": "resize", "width": 5, "height": 5, "density": -1}, "density"),
        ({"type": "dance"}, "type"),
    ],
)
def test_a_wrong_field_is_named(message: dict[str, Any], field: str) -> None:
    with pytest.raises(GpufleetError) as refused:
        read(json.dumps(message))
    assert refused.value.message.startswith(f"{field}: ")


@given(st.text() | st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
def test_nothing_that_is_said_does_more_than_be_refused(text: str) -> None:
    with pytest.raises(GpufleetError):
        read(text)


def test_a_frame_begins_with_its_header() -> None:
    frame = inference_pb2.Frame(sequence=4, input_sequence=9, encoding="png", width=512, height=384, data=b"picture")
    frame.compute_duration.FromMicroseconds(1_234)
    sent = frame_bytes(frame, 70_000)
    assert FRAME_HEADER.size == 20
    assert FRAME_HEADER.unpack_from(sent) == (1, 2, 512, 384, 70_000, 9, 1_234)
    assert sent[20:] == b"picture"


def test_a_cookie_is_known_to_gateways_of_the_same_token_alone() -> None:
    here, there, elsewhere = Identities("token"), Identities("token"), Identities("another")
    person, cookie = here.new()
    assert here.known(cookie) == there.known(cookie) == person
    assert elsewhere.known(cookie) is None
    # Of the last character of base64 some bits say nothing; of the one before all do.
    assert here.known(cookie[:-2] + ("A" if cookie[-2] != "A" else "B") + cookie[-1]) is None
    assert here.known(None) is None
    assert person not in identity_of(person)
