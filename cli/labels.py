"""Names and labels as they are typed."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.errors import invalid


def names(given: Sequence[str] | None) -> list[str]:
    """Names from options that take several, separated by commas or repeated."""
    return [name.strip() for text in given or () for name in text.split(",") if name.strip()]


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE pairs."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise invalid(option, f'"{text}" is not NAME=VALUE')
        found[name] = value
    return found
