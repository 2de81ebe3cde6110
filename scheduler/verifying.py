"""`--verify`: looks at everything that is stored, changes nothing, and says what is wrong."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from gpufleet.config.scheduler_settings import SchedulerSettings

from .outputs.errors import OutputStoreUnavailable
from .outputs.opening import FOLDER, open_shelf
from .outputs.segment_store import SegmentStore, StreamKey
from .state.attempts import EndedAttempt
from .state.jobs import Job
from .store.errors import StoreError, StoreLocked, StoreTooOld, StoreUnavailable, StoreUrlInvalid
from .store.opening import open_to_examine, parse_url
from .store.verify import Examined

PROBLEMS_MAX = 100
"""After so many the rest is not looked for."""


def store_url(settings: SchedulerSettings) -> str:
    """Where the store is: the database that is set, or the embedded one in the data folder."""
    return settings.store or f"sqlite:///{settings.data / 'scheduler.db'}"


def verify(settings: SchedulerSettings) -> tuple[list[str], str]:
    """What is wrong with what is stored, a sentence each, and a sentence on what was looked at.

    Errors: StoreLocked, StoreTooOld, StoreUnavailable and StoreUrlInvalid where nothing can be looked at.
    """
    try:
        examined = open_to_examine(store_url(settings))
    except (StoreLocked, StoreTooOld, StoreUnavailable, StoreUrlInvalid):
        raise
    except StoreError as error:
        return [str(error)], ""
    with closing(examined):
        problems = examined.problems()
        if problems:
            return problems, ""
        return _outputs(settings, examined)


def _outputs(settings: SchedulerSettings, examined: Examined) -> tuple[list[str], str]:
    verdict = OutputVerdict()
    living = ended = 0
    is_in_files = parse_url(store_url(settings)).get_backend_name() == "sqlite"
    shelf = None
    if not is_in_files or (settings.data / FOLDER).is_dir():
        shelf = open_shelf(settings.store, 0, settings.data / FOLDER)
    try:
        for job in examined.jobs():
            living, ended = living + (not job.is_finished), ended + job.is_finished
            if shelf is not None:
                verdict.look_at(shelf, job)
    except OutputStoreUnavailable as error:
        verdict.problems.append(f"the stored output cannot be read: {error}")
    finally:
        if shelf is not None:
            shelf.close()
    looked_at = (
        f"{living:,} living and {ended:,} ended jobs; the output of {verdict.whole_jobs:,} is whole, "
        f"that of {verdict.dropped_jobs:,} was dropped by age or size, and others wrote none"
    )
    return verdict.problems, looked_at


@dataclass(slots=True)
class OutputVerdict:
    """What is stored of the jobs' output compared with what the jobs say of it; no byte of it is read.

    Problems, a sentence each, and of how many ended jobs the output is whole or was dropped.
    """

    problems: list[str] = field(default_factory=list)
    whole_jobs: int = 0
    dropped_jobs: int = 0

    def look_at(self, shelf: SegmentStore, job: Job) -> None:
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
    for key, rank in zip(attempt.keys(job.id), attempt.ranks, strict=True):
        if rank.exit is None or not rank.exit.output_is_complete:
            continue
        for end in rank.exit.output_ends:
            if end.end_offset:
                yield (key, end.stream), end.end_offset
