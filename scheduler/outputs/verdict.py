"""What is stored of the jobs' output, compared with what the jobs say of it and with its checksums."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ..state.attempts import EndedAttempt
from ..state.ids import JobId
from ..state.jobs import Job
from ..state.units import Instant
from .layout import Segment
from .segment_store import SegmentStore, StreamKey

PROBLEMS_MAX = 100
"""After so many the rest is not looked for."""

OTHERS_NAMED_MAX = 10
"""So many jobs of which only output is there are named."""


@dataclass(slots=True, kw_only=True)
class OutputVerdict:
    """Problems, a sentence each, and of how many ended jobs the output is whole or was dropped.

    Nothing newer than `dropped_until` was ever dropped (None: nobody knows), and of an attempt nothing up to
    `attempt_bytes_max`. Records of jobs that ended after `records_kept_since` are still there.
    """

    dropped_until: Instant | None
    attempt_bytes_max: int
    records_kept_since: Instant
    problems: list[str] = field(default_factory=list)
    whole_jobs: int = 0
    dropped_jobs: int = 0
    checked_bytes: int = 0
    unchecked_bytes: int = 0
    _known: set[JobId] = field(default_factory=set)

    def look_at(self, shelf: SegmentStore | None, job: Job) -> None:
        """Take up one job; no shelf is one that holds nothing. Errors: OutputStoreUnavailable."""
        self._known.add(job.id)
        if len(self.problems) >= PROBLEMS_MAX:
            return
        found: dict[StreamKey, list[Segment]] = {}
        for each, segment in () if shelf is None else shelf.find(job.id):
            found.setdefault(each, []).append(segment)
        expected = {each: end for attempt in job.past for each, end in _ends(job, attempt)}
        if expected and not found and job.is_finished:
            self._note_missing(job, sum(expected.values()))
            return
        lengths = _wrong_ends(found, expected)
        wrong = [*lengths.values(), *_gaps(found, expected, self.attempt_bytes_max)]
        for check in () if shelf is None or not found else shelf.examine(job.id):
            self.checked_bytes += check.checked_bytes
            self.unchecked_bytes += check.unchecked_bytes
            if check.stream not in lengths:  # one sentence is enough
                wrong += check.problems
        self.whole_jobs += bool(expected) and not wrong
        self.problems += wrong

    def look_at_others(self, shelf: SegmentStore, next_job: JobId) -> None:
        """Output of jobs that were not looked at; `next_job` is the next id that the store gives. Errors: as before."""
        others = sorted((each for each in shelf.inventory() if each.job not in self._known), key=lambda each: each.job)
        foreign = [each.job for each in others if each.job >= next_job]
        # The records of a job may go earlier than its output.
        unknown = [each.job for each in others if each.job < next_job and each.written_at >= self.records_kept_since]
        if foreign:
            self.problems.append(
                f"output of {_named(foreign)} is stored, and no job above {next_job - 1} was ever submitted here: "
                "it is that of another store, or this store was put back from a copy"
            )
        if unknown:
            self.problems.append(f"output of {_named(unknown)} is stored, and the store does not know of it")

    def _note_missing(self, job: Job, written_bytes: int) -> None:
        newest = max(attempt.placed_at for attempt in job.past)
        if self.dropped_until is None or newest <= self.dropped_until:
            self.dropped_jobs += 1  # by age or by the total size: all of a job, or nothing
        else:
            self.problems.append(
                f"output of job {job.id}: nothing is stored, the job ended with {written_bytes:,} bytes, "
                "and none as new was ever dropped by age or size"
            )


def _wrong_ends(found: Mapping[StreamKey, list[Segment]], expected: Mapping[StreamKey, int]) -> dict[StreamKey, str]:
    """A sentence for each stream that does not end where its rank's output did."""
    sentences: dict[StreamKey, str] = {}
    for (key, stream), end in expected.items():
        stored = max((segment.end for segment in found.get((key, stream), ())), default=0)
        if stored != end:
            of = stream.name.lower()
            sentences[key, stream] = (
                f"output of {key}: {stored:,} bytes of {of} are stored, and the job ended with {end:,}"
            )
    return sentences


def _gaps(
    found: Mapping[StreamKey, list[Segment]], expected: Mapping[StreamKey, int], attempt_bytes_max: int
) -> Iterator[str]:
    """Bytes that are missing before others although the attempt wrote too little to have left out any."""
    written: dict[tuple[int, str], int] = {}
    for (key, _), end in expected.items():
        written[key.attempt, key.lineage] = written.get((key.attempt, key.lineage), 0) + end
    for (key, stream), segments in sorted(found.items()):
        if not 0 < written.get((key.attempt, key.lineage), 0) <= attempt_bytes_max:
            continue
        end = 0
        for segment in sorted(segments, key=lambda each: (each.start, not each.is_head)):
            if segment.start > end:
                yield f"output of {key}: bytes {end:,} to {segment.start:,} of {stream.name.lower()} are missing"
            end = max(end, segment.end)


def _named(jobs: Iterable[JobId]) -> str:
    numbers = [str(job) for job in jobs]
    more = len(numbers) - OTHERS_NAMED_MAX
    named = ", ".join(numbers[:OTHERS_NAMED_MAX]) + (f" and {more:,} more" if more > 0 else "")
    return f"job {named}" if len(numbers) == 1 else f"jobs {named}"


def _ends(job: Job, attempt: EndedAttempt) -> Iterator[tuple[StreamKey, int]]:
    """How far the output of an attempt goes where all of it was stored before it ended."""
    if not attempt.output_is_complete:
        return
    for key, rank in zip(attempt.keys(job.id), attempt.ranks, strict=True):
        if rank.exit is None or not rank.exit.output_is_complete:
            continue
        for end in rank.exit.output_ends:
            if end.end_offset:
                yield (key, end.stream), end.end_offset
