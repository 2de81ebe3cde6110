"""What must be true of what attempts keep for the next one: followed by the records and by what was stored alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from scheduler.state.attempts import Attempt, EndedAttempt
from scheduler.state.ids import JobId, RankKey
from scheduler.state.jobs import Job
from scheduler.state.records import AttemptEnded, AttemptPlaced, FilesKept, JobFinished, KeptWaitEnded, Record
from tests.simulation.world import Broken, World


class KeptChecks:
    """No attempt begins with an older copy than the newest whole one that was stored when it was placed.

    And none is placed before what the last one keeps is settled, unless its wait was ended for a reason.
    """

    def __init__(self, world: World, is_stored: Callable[[str], bool], settled: Collection[RankKey]) -> None:
        self._world = world
        self._is_stored = is_stored
        self._settled = settled
        self._newest: dict[JobId, dict[int, tuple[int, str]]] = {}
        """Of each rank of a job: the attempt, and the digest of what it kept last."""
        self._given: dict[RankKey, str] = {}
        """What ranks are to begin with."""
        self._last: dict[JobId, EndedAttempt] = {}
        self._let_go: set[JobId] = set()

    def committed(self, record: Record, job: Job | None) -> None:
        """A record is durable; `job` is what it is of, if that goes on."""
        match record:
            case FilesKept(key=key, copy=copy):
                self._world.met.add("a checkpoint" if record.is_checkpoint else "files kept for the next attempt")
                if not self._is_stored(copy.folder.digest):
                    raise Broken(f"what {key} keeps is on record, and not stored", key.job)
                known = self._newest.setdefault(key.job, {}).get(key.rank, (0, ""))
                if known[0] > key.attempt:
                    raise Broken(f"what {key} keeps takes the place of what attempt {known[0]} kept", key.job)
                self._newest[key.job][key.rank] = key.attempt, copy.folder.digest
            case AttemptEnded(job=job_id, ended=ended):
                self._last[job_id] = ended
                self._let_go.discard(job_id)
            case KeptWaitEnded(job=job_id, reason=reason):
                if reason:
                    self._world.met.add("files that were kept and not waited for")
                    self._let_go.add(job_id)
            case AttemptPlaced(job=job_id, attempt=attempt) if job is not None and job.spec.keep:
                self._is_not_too_early(job_id)
                self._is_given_the_newest(job_id, attempt)
            case JobFinished(job=job_id):
                self._newest.pop(job_id, None)
            case _:
                pass

    def begins(self, key: RankKey, found: str) -> None:
        """A rank is started, and finds this in its folder; empty for nothing."""
        if found != self._given.get(key, ""):
            raise Broken(f"{key} begins with {found!r}, and was placed with {self._given.get(key, '')!r}", key.job)
        if found:
            self._world.met.add("an attempt that found what was kept")

    def put_back(self, jobs: Iterable[Job]) -> None:
        """The store is an older one: what it says counts."""
        self._newest = {job.id: {each.rank: (each.attempt, each.folder.digest) for each in job.kept} for job in jobs}
        self._last.clear()

    def _is_not_too_early(self, job: JobId) -> None:
        last = self._last.get(job)
        if last is None or job in self._let_go:
            return
        for key, rank in zip(last.keys(job), last.ranks, strict=True):
            forgotten = rank.exit is not None and rank.exit.is_forgotten
            if rank.started_at is not None and not forgotten and key not in self._settled:
                raise Broken(f"job {job} is placed before what {key} keeps is settled", job)

    def _is_given_the_newest(self, job: JobId, attempt: Attempt) -> None:
        newest = {rank: digest for rank, (_, digest) in self._newest.get(job, {}).items()}
        given = {copy.rank: copy.folder.digest for copy in attempt.kept}
        if given != newest:
            raise Broken(f"attempt {job}/{attempt.number} is placed with {given}, the newest are {newest}", job)
        for key in attempt.keys(job):
            if key.rank in given:
                self._given[key] = given[key.rank]
