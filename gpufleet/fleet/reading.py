"""What was typed, read; what cannot be read is refused in the option's name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.text.spelling import did_you_mean

T = TypeVar("T")


def read(option: str, parse: Callable[[str], T], text: str, hint: str = "") -> T:
    """What `parse` makes of the text. Raises INVALID_ARGUMENT with the option, and `hint` as the next step, if any."""
    try:
        return parse(text)
    except GpufleetError as problem:
        raise invalid(option, problem.message, next_step=hint or problem.next_step) from None


def wrong(message: str, next_step: str) -> GpufleetError:
    """The error for what cannot be meant so: INVALID_ARGUMENT, without an option's name before it."""
    return GpufleetError(Reason.INVALID_ARGUMENT, message, next_step=next_step)


def check_known(option: str, word: str, known: Collection[str], what: str, next_step: str = "") -> None:
    """Raise INVALID_ARGUMENT, with the nearest word, for a word that is none of these; `what` says what it is not."""
    if word not in known:
        raise invalid(option, f'"{word}" {what}{did_you_mean(word, known)}', next_step=next_step)


def names(given: Sequence[str] | None) -> list[str]:
    """Names from options that take several, separated by commas or repeated."""
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE pairs."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            step = f"Write it as {option} {name or 'NAME'}=VALUE."
            raise invalid(option, f'"{text}" is not NAME=VALUE', next_step=step)
        found[name] = value
    return found
