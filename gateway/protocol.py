"""What browsers and the gateway say to each other: JSON texts, and frames in binary. docs/web-protocol.md documents it.

Pure: from texts to values and back. What a browser says wrongly raises INVALID_ARGUMENT with the field.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import invalid
from gpufleet.sessions.inputs import (
    BUTTONS_MAX,
    DENSITY_MAX,
    KEY_CHARS_MAX,
    PIXELS_MAX,
    SEQUENCE_MAX,
    TEXT_CHARS_MAX,
    check_buttons,
    check_key,
    check_position,
    check_text,
    check_wheel,
)

VERSION = 1
"""The protocol's version: a browser names it in its hello."""

MESSAGE_BYTES_MAX = 16_384
"""No message of a browser is longer: the longest holds 1,000 characters of text."""

NAME_CHARS_MAX = 63
PLACE_KEY_CHARS_MAX = 128
PASS_PHRASE_CHARS_MAX = 200

ENCODINGS = {"jpeg": 1, "png": 2, "webp": 3, "raw": 4}
"""The number of each encoding in a frame's header."""

FRAME_HEADER = struct.Struct(">BBHHxxIII")
"""Version, encoding, width, height, frame, newest input that it shows, compute time in microseconds: 20 bytes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A browser's first message: which model, the key of an earlier place, and whether a session elsewhere is kept.

    `is_deliberate`: a person asked for it just now, and no page by itself. `pass_phrase` is what the person said to be
    let in; empty for nothing.
    """

    model: str
    place_key: str
    width: int
    height: int
    encodings: tuple[str, ...]
    keeps_other: bool = False
    density: float = 0.0
    is_deliberate: bool = False
    pass_phrase: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class Resized:
    """The room for the picture is of another size, in pixels of the screen."""

    width: int
    height: int
    density: float


@dataclass(frozen=True, slots=True)
class Shown:
    """A frame is on the screen, and with it every one before."""

    frame: int


@dataclass(frozen=True, slots=True)
class StillHere:
    """The answer to an idle warning."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The person leaves for good."""


@dataclass(frozen=True, slots=True)
class Ping:
    """A probe; the answer carries the same number."""

    number: int


Said = Shown | StillHere | Leave | Ping | Resized | inference_pb2.Input


def read_hello(text: str) -> Hello:
    """The first message. Raises INVALID_ARGUMENT."""
    message = _object(text)
    if message.get("type") != "hello":
        raise invalid("type", 'of the first message must be "hello"')
    if message.get("version") != VERSION:
        raise invalid("version", f"must be {VERSION}", next_step="Load the page again.")
    encodings = message.get("encodings", ["jpeg"])
    if not isinstance(encodings, list) or not all(isinstance(each, str) for each in encodings):
        raise invalid("encodings", "must be a list of names")
    return Hello(
        model=_text(message, "model", NAME_CHARS_MAX),
        place_key=_text(message, "place_key", PLACE_KEY_CHARS_MAX, default=""),
        width=_whole(message, "width", PIXELS_MAX, default=0),
        height=_whole(message, "height", PIXELS_MAX, default=0),
        encodings=tuple(each for each in encodings if each in ENCODINGS),
        keeps_other=message.get("keeps_other") is True,
        density=_density(message),
        is_deliberate=message.get("deliberate") is True,
        pass_phrase=_text(message, "pass_phrase", PASS_PHRASE_CHARS_MAX, default=""),
    )


def read(text: str) -> Said:
    """Any later message. Raises INVALID_ARGUMENT."""
    message = _object(text)
    match message.get("type"):
        case "shown":
            return Shown(_whole(message, "frame", 2**32 - 1))
        case "still_here":
            return StillHere()
        case "leave":
            return Leave()
        case "ping":
            return Ping(_whole(message, "number", 2**53))
        case "resize":
            width, height = _whole(message, "width", PIXELS_MAX), _whole(message, "height", PIXELS_MAX)
            return Resized(width, height, _density(message))
        case "pointer" | "key" | "text" | "wheel" as kind:
            return _input(kind, message)
        case other:
            raise invalid("type", f"{other!r} is no message of this protocol")


def _input(kind: str, message: Mapping[str, Any]) -> inference_pb2.Input:
    said = inference_pb2.Input(sequence=_whole(message, "seq", SEQUENCE_MAX, least=1))
    match kind:
        case "pointer":
            said.pointer.x = check_position(_number(message, "x"), "x")
            said.pointer.y = check_position(_number(message, "y"), "y")
            said.pointer.buttons = check_buttons(_whole(message, "buttons", BUTTONS_MAX, default=0), "buttons")
            said.pointer.is_button_change = message.get("button_change") is True
        case "key":
            said.key.key = check_key(_text(message, "key", KEY_CHARS_MAX), "key")
            said.key.is_down = message.get("down") is True
            said.key.is_repeat = message.get("repeat") is True
        case "text":
            said.text = check_text(_text(message, "text", TEXT_CHARS_MAX), "text")
        case _:
            said.wheel.delta_x = check_wheel(_number(message, "dx"), "dx")
            said.wheel.delta_y = check_wheel(_number(message, "dy"), "dy")
            said.wheel.x = check_position(_number(message, "x"), "x")
            said.wheel.y = check_position(_number(message, "y"), "y")
    return said


def is_mere_move(said: inference_pb2.Input) -> bool:
    """Whether an input gives way to the next one like it."""
    return said.WhichOneof("kind") == "pointer" and not said.pointer.is_button_change


def frame_bytes(frame: inference_pb2.Frame, number: int) -> bytes:
    """A frame as the browser gets it: the header, then the picture as the worker encoded it."""
    compute_us = frame.compute_duration.seconds * 1_000_000 + frame.compute_duration.nanos // 1_000
    header = FRAME_HEADER.pack(
        VERSION,
        ENCODINGS.get(frame.encoding, 0),
        min(frame.width, 65_535),
        min(frame.height, 65_535),
        number & 0xFFFFFFFF,
        frame.input_sequence & 0xFFFFFFFF,
        min(compute_us, 2**32 - 1),
    )
    return header + frame.data


def place_text(place: sessions_pb2.PlaceInfo) -> str:
    """Where a person stands."""
    said: dict[str, Any] = {"type": "place", "place": place.place, "line_length": place.line_length}
    if place.HasField("estimated_wait"):
        said["estimated_wait_s"] = place.estimated_wait.ToMilliseconds() / 1e3
    if place.HasField("longest_wait"):
        said["longest_wait_s"] = place.longest_wait.ToMilliseconds() / 1e3
    if place.bound_cause:
        said["bound_cause"] = place.bound_cause
    return _with_key(said, place.place_key)


def turn_text(opened: inference_pb2.TurnOpened, place_key: str, worker: str = "") -> str:
    """A turn is open: frames follow. `worker` is the name of what runs it."""
    said = {
        "type": "turn",
        "session": opened.session,
        "encoding": opened.encoding,
        "is_resumed": opened.is_resumed,
        "worker": worker,
        "move_min": opened.move_min,
    }
    return _with_key(said, place_key)


def notice_text(reason: str, message: str, remaining_s: float | None = None) -> str:
    """News of a turn that goes on."""
    said: dict[str, Any] = {"type": "notice", "reason": reason, "message": message}
    if remaining_s is not None:
        said["remaining_s"] = remaining_s
    return json.dumps(said)


def end_text(reason: str, message: str) -> str:
    """The session is over, and why."""
    return json.dumps({"type": "end", "reason": reason, "message": message})


def pong_text(number: int) -> str:
    """The answer to a ping."""
    return json.dumps({"type": "pong", "number": number})


def error_text(field_message: str, next_step: str) -> str:
    """What was wrong with a message; the connection is closed behind it."""
    return json.dumps({"type": "error", "message": field_message, "next_step": next_step})


def _with_key(said: dict[str, Any], place_key: str) -> str:
    if place_key:
        said["place_key"] = place_key
    return json.dumps(said)


def _object(text: str) -> Mapping[str, Any]:
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):
        raise invalid("message", "is not JSON") from None
    if not isinstance(message, dict):
        raise invalid("message", "is not a JSON object")
    return message


def _text(message: Mapping[str, Any], field: str, most: int, default: str | None = None) -> str:
    value = message.get(field, default)
    if not isinstance(value, str) or len(value) > most:
        raise invalid(field, f"must be a text of at most {most:,} characters")
    if not value.isascii() and any("\ud800" <= each <= "\udfff" for each in value):
        raise invalid(field, "holds half of a character")
    return value


def _whole(message: Mapping[str, Any], field: str, most: int, default: int | None = None, least: int = 0) -> int:
    value = message.get(field, default)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid(field, f"must be a whole number from {least} to {most:,}")
    return value


def _density(message: Mapping[str, Any]) -> float:
    value = message.get("density", 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= DENSITY_MAX:
        raise invalid("density", f"must be a number from 0 to {DENSITY_MAX:g}")
    return float(value)


def _number(message: Mapping[str, Any], field: str) -> float:
    value = message.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise invalid(field, "must be a number")
    return value
