"""Which bytes of a file a request wants (RFC 9110, 14). Pure."""

from __future__ import annotations

import re

_RANGE = re.compile(r"bytes=(?:(\d{1,18})-(\d{0,18})|-(\d{1,18}))")


class NotSatisfiable(Exception):
    """None of the bytes that are wanted is there."""


def part_wanted(said: str | None, size: int) -> tuple[int, int] | None:
    """Offset and length of the part; None for the whole, which also answers what is not understood here: several parts,
    other units. Raises NotSatisfiable."""
    found = _RANGE.fullmatch(said.strip()) if said is not None else None
    if found is None:
        return None
    first, last, newest = found.groups()
    if newest is not None:
        length = min(int(newest), size)
        if not length:
            raise NotSatisfiable
        return size - length, length
    offset, end = int(first), min(int(last) if last else size - 1, size - 1)
    if last and int(last) < offset:
        return None
    if offset >= size:
        raise NotSatisfiable
    return offset, end - offset + 1
