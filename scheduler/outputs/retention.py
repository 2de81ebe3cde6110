"""Which jobs' output is dropped: what is too old, and then the oldest until the rest fits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..state.ids import JobId
from ..state.units import Instant


@dataclass(frozen=True, slots=True)
class StoredJob:
    """How much output of a job is stored, and when the last of it came."""

    job: JobId
    size_bytes: int
    written_at: Instant


def jobs_to_drop(
    stored: Iterable[StoredJob], *, before: Instant, bytes_max: int, live: frozenset[JobId]
) -> list[JobId]:
    """The jobs to drop, oldest first. Output of a live job counts towards the size and is never dropped."""
    oldest_first = sorted(stored, key=lambda each: (each.written_at, each.job))
    excess = sum(each.size_bytes for each in oldest_first) - bytes_max
    dropped: list[JobId] = []
    for each in oldest_first:
        if each.job not in live and (each.written_at < before or excess > 0):
            dropped.append(each.job)
            excess -= each.size_bytes
    return dropped
