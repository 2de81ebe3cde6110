"""What attempts keep for the next one (`--keep`): of each rank the newest whole copy that the scheduler was given.

    an attempt runs  -> a checkpoint is stored (`gpuctl keep`)  -> FilesKept
    a rank has ended -> awaited with its results (results.py)   -> FilesKept, ResultsSettled
                        meanwhile its job waits (Deferred)      -> KeptWaitEnded: it waits in line again

Only a whole copy counts, and a newer one takes its place. An attempt begins with the copies that its job has when it is
placed. All of them go with the end of the job. Rules: docs/rules/jobs.md 4.79 to 4.81.
"""

from __future__ import annotations

from dataclasses import dataclass

from .specs import InputFolder
from .units import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCopy:
    """A whole copy of what a rank keeps: which attempt left it, when its manifest arrived, and that manifest."""

    rank: int
    attempt: int
    given_at: Instant
    folder: InputFolder

    def is_newer_than(self, other: KeptCopy | None) -> bool:
        """Whether it takes the place of this copy of the same rank."""
        return other is None or (self.attempt, self.given_at) >= (other.attempt, other.given_at)


def kept_by(copies: tuple[KeptCopy, ...], rank: int) -> KeptCopy | None:
    """The copy of a rank, if there is one."""
    return next((each for each in copies if each.rank == rank), None)


def with_copy(copies: tuple[KeptCopy, ...], copy: KeptCopy) -> tuple[KeptCopy, ...]:
    """The copies of a job with this one in the place of that of the same rank, in the order of the ranks."""
    others = (each for each in copies if each.rank != copy.rank)
    return tuple(sorted((*others, copy), key=lambda each: each.rank))
