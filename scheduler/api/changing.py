"""The Scheduler service: what is asked of jobs that are there: cancel, hold, release, move, signal, requeue."""

from collections.abc import Callable
from typing import Any

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ..state.events import BandRequested, CancelRequested, Event, HoldRequested, RequeueRequested, SignalRequested
from ..state.ids import JobId, UserName
from ..state.replies import JobsChanged
from ..watching import ChangeHub
from .answers import answers, reply_of
from .arrays import state_now
from .digests import digest_of
from .finding import JobsFound
from .roles import caller
from .starting import until_started
from .validate import band_of, check_request_id

JOBS_SELECTED_MAX = 10_000
REASON_CHARS_MAX = 1_000
SIGNAL_MAX = 64
SIGNAL_WAIT_SECONDS_MAX = 1.0
"""How long a signal waits for the job that it is for, while that is being started."""


class ChangeCalls(JobsFound):
    """How jobs are changed. Each public method is one RPC but `signal_jobs`, which a terminal needs, too."""

    changes: ChangeHub

    @answers
    async def Cancel(self, request: scheduler_pb2.CancelRequest, context: Any) -> scheduler_pb2.CancelResponse:
        """Stop jobs by the grace rule."""
        changes = await self._change(
            request.jobs,
            lambda jobs: CancelRequested(
                at=self.engine.now(),
                by=caller().user,
                jobs=jobs,
                reason=_reason(request.reason),
                is_abandoned=request.abandon,
            ),
        )
        return scheduler_pb2.CancelResponse(changes=changes)

    @answers
    async def UpdateJob(self, request: scheduler_pb2.UpdateJobRequest, context: Any) -> scheduler_pb2.UpdateJobResponse:
        """Hold, release, or move to another band."""
        paths = list(request.update_mask.paths)
        if paths not in (["is_held"], ["band"]):
            raise invalid("update_mask", f"is {paths}; it must name is_held or band, and one of them only")
        band = band_of(request.band, "band") if paths == ["band"] else None

        def event(jobs: tuple[JobId, ...]) -> Event:
            at, by = self.engine.now(), caller().user
            if band is not None:
                return BandRequested(at=at, by=by, jobs=jobs, band=band)
            return HoldRequested(at=at, by=by, jobs=jobs, is_held=request.is_held)

        return scheduler_pb2.UpdateJobResponse(changes=await self._change(request.jobs, event))

    @answers
    async def SignalJob(self, request: scheduler_pb2.SignalJobRequest, context: Any) -> scheduler_pb2.SignalJobResponse:
        """Send a signal to running jobs."""
        if not 1 <= request.signal <= SIGNAL_MAX:
            raise invalid("signal", f"is {request.signal}; it must be 1 to {SIGNAL_MAX}")
        check_request_id(request.request_id)
        changes = await self.signal_jobs(request.jobs, request.signal, request)
        return scheduler_pb2.SignalJobResponse(changes=changes)

    async def signal_jobs(
        self,
        jobs: scheduler_pb2.JobSelector,
        number: int,
        request: scheduler_pb2.SignalJobRequest | None = None,
    ) -> list[scheduler_pb2.JobChange]:
        """Send a signal; a request with an id does so once however often it comes.

        To a job that is being started it waits a moment: what prints its first line runs, though that is told later.
        """
        if len(jobs.job_ids) == 1:
            job = await self.find(JobId(jobs.job_ids[0]))
            self.check_owner(job)
            await until_started(self.engine, self.changes, job.id, SIGNAL_WAIT_SECONDS_MAX)
        request_id = request.request_id if request is not None else ""
        return await self._change(
            jobs,
            lambda chosen: SignalRequested(
                at=self.engine.now(),
                by=caller().user,
                jobs=chosen,
                signal=number,
                request_id=request_id,
                request_digest=digest_of(request) if request_id else "",
            ),
        )

    @answers
    async def RequeueJob(
        self, request: scheduler_pb2.RequeueJobRequest, context: Any
    ) -> scheduler_pb2.RequeueJobResponse:
        """Take jobs off their nodes and queue them again."""
        changes = await self._change(
            request.jobs,
            lambda jobs: RequeueRequested(
                at=self.engine.now(), by=caller().user, jobs=jobs, reason=_reason(request.reason)
            ),
        )
        return scheduler_pb2.RequeueJobResponse(changes=changes)

    async def _change(
        self, selector: scheduler_pb2.JobSelector, event: Callable[[tuple[JobId, ...]], Event]
    ) -> list[scheduler_pb2.JobChange]:
        jobs = await self._selected(selector)
        if not jobs:
            return []
        reply = await reply_of(self.engine.request(event(jobs)))
        assert isinstance(reply, JobsChanged)
        changes: list[scheduler_pb2.JobChange] = []
        for change in reply.changes:
            state = state_now(self.engine.view.durable, await self.find(change.job))
            changes.append(
                scheduler_pb2.JobChange(job_id=change.job, changed=change.changed, state=state, message=change.message)
            )
        return changes

    async def _selected(self, selector: scheduler_pb2.JobSelector) -> tuple[JobId, ...]:
        """The jobs that a selector names and the caller may change."""
        if len(selector.job_ids) > JOBS_SELECTED_MAX:
            raise invalid("jobs.job_ids", f"holds {len(selector.job_ids):,} ids; at most {JOBS_SELECTED_MAX:,}")
        if not (selector.job_ids or selector.all_mine or selector.name):
            raise invalid("jobs", "names no job", next_step="give a job's id, such as 41")
        live = self.engine.view.durable.jobs
        user = caller().user
        chosen = [JobId(job_id) for job_id in selector.job_ids]
        if selector.all_mine:
            chosen += [job.id for job in live.wholes() if job.user == user]
        if selector.name:
            chosen.append(self._named(selector.name, user))
        for job_id in chosen:
            self.check_owner(await self.find(job_id))
        return tuple(dict.fromkeys(chosen))

    def _named(self, name: str, user: UserName) -> JobId:
        wholes = self.engine.view.durable.jobs.wholes()
        named = [job.id for job in wholes if job.user == user and job.spec.name == name]
        if not named:
            raise GpufleetError(Reason.JOB_NOT_FOUND, f"no live job of yours is called {name!r}")
        if len(named) > 1:
            ids = ", ".join(map(str, named[:5]))
            raise GpufleetError(Reason.SELECTOR_AMBIGUOUS, f"{len(named)} live jobs are called {name!r}: {ids}")
        return named[0]


def _reason(text: str) -> str:
    if len(text) > REASON_CHARS_MAX:
        raise invalid("reason", f"is longer than {REASON_CHARS_MAX:,} characters")
    return text
