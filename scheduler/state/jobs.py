"""Jobs: where a job is on its way, with its spec and its attempts; and how the items of an array stand together.

A state is a class that carries exactly the data that is valid in it, so that no field is ever half filled.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, FileRun, StopCause

from .attempts import Attempt, EndedAttempt, Rank
from .groups.group import NO_GROUP, GroupId
from .ids import JobId, RankKey, UserName
from .indices import Indices
from .kept import KeptCopy
from .specs import Band, Dependency, InputFolder, JobSpec, Outcome
from .units import Instant, after
from .warnings import JobWarning

ATTEMPTS_KEPT = 10
"""Ended attempts that stay in the job's own record; older ones are in its story."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """Waits for its turn in the order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deferred:
    """Is not eligible yet: it waits for its begin time or for the ends of other jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Waits until a person releases it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starting:
    """Devices are held; the launch is on its way."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """The command runs on every rank."""

    attempt: Attempt
    started_at: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """It was told to stop and has not ended. `cause` says what follows: REQUEUED and PREEMPTED queue it again.

    `claimant` is the job that it makes room for. `failed_rank` is the one that brings down its gang.
    """

    attempt: Attempt
    cause: StopCause
    since: Instant
    reason: str = ""
    started_at: Instant | None = None
    claimant: JobId | None = None
    failed_rank: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end, which never changes. `exit` is None for a job with no code of its own."""

    outcome: Outcome
    at: Instant
    reason: str
    message: str = ""
    exit: ExitStatus | None = None

    @property
    def exit_code(self) -> int:
        """The code that a program gives who waits for the job: its own, 128 + its signal, 124 or 125."""
        match self.outcome, self.exit:
            case Outcome.SUCCEEDED, _:
                return 0
            case Outcome.TIMED_OUT, _:
                return 124
            case Outcome.CANCELLED, _:
                return 125
            case _, ExitCode(code=code):
                return code
            case _, ExitSignal(signal=number):
                return 128 + number
            case _:
                return 125


@dataclass(frozen=True, slots=True, kw_only=True)
class FellBack:
    """Since when, and why, a job does without the GPUs that it prefers."""

    at: Instant
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divided:
    """An array: where it is on its way are its items. `rest` is the state of those that never differed from another."""

    rest: Queued | Deferred | Held | None


JobState = Queued | Deferred | Held | Starting | Running | Stopping | Divided | Finished
ActiveState = Starting | Running | Stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedTogether:
    """Items of an array that ended at once and had never differed: spans (begin, end) of ids, `end` not among them."""

    spans: tuple[tuple[JobId, JobId], ...]
    finished: Finished


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """How the items of an array that have ended did. `highest_exit` is the highest exit code that one gives to wait."""

    array: JobId
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    highest_exit: int = 0
    together: tuple[EndedTogether, ...] = ()
    version: int = 1

    @property
    def ended(self) -> int:
        """Items that have ended."""
        return self.succeeded + self.failed + self.timed_out + self.cancelled

    @property
    def failures(self) -> int:
        """Items that failed; a time limit that was reached is a failure."""
        return self.failed + self.timed_out

    def adding(self, finished: Finished, count: int = 1) -> "Tally":
        """The same with `count` more that ended so."""
        counted = TALLIED[finished.outcome]
        return replace(
            self,
            highest_exit=max(self.highest_exit, finished.exit_code),
            version=self.version + 1,
            **{counted: getattr(self, counted) + count},
        )

    def adding_together(self, ended: EndedTogether) -> "Tally":
        """The same with more that ended at once."""
        count = sum(end - begin for begin, end in ended.spans)
        return replace(self.adding(ended.finished, count), together=(*self.together, ended))


TALLIED = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.CANCELLED: "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Items:
    """What makes a job an array: its items are the jobs with the ids right behind its own, in the order of `indices`.

    `active_max` is how many may be active at once, and `failures_max` after how many failures the waiting rest is
    cancelled; 0 is no bound. `ended` is how they did, once all have ended.
    """

    indices: Indices
    active_max: int = 0
    failures_max: int = 0
    ended: Tally | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job. `version` rises with every change.

    `told_with` is set for equal jobs of one submit: the last of them, in whose story stands that all were queued.
    `eligible_at` is when it came to be eligible where that was not at its submit; its age counts from there. `unmet`
    are the dependencies that are still waited for, `begins_at` the begin time that has not come. `waits_since` is when
    it was queued again, from where its queue time-out counts. `array` is the array that it is an item of, and in whose
    story stands what befell all of them (`told_with`). `items` makes it an array itself. `drained_at` is
    when a worker was told to end once it has no turn any more. `warnings` are those of its newest attempt.
    `revision` is a worker's revision of its model, and `replaces` the worker that goes when this one is ready.
    `attempt_count` is the number of the newest attempt; of those `void_count` came to nothing before anything ran.
    `fell_back` is set as long as it does without the GPUs that it prefers. It does not do so before `falls_back_after`,
    where it would have gained nothing. `group` is the group of users that it was submitted in, also when that has been
    renamed or removed. `kept` is what its next attempt finds, by rank.
    """

    id: JobId
    user: UserName
    spec: JobSpec
    band: Band
    submitted_at: Instant
    state: JobState
    version: int = 1
    attempt_count: int = 0
    past: tuple[EndedAttempt, ...] = ()
    requeue_count: int = 0
    node_loss_count: int = 0
    blameless_loss_count: int = 0
    time_out_count: int = 0
    told_with: JobId | None = None
    eligible_at: Instant | None = None
    unmet: tuple[Dependency, ...] = ()
    begins_at: Instant | None = None
    retries_used: int = 0
    waits_since: Instant | None = None
    array: JobId | None = None
    items: Items | None = None
    drained_at: Instant | None = None
    warnings: tuple[JobWarning, ...] = ()
    revision: int = 0
    replaces: JobId | None = None
    fell_back: FellBack | None = None
    group: GroupId = NO_GROUP
    void_count: int = 0
    falls_back_after: Instant | None = None
    kept: tuple[KeptCopy, ...] = ()

    @property
    def run_count(self) -> int:
        """Attempts that ran, and the one that is placed now."""
        return self.attempt_count - self.void_count

    @property
    def awaits_kept(self) -> bool:
        """Whether it waits for what its last attempt keeps, until `begins_at`: no other begin time follows an end."""
        return bool(self.spec.keep and self.past) and self.begins_at is not None

    @property
    def age_since(self) -> Instant:
        """From when its age counts: its place in the order within a band. Of requeues only a time-out's changes it."""
        return self.submitted_at if self.eligible_at is None else self.eligible_at

    @property
    def wakes_at(self) -> Instant | None:
        """When time alone changes something for it: it begins to be eligible, or has waited too long."""
        match self.state:
            case Deferred() | Divided(rest=Deferred()):
                return self.begins_at
            case Queued() | Divided(rest=Queued()):
                return min(filter(None, (self.times_out_at, self.falls_back_at, self.opens_at)), default=None)
            case _:
                return None

    @property
    def opens_at(self) -> Instant | None:
        """When it may be tried again on a node that could not start it."""
        waits = (each.until for each in self.spec.resources.kept_away if not each.is_open)
        return min(filter(None, waits), default=None)

    @property
    def times_out_at(self) -> Instant | None:
        """Of a job that waits in line: when it has waited for its whole queue time-out."""
        timeout = self.spec.queue_timeout
        return None if timeout is None else after(self._waits_from, timeout)

    @property
    def falls_back_at(self) -> Instant | None:
        """Of a job that waits in line: when it does without the GPUs that it prefers, at the latest."""
        choice = self.spec.gpu_choice
        if choice is None or choice.wait is None or not self.spec.prefers_gpus:
            return None
        return max(after(self._waits_from, choice.wait), self.falls_back_after or Instant(0))

    @property
    def _waits_from(self) -> Instant:
        # A release makes it eligible anew: while it is held, its waits rest.
        return max(self.waits_since or self.age_since, self.age_since)

    @property
    def is_waiting_in_line(self) -> bool:
        """Whether it waits in line; of an array, whether those of its items do that never differed."""
        return isinstance(self.state, Queued) or (
            isinstance(self.state, Divided) and isinstance(self.state.rest, Queued)
        )

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that holds devices now, if any."""
        return self.state.attempt if isinstance(self.state, ActiveState) else None

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended for good."""
        return isinstance(self.state, Finished)


def rank_keys(job: Job, attempt: Attempt) -> tuple[RankKey, ...]:
    """The keys of all ranks of an attempt of this job."""
    return attempt.keys(job.id)


def is_being_prepared(job: Job) -> bool:
    """Whether nothing of an attempt can run yet: it is a gang, and not every rank was ready."""
    return isinstance(job.state, Starting) and job.state.attempt.is_gang and job.state.attempt.rendezvous is None


def keyed_ranks(job: Job, attempt: Attempt) -> Iterator[tuple[RankKey, Rank]]:
    """The ranks of an attempt of this job, each with its key."""
    return zip(rank_keys(job, attempt), attempt.ranks, strict=True)


def live_ranks(job: Job, attempt: Attempt) -> Iterator[tuple[RankKey, Rank]]:
    """Those of them that have not ended."""
    return ((key, rank) for key, rank in keyed_ranks(job, attempt) if rank.exit is None)


def folders_of(job: Job) -> tuple[InputFolder, ...]:
    """The stored folders that a job needs: what was uploaded for it, and what its attempts find."""
    uploaded = () if job.spec.folder is None else (job.spec.folder,)
    return (*uploaded, *kept_folders(job))


def kept_folders(job: Job) -> tuple[InputFolder, ...]:
    """The copies that a job needs: what its next attempt finds, and what one finds that has not begun on every rank."""
    attempt = job.attempt
    is_begun = attempt is None or all(rank.started_at is not None for rank in attempt.ranks)
    found = () if attempt is None or is_begun else attempt.kept
    return tuple(dict.fromkeys(copy.folder for copy in (*job.kept, *found)))


def active_state(job: Job) -> ActiveState:
    """The state of a job that has an attempt."""
    assert isinstance(job.state, ActiveState), f"job {job.id} has no attempt"
    return job.state


def state_with_start(job: Job, rank: int, started_at: Instant, runs: tuple[FileRun, ...] = ()) -> ActiveState:
    """Its state once this rank has started: with the last rank it runs, unless it is being stopped."""
    state = active_state(job)
    started = state.attempt.with_rank(rank, started_at=started_at, file_runs=runs)
    attempt = replace(started, is_asked_back=False) if started.is_asked_back else started
    all_started = all(each.started_at is not None for each in attempt.ranks)
    match state:
        case Starting() if all_started:
            return Running(attempt=attempt, started_at=started_at)
        case Stopping():
            return replace(state, attempt=attempt, started_at=started_at if all_started else None)
        case _:
            return replace(state, attempt=attempt)


def items_alike(array: Job) -> Job:
    """The first item of an array as it is queued, and all others but for their ids."""
    assert isinstance(array.state, Divided) and array.state.rest is not None, f"job {array.id} has no items that wait"
    first = JobId(array.id + 1)
    return replace(array, id=first, state=array.state.rest, version=1, array=array.id, items=None, told_with=array.id)


def index_of(array: Job, item: Job) -> int:
    """The index of an item of this array."""
    assert array.items is not None and item.array == array.id, f"job {item.id} is no item of job {array.id}"
    return array.items.indices.at(item.id - array.id - 1)


def item_ended_together(array: Job, tally: Tally, job_id: JobId) -> Job | None:
    """An item that ended without ever having differed, of which nothing else is kept; None for any other."""
    for ended in tally.together:
        if any(begin <= job_id < end for begin, end in ended.spans):
            return replace(
                array,
                id=job_id,
                state=ended.finished,
                version=2,
                array=array.id,
                items=None,
                told_with=array.id,
                unmet=(),
                begins_at=None,
            )
    return None
