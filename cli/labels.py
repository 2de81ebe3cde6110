"""Labels as they are typed."""

from __future__ import annotations

from collections.abc import Sequence

from gpufleet.errors import invalid


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE pairs."""
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise invalid(option, f'"{text}" is not NAME=VALUE')
        found[name] = value
    return found
