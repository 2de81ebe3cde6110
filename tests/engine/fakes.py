"""Fakes of the ports: a store with fault knobs, a clock that stands still, a link that remembers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from scheduler.ports import Commit, EndedQuery, FinishedQuery, StoredRecord
from scheduler.state.commands import Command
from scheduler.state.durable import Durable, Entity, EntityKey, key_of, load
from scheduler.state.ids import JobId
from scheduler.state.jobs import Finished, Job
from scheduler.state.records import SHARED_KINDS, JobQueued, job_of
from scheduler.state.specs import Outcome
from scheduler.state.units import SECOND, Instant
from scheduler.store.errors import StoreUnavailable
from scheduler.store.reading import Began, reached

BEGIN = Instant(1_000_000 * SECOND)
BLOCKED_SECONDS_MAX = 120.0


class FakeClock:
    """Time passes only when a test says so."""

    def __init__(self) -> None:
        self.at = BEGIN

    def now(self) -> Instant:
        return self.at

    def advance(self, span: int) -> None:
        assert span >= 0
        self.at = Instant(self.at + span)


class RunningClock(FakeClock):
    """Time passes as it does."""

    def now(self) -> Instant:
        return Instant(BEGIN + time.monotonic_ns() // 1000)


@dataclass
class FakeStore:
    """A store in memory.

    Knobs: `failures` commits fail before anything is written; `lost_answers` commits are written and fail all the
    same; `error` is raised by every commit; while `gate` is not set, a commit blocks before anything is written.
    """

    term: int = 1
    kind: str = "sqlite"
    failures: int = 0
    lost_answers: int = 0
    error: Exception | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    entities: dict[EntityKey, Entity] = field(default_factory=dict)
    finished: dict[JobId, Job] = field(default_factory=dict)
    records: list[StoredRecord] = field(default_factory=list)
    tries: list[Commit] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    starts: list[Began] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate.set()
        self.starts.append(Began(self.term, self.lineage, self.newest_sequence()))

    # --- what tests ask

    def reopened(self, term: int = 0) -> FakeStore:
        """What a new start finds: everything committed, in a new term, the next one by default."""
        return FakeStore(
            term=term or self.term + 1,
            entities=dict(self.entities),
            finished=dict(self.finished),
            records=list(self.records),
            starts=list(self.starts),
        )

    def durable(self) -> Durable:
        """The state that a new start would load."""
        return load(iter(list(self.entities.values())))

    def block(self) -> None:
        """Block the commits from now on."""
        self.gate.clear()

    def unblock(self) -> None:
        self.gate.set()

    @property
    def is_blocking(self) -> bool:
        """Whether a commit waits at the gate."""
        return not self.gate.is_set() and len(self.tries) > len(self.commits)

    # --- the port

    @property
    def lineage(self) -> str:
        return f"{self.term:016x}"

    def newest_instant(self) -> Instant:
        return max((commit.at for commit in self.commits), default=Instant(0))

    def newest_sequence(self) -> int:
        return self.records[-1].sequence if self.records else 0

    def reached(self, lineage: str) -> int | None:
        return reached(self.newest_sequence(), self.starts, lineage)

    def records_from(self, kinds: Sequence[str], after: int, limit: int) -> list[StoredRecord]:
        found = (each for each in self.records if each.sequence > after and type(each.record).__name__ in kinds)
        return list(found)[:limit]

    def load(self) -> Iterator[Entity]:
        yield from list(self.entities.values())

    def commit(self, commit: Commit) -> None:
        self.tries.append(commit)
        assert self.gate.wait(BLOCKED_SECONDS_MAX), "nobody opened the gate"
        if self.error is not None:
            raise self.error
        if self.failures > 0:
            self.failures -= 1
            raise StoreUnavailable("disk full")
        if self.commits and commit.number == self.commits[-1].number:
            assert commit is self.commits[-1], "a number is used for two commits"
            return
        assert commit.number == len(self.commits) + 1, "commits are numbered without a hole"
        self._apply(commit)
        if self.lost_answers > 0:
            self.lost_answers -= 1
            raise StoreUnavailable("connection lost")

    def _apply(self, commit: Commit) -> None:
        for entity in commit.upserts:
            self.entities[key_of(entity)] = entity
        for key in commit.deletes:
            self.entities.pop(key, None)
        for job in commit.finished:
            assert job.id not in self.finished, f"job {job.id} ends twice"
            self.finished[job.id] = job
        for record in commit.records:
            self.records.append(StoredRecord(sequence=len(self.records) + 1, at=record.at, record=record))
        self.commits.append(commit)

    def finished_job(self, job: JobId) -> Job | None:
        return self.finished.get(job)

    def array_with(self, item: JobId) -> Job | None:
        arrays = [job for job in self.finished.values() if job.items is not None]
        return next(
            (each for each in arrays if each.items and each.id < item <= each.id + each.items.indices.count), None
        )

    def finished_items(self, array: JobId, first: JobId, last: JobId) -> list[Job]:
        ended = [job for job in self.finished.values() if job.array == array and first <= job.id <= last]
        return sorted(ended, key=lambda job: job.id)

    def failed_items(self, array: JobId, last: JobId) -> list[JobId]:
        failed = (Outcome.FAILED, Outcome.TIMED_OUT)
        ended = self.finished_items(array, array, last)
        return [job.id for job in ended if isinstance(job.state, Finished) and job.state.outcome in failed]

    def finished_jobs(self, query: FinishedQuery) -> list[Job]:
        def end(job: Job) -> tuple[Instant, JobId]:
            assert isinstance(job.state, Finished)
            return job.state.at, job.id

        def is_wanted(job: Job) -> bool:
            assert isinstance(job.state, Finished)
            return (
                job.array is None
                and query.user in (None, job.user)
                and query.name in (None, job.spec.name)
                and (not query.outcomes or job.state.outcome in query.outcomes)
                and (query.before is None or end(job) < query.before)
            )

        return sorted(filter(is_wanted, self.finished.values()), key=end, reverse=True)[: query.limit]

    def ended_jobs(self, query: EndedQuery) -> list[Job]:
        raise AssertionError("the engine asks for no history")

    def story(
        self, job: JobId, after: int, limit: int, told_with: JobId | None = None, kinds: Sequence[str] = ()
    ) -> list[StoredRecord]:
        shared = SHARED_KINDS if told_with is not None and told_with < job else (JobQueued,)
        mine = [
            each
            for each in self.records
            if job_of(each.record) == job or (job_of(each.record) == told_with and isinstance(each.record, shared))
        ]
        wanted = [each for each in mine if not kinds or type(each.record).__name__ in kinds]
        return [each for each in wanted if each.sequence > after][:limit]

    def records_of_kinds(self, kinds: Sequence[str], before: int | None, limit: int) -> list[StoredRecord]:
        found = [
            each
            for each in reversed(self.records)
            if type(each.record).__name__ in kinds and (before is None or each.sequence < before)
        ]
        return found[:limit]

    def prune(self, before: Instant) -> int:
        return 0

    def close(self) -> None:
        pass


@dataclass
class RecordingLink:
    """The way down to the nodes: remembers what left, and how many commits there were by then."""

    store: FakeStore
    sent: list[tuple[Command, int]] = field(default_factory=list)
    commits_then: list[int] = field(default_factory=list)

    def send(self, command: Command, stream: int) -> None:
        self.sent.append((command, stream))
        self.commits_then.append(len(self.store.commits))
