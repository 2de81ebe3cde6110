"""The limits of a session's inputs and the check of each field, for the gateway, the worker and other clients alike.

Each check is given a value and the field's name as its caller's clients know it, and returns the value as a model gets
it; a wrong one raises INVALID_ARGUMENT that names the field. So the worker takes whatever the gateway lets pass.
docs/web-protocol.md states the numbers, and gateway/web/src/wire.ts keeps the page within them.
"""

from __future__ import annotations

import math

from ..errors import invalid

TEXT_CHARS_MAX = 1_000
"""Most characters (code points) of one text; it may be empty."""

KEY_CHARS_MAX = 32
"""Most characters of a key's name, as in the web's KeyboardEvent.key; it has at least one."""

BUTTONS_MAX = 0b11111
"""The five buttons that the web's MouseEvent.buttons knows, all of them down."""

WHEEL_PIXELS_MAX = 100_000
"""The longest turn of a wheel, in pixels either way; a longer one counts as this."""

SEQUENCE_MAX = 2**32 - 1
"""The highest number of an input that a frame's header can hold. It bounds browsers: the contract's numbers go on."""

PIXELS_MAX = 8_192
"""The largest width and height of the room for a picture, in pixels of the screen."""

DENSITY_MAX = 16.0
"""Most pixels of the screen to one of the page."""


def check_position(value: float, field: str) -> float:
    """A share of the picture, 0 to 1; what lies outside counts as the edge."""
    return min(max(_finite(value, field), 0.0), 1.0)


def check_wheel(value: float, field: str) -> float:
    """A turn of the wheel, in pixels, at most WHEEL_PIXELS_MAX either way; what is more counts as that."""
    return float(min(max(_finite(value, field), -WHEEL_PIXELS_MAX), WHEEL_PIXELS_MAX))


def check_buttons(value: int, field: str) -> int:
    """A mask of the buttons that are down."""
    if not 0 <= value <= BUTTONS_MAX:
        raise invalid(field, f"{value} is no mask of buttons: it must be 0 to {BUTTONS_MAX}")
    return value


def check_key(value: str, field: str) -> str:
    """A key's name."""
    if not 1 <= len(value) <= KEY_CHARS_MAX:
        raise invalid(field, f"has {len(value):,} characters, and must have 1 to {KEY_CHARS_MAX}")
    return value


def check_text(value: str, field: str) -> str:
    """Text that was typed, entered or pasted."""
    if len(value) > TEXT_CHARS_MAX:
        raise invalid(field, f"has {len(value):,} characters, and must have {TEXT_CHARS_MAX:,} at most")
    return value


def _finite(value: float, field: str) -> float:
    try:
        number = float(value)
    except OverflowError:  # a whole number of JSON may have any length
        number = math.inf
    if not math.isfinite(number):
        raise invalid(field, "is not a finite number")
    return number
