"""What the scheduler says of an attempt in its launch, for a scheduler whose store was put back: kept, and given back.

It stands in the note of the launch, and so in the record and the tombstone. Nothing here reads it.

Beside it stands which of the job's attempts that ran an attempt is, where its number is another one.
"""

import re

from gpufleet.jobs.runs import RankKey

ORIGIN_CHARS_MAX = 6_000
"""A longer one is not kept: the note of a launch is bounded."""

_RUN = re.compile(r" run=(?P<run>[1-9][0-9]{0,8})")
_ORIGIN = re.compile(r" origin=(?P<origin>[^ ]+)")


def noted_origin(origin: str) -> str:
    """What a launch notes of its origin."""
    is_kept = 0 < len(origin) <= ORIGIN_CHARS_MAX and " " not in origin
    return f" origin={origin}" if is_kept else ""


def origin_of(note: str) -> str:
    """The origin that a launch has noted; empty for none."""
    found = _ORIGIN.search(note)
    return "" if found is None else found["origin"]


def noted_run(run_number: int, key: RankKey) -> str:
    """What a launch notes of its run number; 0: it is that of its key."""
    return f" run={run_number}" if run_number not in (0, key.attempt) else ""


def run_of(note: str, key: RankKey) -> int:
    """The run number that a launch has noted."""
    found = _RUN.search(note)
    return key.attempt if found is None else int(found["run"])
