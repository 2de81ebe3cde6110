"""No field of the inputs that go up to a worker, and of the frames and words that come down, is dropped in silence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2

from gateway import protocol
from gateway.person import Person
from gpufleet.errors import GpufleetError
from inference import streaming, wire
from inference.encoding import chosen
from inference.stepping import RenderedFrame
from tests.fields.filled import get, paths, unheard, unsaid_of


async def messages(*said: Any) -> AsyncIterator[Any]:
    """A stream that ends behind these."""
    for each in said:
        yield each


def input_heard(message: inference_pb2.Input) -> object:
    """What a model is given of an input."""
    try:
        return wire.input_from_proto(message)
    except GpufleetError as refused:
        return str(refused)


POINTER = {"pointer.x": 0.25}
WHEEL = {"wheel.delta_x": 1.0}
NEEDS: dict[str, dict[str, Any]] = {
    "text": {"text": "a"},
    "key.key": {"key.key": "a"},
    "sequence": {"text": "a"},
    "key.is_down": {"key.key": "a"},
    "key.is_repeat": {"key.key": "a"},
    **{f"pointer.{name}": POINTER for name in ("x", "y", "buttons", "is_button_change")},
    **{f"wheel.{name}": WHEEL for name in ("delta_x", "delta_y", "x", "y")},
}
PLACES = {"pointer.x": 0.5, "pointer.y": 0.5, "wheel.x": 0.5, "wheel.y": 0.5, "wheel.delta_x": 2.0}


def test_every_field_of_an_input_is_given_to_the_model() -> None:
    traced = {"trace_context": "followed by the stream, beside the model"}
    values = {**PLACES, "key.key": "b"}
    assert not unheard(input_heard, inference_pb2.Input(), values=values, needs=NEEDS, exceptions=traced)


def stream_heard(request: inference_pb2.StreamRequest) -> object:
    """What a worker does with a message of a stream that is open."""
    done: list[object] = []

    def note(what: str) -> Any:
        return lambda *given: done.append((what, given[1:] if what != "shown" else given))

    stream: Any = SimpleNamespace(sender=SimpleNamespace(shown=note("shown")), epoch=4)
    held = SimpleNamespace(seat=SimpleNamespace(inputs=SimpleNamespace(is_full=False)))
    turning = SimpleNamespace(
        held_by=lambda *_: held,
        add=lambda held, message: done.append((input_heard(message), message.trace_context)),
        resize=lambda held, size: done.append(wire.size_from_proto(size)),
        still_here=note("still here"),
        end=note("end"),
    )
    worker: Any = SimpleNamespace(turning=turning, ticket=lambda ticket: SimpleNamespace(session=ticket))
    try:
        if request.WhichOneof("body") == "open":
            ticket, wanted = asyncio.run(streaming._first(worker, messages(request)))
            return ticket.session, wire.size_from_proto(wanted), chosen(wanted.encodings), wanted.is_deliberate
        asyncio.run(streaming._read(worker, "s7", stream, messages(request)))
    except GpufleetError as refused:
        return str(refused)
    return done


def test_every_field_of_what_goes_up_to_a_worker_is_heard() -> None:
    base = inference_pb2.StreamRequest()
    values = {f"input.{path}": value for path, value in {**PLACES, "key.key": "b"}.items()}
    values |= {"open.encodings": ["png"], "open.ticket": "another", "resized.width": 5}
    needs = {
        f"input.{path}": {f"input.{other}": value for other, value in beside.items()} for path, beside in NEEDS.items()
    }
    needs |= {path: {"open.ticket": "one"} for path in paths(base.DESCRIPTOR) if path.startswith("open.")}
    needs |= {path: {"resized.width": 1} for path in paths(base.DESCRIPTOR) if path.startswith("resized.")}
    needs |= {"input.trace_context": {"input.text": "a"}, "shown.frame": {"shown.frame": 7}}
    assert not unheard(stream_heard, base, values=values, needs=needs)


TYPED: list[dict[str, Any]] = [
    {"type": "pointer", "x": 0.5, "y": 0.25, "buttons": 3, "button_change": True},
    {"type": "key", "key": "a", "down": True, "repeat": True},
    {"type": "text", "text": "a"},
    {"type": "wheel", "dx": 1, "dy": 2, "x": 0.5, "y": 0.25},
]


def test_every_field_of_an_input_is_read_of_a_browser() -> None:
    read = [protocol.read(json.dumps({**each, "seq": 3})) for each in TYPED]
    assert all(isinstance(each, inference_pb2.Input) for each in read)
    never = {path for path in paths(inference_pb2.Input.DESCRIPTOR) if not any(get(each, path) for each in read)}  # type: ignore[arg-type]
    assert never == {"trace_context"}  # the gateway's own


def test_every_field_of_a_frame_goes_to_the_browser() -> None:
    def sent(shot: RenderedFrame) -> inference_pb2.StreamResponse:
        return wire.frame_to_proto(shot, 1, "png", (2, 3), b"picture")

    one = RenderedFrame(frame=b"", newest=1, coalesced=2, compute_us=3)
    of_shot = {"frame": "the bytes are made of it", "trace": "followed by the stream, beside the frame"}
    other = RenderedFrame(frame=b"f", newest=4, coalesced=5, compute_us=6, trace="trace")
    assert not unsaid_of(sent, one, other, exceptions=of_shot)
    frame = sent(one).frame
    assert {field.name for field, _ in frame.ListFields()} == set(frame.DESCRIPTOR.fields_by_name)
    exceptions = {
        "sequence": "numbered on by the gateway through the streams of a person",
        "coalesced_count": "for clients without a gateway",
    }
    values = {"encoding": "png", "compute_duration": timedelta(seconds=1)}
    assert not unheard(
        lambda frame: protocol.frame_bytes(frame, 9), inference_pb2.Frame(), values=values, exceptions=exceptions
    )
    assert protocol.frame_bytes(frame, 8) != protocol.frame_bytes(frame, 9)


def test_every_field_of_an_opened_turn_and_of_a_place_goes_to_the_browser() -> None:
    opened = inference_pb2.TurnOpened()
    exceptions = {"epoch": "the gateway's own grant has it"}
    assert not unheard(lambda each: protocol.turn_text(each, "key", "n1"), opened, exceptions=exceptions)
    of_gateway = {"session": "the gateway's grant has it, and the turn tells it"}
    assert not unheard(protocol.place_text, sessions_pb2.PlaceInfo(), exceptions=of_gateway)


def test_every_field_of_what_the_scheduler_tells_of_a_person_is_told() -> None:
    def told(notice: sessions_pb2.SessionNotice) -> object:
        said: list[object] = []
        person: Any = object.__new__(Person)
        person._place, person._lines = object(), SimpleNamespace(forget=lambda place: None)
        person._news, person._say = asyncio.Queue(), said.append
        person.on_told(sessions_pb2.OpenSessionResponse(notice=notice))
        return said

    base = sessions_pb2.SessionNotice(reason="IDLE")
    exceptions = {"end_time": "told as the time that remains: a browser's clock may be another"}
    assert not unheard(told, base, values={"reason": "TURN"}, exceptions=exceptions)
