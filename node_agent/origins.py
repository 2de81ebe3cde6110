"""What the scheduler says of an attempt in its launch, for a scheduler whose store was put back: kept, and given back.

It stands in the note of the launch, and so in the record and the tombstone. Nothing here reads it.
"""

import re

ORIGIN_CHARS_MAX = 6_000
"""A longer one is not kept: the note of a launch is bounded."""

_ORIGIN = re.compile(r" origin=(?P<origin>[^ ]+)")


def noted_origin(origin: str) -> str:
    """What a launch notes of its origin."""
    is_kept = 0 < len(origin) <= ORIGIN_CHARS_MAX and " " not in origin
    return f" origin={origin}" if is_kept else ""


def origin_of(note: str) -> str:
    """The origin that a launch has noted; empty for none."""
    found = _ORIGIN.search(note)
    return "" if found is None else found["origin"]
