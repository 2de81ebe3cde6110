"""The contract's messages and the worker's values: the only module that knows both."""

from __future__ import annotations

import math
from collections.abc import Iterable

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.model import Event, Key, Pointer, Text, Wheel

from .core.inputs import Kind
from .stepping import Shot

TEXT_CHARS_MAX = 1_000
KEY_CHARS_MAX = 40
DELTA_MAX = 100_000.0
BUTTONS_MAX = 0xFF


def input_from_proto(message: inference_pb2.Input) -> tuple[Kind, Event]:
    """An input as models are given it. Raises INVALID_ARGUMENT with the field's path."""
    number = message.sequence
    match message.WhichOneof("kind"):
        case "pointer":
            pointer = message.pointer
            kind = Kind.BUTTON if pointer.is_button_change else Kind.MOVE
            x, y = _share(pointer.x, "pointer.x"), _share(pointer.y, "pointer.y")
            if not 0 <= pointer.buttons <= BUTTONS_MAX:
                raise invalid("input.pointer.buttons", f"{pointer.buttons} is no mask of buttons")
            return kind, Pointer(x, y, pointer.buttons, number)
        case "key":
            key = message.key
            if not 1 <= len(key.key) <= KEY_CHARS_MAX:
                raise invalid("input.key.key", f"has {len(key.key)} characters, and should have 1 to {KEY_CHARS_MAX}")
            return Kind.OTHER, Key(key.key, key.is_down, key.is_repeat, number)
        case "text":
            if len(message.text) > TEXT_CHARS_MAX:
                raise invalid("input.text", f"is longer than {TEXT_CHARS_MAX} characters")
            return Kind.OTHER, Text(message.text, number)
        case "wheel":
            wheel = message.wheel
            across, down = _delta(wheel.delta_x, "wheel.delta_x"), _delta(wheel.delta_y, "wheel.delta_y")
            return Kind.OTHER, Wheel(across, down, _share(wheel.x, "wheel.x"), _share(wheel.y, "wheel.y"), number)
        case _:
            raise invalid("input.kind", "says nothing that this version knows")


def frame_to_proto(
    shot: Shot, number: int, encoding: str, size: tuple[int, int], data: bytes
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


def live_turn(session: str, epoch: int, *, age_us: int, idle_us: int, is_attached: bool) -> sessions_pb2.LiveTurn:
    """A turn in a report."""
    message = sessions_pb2.LiveTurn(session=session, epoch=epoch, is_attached=is_attached)
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


def _share(value: float, path: str) -> float:
    return min(max(_finite(value, path), 0.0), 1.0)


def _delta(value: float, path: str) -> float:
    return min(max(_finite(value, path), -DELTA_MAX), DELTA_MAX)


def _finite(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise _not_finite(path)
    return value


def _not_finite(path: str) -> GpufleetError:
    return invalid(f"input.{path}", "is not a finite number")
