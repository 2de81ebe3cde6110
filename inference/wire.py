"""The contract's messages and the worker's values: the only module that knows both."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import invalid
from gpufleet.model import Card, Event, Key, Pointer, Size, Text, Wheel
from gpufleet.runtimes.facts import RuntimeFacts
from gpufleet.sessions.inputs import (
    DENSITY_MAX,
    PIXELS_MAX,
    check_buttons,
    check_key,
    check_position,
    check_text,
    check_wheel,
)

from .core.inputs import Kind

if TYPE_CHECKING:
    from .stepping import RenderedFrame


def input_from_proto(message: inference_pb2.Input) -> tuple[Kind, Event]:
    """An input as models are given it. Raises INVALID_ARGUMENT with the field's path."""
    number = message.sequence
    match message.WhichOneof("kind"):
        case "pointer":
            pointer = message.pointer
            kind = Kind.BUTTON if pointer.is_button_change else Kind.MOVE
            x = check_position(pointer.x, "input.pointer.x")
            y = check_position(pointer.y, "input.pointer.y")
            return kind, Pointer(x, y, check_buttons(pointer.buttons, "input.pointer.buttons"), number)
        case "key":
            key = message.key
            return Kind.OTHER, Key(check_key(key.key, "input.key.key"), key.is_down, key.is_repeat, number)
        case "text":
            return Kind.OTHER, Text(check_text(message.text, "input.text"), number)
        case "wheel":
            wheel = message.wheel
            across = check_wheel(wheel.delta_x, "input.wheel.delta_x")
            down = check_wheel(wheel.delta_y, "input.wheel.delta_y")
            x = check_position(wheel.x, "input.wheel.x")
            y = check_position(wheel.y, "input.wheel.y")
            return Kind.OTHER, Wheel(across, down, x, y, number)
        case _:
            raise invalid("input.kind", "says nothing that this version knows")


def runtime(facts: RuntimeFacts) -> inference_pb2.ModelRuntime:
    """What a model computes with, as everybody is told."""
    return inference_pb2.ModelRuntime(
        name=facts.name,
        version=facts.version,
        provider=facts.provider,
        device=facts.device,
        device_name=facts.device_name,
        device_memory_bytes=facts.device_memory_bytes,
        driver_version=facts.driver_version,
        memory_limit_bytes=facts.memory_limit_bytes,
        passed_over=facts.passed_over,
    )


def size_from_proto(message: inference_pb2.OpenTurn | inference_pb2.ViewSize) -> Size:
    """The room for the picture; what makes no sense counts as unsaid."""
    density = message.density if math.isfinite(message.density) else 0.0
    return Size(_pixels(message.width), _pixels(message.height), min(max(density, 0.0), DENSITY_MAX))


def _pixels(length: int) -> int:
    return min(max(length, 0), PIXELS_MAX)


def frame_to_proto(
    shot: RenderedFrame, number: int, encoding: str, size: tuple[int, int], data: bytes
) -> inference_pb2.StreamResponse:
    """A frame; `size` is (height, width)."""
    message = inference_pb2.StreamResponse()
    frame = message.frame
    frame.sequence, frame.input_sequence = number, shot.newest
    frame.encoding, frame.data = encoding, data
    frame.height, frame.width = size
    frame.compute_duration.FromMicroseconds(shot.compute_us)
    frame.coalesced_count = shot.coalesced
    return message


def notice(reason: str, message: str, *, is_end: bool) -> inference_pb2.StreamResponse:
    """Something about the turn."""
    said = inference_pb2.StreamNotice(reason=reason, message=message, is_end=is_end)
    return inference_pb2.StreamResponse(notice=said)


def live_turn(
    session: str,
    epoch: int,
    *,
    age_us: int,
    idle_us: int,
    is_attached: bool,
    frames_per_second: float = 0.0,
    delay_us: int | None = None,
) -> sessions_pb2.LiveTurn:
    """A turn in a report."""
    message = sessions_pb2.LiveTurn(
        session=session, epoch=epoch, is_attached=is_attached, frames_per_second=frames_per_second
    )
    if delay_us is not None:
        message.latency.FromMicroseconds(delay_us)
    message.age.FromMicroseconds(age_us)
    message.since_input.FromMicroseconds(idle_us)
    return message


def report(
    state: inference_pb2.WorkerState.ValueType,
    turns: Iterable[sessions_pb2.LiveTurn],
    *,
    progress: float,
    message: str,
    load: float,
    seats: int,
    suspects: Iterable[str],
) -> sessions_pb2.ConnectWorkerRequest:
    """What the worker says of itself."""
    said = sessions_pb2.WorkerReport(
        state=state, progress=progress, turns=turns, message=message, load=load, seats=seats, suspects=suspects
    )
    return sessions_pb2.ConnectWorkerRequest(report=said)


def card(shown: Card) -> sessions_pb2.ModelCard:
    """What people are shown of the model."""
    return sessions_pb2.ModelCard(
        title=shown.title, about=shown.about, controls=shown.controls, keys=shown.keys, picture=shown.picture
    )
