"""What one watcher was told of why jobs wait, and which of them it must be told anew.

The reason of a job changes without the job: others start and end, nodes come and go, samples grow old. So after
anything changed the reasons are looked at again, at most every LOOK_PAUSE_SECONDS, and every LOOK_SECONDS in any case,
since what nodes report and what only time does are no changes.
"""

import asyncio
from collections.abc import Iterator
from itertools import islice

from gpufleet.v1 import scheduler_pb2

from ..engine import Engine
from ..policy.order import order_from
from ..state.ids import JobId
from ..state.jobs import Job, Queued
from .arrays import who_waits
from .reasons import Reason, WaitReasons

LOOK_PAUSE_SECONDS = 0.5
LOOK_SECONDS = 2.0
LOOKED_AT_MAX = 10_000
"""Waiting jobs looked at for one that a watcher wants."""
FOLLOWED_MAX = 1_000
"""Waiting jobs, the first of the order, whose reasons a watcher is told anew."""


class ToldReasons:
    """The reason that a watcher was told last, by job."""

    def __init__(self, engine: Engine, reasons: WaitReasons, request: scheduler_pb2.WatchRequest) -> None:
        self._engine = engine
        self._reasons = reasons
        self._request = request
        self._told: dict[JobId, Reason] = {}
        self._looked_at = -LOOK_SECONDS
        self._is_doubtful = True

    def tell(self, job: Job) -> Reason | None:
        """The job's reason, which the watcher is told now; None for one that does not wait."""
        waits = who_waits(self._engine.view.durable, job)
        reason = self._reasons.of([waits]).get(waits.id)
        if reason is None:
            self._told.pop(job.id, None)
        else:
            self._told[job.id] = reason
        return reason

    def take_as_told(self) -> None:
        """The watcher reads the present reasons by itself."""
        self._told = self._present()

    def doubt(self) -> None:
        """Something changed, so reasons may have."""
        self._is_doubtful = True

    def seconds_to_look(self) -> float:
        """How long to wait before the reasons are looked at again; 0 for now."""
        span = LOOK_PAUSE_SECONDS if self._is_doubtful else LOOK_SECONDS
        return max(self._looked_at + span - _now(), 0.0)

    def changed(self) -> list[Job]:
        """The jobs whose reason is another one than was told; `tell` each."""
        self._looked_at = _now()
        self._is_doubtful = False
        present = self._present()
        self._told = {job_id: reason for job_id, reason in self._told.items() if job_id in present}
        jobs = self._engine.view.durable.jobs
        return [jobs[job_id] for job_id, reason in present.items() if self._told.get(job_id) != reason]

    def _present(self) -> dict[JobId, Reason]:
        """The reasons of those that wait; that of an array is its first item's."""
        waiting = list(islice(self._waiting(), FOLLOWED_MAX))
        reasons = self._reasons.of(waiting)
        named = set(self._request.job_ids)
        return {
            job.id if job.array is None or job.id in named else job.array: reasons[job.id]
            for job in waiting
            if job.id in reasons
        }

    def _waiting(self) -> Iterator[Job]:
        durable = self._engine.view.durable
        order = iter(job for _, job in order_from(durable, self._engine.now(), None))
        if self._request.job_ids:
            named = (durable.jobs.get(JobId(job_id)) for job_id in self._request.job_ids)
            waits = (who_waits(durable, job) for job in named if job is not None)
            order = (job for job in list(waits) if isinstance(job.state, Queued))
        for job in islice(order, LOOKED_AT_MAX):
            if not self._request.user or job.user == self._request.user:
                yield job


def _now() -> float:
    return asyncio.get_running_loop().time()
