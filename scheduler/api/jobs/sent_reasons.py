"""What one watcher was told of why jobs wait and when they start, and which of them it must be told anew.

The reason of a job changes without the job: others start and end, nodes come and go, samples grow old. So after
anything changed the reasons are looked at again, at most every LOOK_PAUSE_SECONDS, and every LOOK_SECONDS in any case,
since what nodes report and what only time does are no changes. Estimates and bounds are looked at with them, at most
every TIMES_PAUSE_SECONDS, and told anew when they have moved by TIMES_STEP.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from gpufleet.v1 import scheduler_pb2

from ...engine import PASS_INTERVAL, Engine
from ...policy.explain import WaitReason
from ...policy.forecast import Bound, Estimate, Estimates
from ...policy.order.page import order_from
from ...state.ids import JobId
from ...state.jobs import Job, Queued
from ...state.units import SECOND, Instant, Span
from .arrays import who_waits
from .reasons import WaitReasons

LOOK_PAUSE_SECONDS = 0.5
LOOK_SECONDS = 2.0
PASS_SECONDS = 0.05
"""How long a look waits for the pass that sees what changed, at most."""
TIMES_PAUSE_SECONDS = 2.0
TIMES_STEP = Span(1 * SECOND)
LOOKED_AT_MAX = 10_000
"""Waiting jobs looked at for one that a watcher wants."""
FOLLOWED_MAX = 1_000
"""Waiting jobs, the first of the order, whose reasons a watcher is told anew."""


@dataclass(frozen=True, slots=True)
class WaitStatus:
    """Why a job waits, and when it starts as far as that is known."""

    reason: WaitReason
    estimate: Estimate | None = None
    bound: Bound | None = None

    def differs(self, other: "WaitStatus") -> bool:
        """Whether it is worth telling to somebody who was told the other."""
        mine, theirs = (each.bound or Bound(at=None, sentence="") for each in (self, other))
        starts = (each.estimate.at if each.estimate is not None else None for each in (self, other))
        is_moved = _is_moved(*starts) or _is_moved(mine.at, theirs.at)
        return is_moved or (self.reason, mine.sentence) != (other.reason, theirs.sentence)


def _is_moved(one: Instant | None, other: Instant | None) -> bool:
    return one != other if one is None or other is None else abs(one - other) >= TIMES_STEP


class SentReasons:
    """What a watcher was told last, by job."""

    def __init__(self, engine: Engine, reasons: WaitReasons, request: scheduler_pb2.WatchRequest) -> None:
        self._engine = engine
        self._reasons = reasons
        self._request = request
        self._told: dict[JobId, WaitStatus] = {}
        self._starts = Estimates()
        self._bounds: dict[JobId, Bound] = {}
        self._timed_at = -TIMES_PAUSE_SECONDS
        self._timed_commits = -1
        self._looked_at = -LOOK_SECONDS
        self._is_doubtful = True
        self._doubted_at = -PASS_SECONDS

    def tell(self, job: Job) -> WaitStatus | None:
        """What the watcher is told of a job now; None for one that does not wait.

        Times are told of the committed state alone: where they are not known yet, the next look tells them.
        """
        waits = who_waits(self._engine.view.durable, job)
        reason = self._reasons.of([waits]).get(waits.id)
        if reason is None:
            self._told.pop(job.id, None)
            return None
        self._told[job.id] = self._with_times(waits.id, reason)
        return self._told[job.id]

    def take_as_told(self) -> None:
        """The watcher reads the present reasons by itself."""
        self._told = self._present()

    def doubt(self) -> None:
        """Something changed, so reasons may have."""
        if not self._is_doubtful:
            self._doubted_at = _now()
        self._is_doubtful = True

    def seconds_to_look(self) -> float:
        """How long to wait before the reasons are looked at again; 0 for now."""
        span = LOOK_PAUSE_SECONDS if self._is_doubtful else LOOK_SECONDS
        due = self._looked_at + span - _now()
        if self._engine.awaits_pass and self._doubted_at + PASS_SECONDS > _now():
            return max(due, PASS_INTERVAL / SECOND)  # the reasons of now are those of the pass before
        return max(due, 0.0)

    def changed(self) -> list[Job]:
        """The jobs of which something else is to be told than was; `tell` each."""
        self._looked_at = _now()
        self._is_doubtful = self._engine.awaits_pass  # then what is looked at now is that of the pass before
        self._look_at_times()
        present = self._present()
        self._told = {job_id: told for job_id, told in self._told.items() if job_id in present}
        jobs = self._engine.view.durable.jobs
        return [jobs[job_id] for job_id, told in present.items() if self._is_news(job_id, told)]

    def _is_news(self, job_id: JobId, told: WaitStatus) -> bool:
        before = self._told.get(job_id)
        if before is None:
            return True
        return told.differs(before) if self._times_are_known else told.reason != before.reason

    @property
    def _times_are_known(self) -> bool:
        """Whether nothing was committed since the times were looked at."""
        return self._timed_commits == self._engine.commits

    def _look_at_times(self) -> None:
        if self._timed_at + TIMES_PAUSE_SECONDS <= self._looked_at and self._engine.view.durable.lines.count:
            self._timed_at = self._looked_at
            self._timed_commits = self._engine.commits
            self._starts, self._bounds = self._reasons.starts(), self._reasons.bounds()

    def _with_times(self, job_id: JobId, reason: WaitReason) -> WaitStatus:
        if not self._times_are_known:
            return WaitStatus(reason)
        return WaitStatus(reason, self._starts.of(job_id), self._bounds.get(job_id))

    def _present(self) -> dict[JobId, WaitStatus]:
        """What is so of those that wait; of an array, what is so of its first item."""
        waiting = list(islice(self._waiting(), FOLLOWED_MAX))
        reasons = self._reasons.of(waiting)
        named = set(self._request.job_ids)
        return {
            job.id if job.array is None or job.id in named else job.array: self._with_times(job.id, reasons[job.id])
            for job in waiting
            if job.id in reasons
        }

    def _waiting(self) -> Iterator[Job]:
        durable = self._engine.view.durable
        order = iter(job for _, job in order_from(self._engine.view, self._engine.now(), None))
        if self._request.job_ids:
            named = (durable.jobs.get(JobId(job_id)) for job_id in self._request.job_ids)
            waits = (who_waits(durable, job) for job in named if job is not None)
            order = (job for job in list(waits) if isinstance(job.state, Queued))
        for job in islice(order, LOOKED_AT_MAX):
            if not self._request.user or job.user == self._request.user:
                yield job


def _now() -> float:
    return asyncio.get_running_loop().time()
