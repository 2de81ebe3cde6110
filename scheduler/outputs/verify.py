"""Compares what is stored of the jobs' output with what the jobs say of it; reads no byte of it and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ..state.attempts import EndedAttempt
from ..state.ids import RankKey
from ..state.jobs import Job
from .shelf import Shelf, StreamKey

PROBLEMS_MAX = 100
"""After so many the rest is not looked for."""


@dataclass(slots=True)
class OutputVerdict:
    """What was found: problems, a sentence each, and of how many ended jobs the output is whole or was dropped."""

    problems: list[str] = field(default_factory=list)
    whole_jobs: int = 0
    dropped_jobs: int = 0

    def look_at(self, shelf: Shelf, job: Job) -> None:
        """Take up one job. Errors: OutputStoreUnavailable."""
        expected = {each: end for attempt in job.past for each, end in _ends(job, attempt)}
        if not expected or len(self.problems) >= PROBLEMS_MAX:
            return
        ends: dict[StreamKey, int] = {}
        for each, segment in shelf.find(job.id):
            ends[each] = max(ends.get(each, 0), segment.end)
        if not ends and job.is_finished:
            self.dropped_jobs += 1  # by age or by the total size: all of a job, or nothing
            return
        wrong = [each for each, end in expected.items() if ends.get(each, 0) != end]
        self.whole_jobs += not wrong
        for key, stream in wrong:
            end, stored = expected[key, stream], ends.get((key, stream), 0)
            self.problems.append(
                f"output of {key}: {stored:,} bytes of {stream.name.lower()} are stored, and the job ended with {end:,}"
            )


def _ends(job: Job, attempt: EndedAttempt) -> Iterator[tuple[StreamKey, int]]:
    """How far the output of an attempt goes where all of it was stored before it ended."""
    if not attempt.output_is_complete:
        return
    for number, rank in enumerate(attempt.ranks):
        if rank.exit is None or not rank.exit.output_is_complete:
            continue
        for end in rank.exit.output_ends:
            if end.end_offset:
                yield (RankKey(job.id, attempt.number, number), end.stream), end.end_offset
