"""The Scheduler service: what is asked of jobs that are there: cancel, hold, release, move, signal, requeue."""

from collections.abc import Callable

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.runs import SIGNAL_MAX

from ...state import events
from ...state.ids import JobId, UserName
from ...state.replies import JobsChanged
from ...watching import ChangeHub
from ...wire.digests import digest_of
from ...wire.validate import band_of, check_request_id, checked_name, optional_span
from ..answers import reply_of
from ..roles import caller
from .arrays import state_now
from .bands import check_band
from .finding import JobsFound
from .starting import until_started

JOBS_SELECTED_MAX = 10_000
REASON_CHARS_MAX = 1_000
UPDATED_TOGETHER = frozenset({"band", "name", "time_limit"})
SIGNAL_WAIT_SECONDS_MAX = 1.0
"""How long a signal waits for the job that it is for, while that is being started."""


class ChangeCalls(JobsFound):
    """How jobs are changed. Each public method is one RPC but `signal_jobs`, which a terminal needs, too."""

    changes: ChangeHub

    async def Cancel(self, request: scheduler_pb2.CancelRequest) -> scheduler_pb2.CancelResponse:
        """Stop jobs by the grace rule."""
        changes = await self._change(
            request.jobs,
            lambda jobs: events.CancelRequested(
                at=self.engine.now(),
                by=caller().user,
                jobs=jobs,
                reason=_reason(request.reason),
                is_abandoned=request.abandon,
            ),
        )
        return scheduler_pb2.CancelResponse(changes=changes)

    async def UpdateJob(self, request: scheduler_pb2.UpdateJobRequest) -> scheduler_pb2.UpdateJobResponse:
        """Hold or release; or give another band, name or time limit."""
        paths = list(request.update_mask.paths)
        if paths != ["is_held"] and (not paths or not UPDATED_TOGETHER.issuperset(paths)):
            raise invalid("update_mask", f"is {paths}; it must name is_held alone, or any of band, name and time_limit")
        band = band_of(request.band, "band") if "band" in paths else None
        name = _new_name(request.name) if "name" in paths else None
        limit = optional_span(request, "time_limit", "", least=1) if "time_limit" in paths else None
        if band is not None:
            check_band(self.engine.view.limits.bands, band, "band")

        def event(jobs: tuple[JobId, ...]) -> events.Event:
            at, by = self.engine.now(), caller().user
            if "name" in paths or "time_limit" in paths:
                return events.UpdateRequested(
                    at=at,
                    by=by,
                    jobs=jobs,
                    name=name,
                    band=band,
                    time_limit=limit,
                    is_unlimited="time_limit" in paths and limit is None,
                    may_extend=caller().is_admin,
                )
            if band is not None:
                return events.BandRequested(at=at, by=by, jobs=jobs, band=band)
            return events.HoldRequested(at=at, by=by, jobs=jobs, is_held=request.is_held)

        return scheduler_pb2.UpdateJobResponse(changes=await self._change(request.jobs, event))

    async def SignalJob(self, request: scheduler_pb2.SignalJobRequest) -> scheduler_pb2.SignalJobResponse:
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
            lambda chosen: events.SignalRequested(
                at=self.engine.now(),
                by=caller().user,
                jobs=chosen,
                signal=number,
                request_id=request_id,
                request_digest=digest_of(request) if request_id else "",
            ),
        )

    async def RequeueJob(self, request: scheduler_pb2.RequeueJobRequest) -> scheduler_pb2.RequeueJobResponse:
        """Take jobs off their nodes and queue them again."""
        changes = await self._change(
            request.jobs,
            lambda jobs: events.RequeueRequested(
                at=self.engine.now(), by=caller().user, jobs=jobs, reason=_reason(request.reason)
            ),
        )
        return scheduler_pb2.RequeueJobResponse(changes=changes)

    async def _change(
        self, selector: scheduler_pb2.JobSelector, event: Callable[[tuple[JobId, ...]], events.Event]
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


def _new_name(name: str) -> str:
    if not name:
        raise invalid("name", "is empty", next_step="give 1 to 200 characters")
    return checked_name(name, "name")


def _reason(text: str) -> str:
    if len(text) > REASON_CHARS_MAX:
        raise invalid("reason", f"is longer than {REASON_CHARS_MAX:,} characters")
    return text
