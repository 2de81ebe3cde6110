"""The Scheduler service, first half: jobs."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from dataclasses import replace
from typing import Any

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.telemetry import Telemetry
from gpufleet.traceparent import from_metadata, is_traceparent, new_traceparent

from ..engine import Engine
from ..policy.explain import explain, foretell
from ..policy.forecast import Estimates
from ..policy.order import position
from ..ports import FinishedQuery
from ..state.events import (
    BandRequested,
    CancelRequested,
    Event,
    HoldRequested,
    JobsSubmitted,
    RequeueRequested,
    SignalRequested,
)
from ..state.ids import JobId, NodeName, UserName
from ..state.indices import Indices
from ..state.jobs import Finished, Items, Job, index_of, items_alike
from ..state.records import is_shared, job_of
from ..state.replies import JobsChanged, Submitted
from ..state.specs import Outcome
from ..watching import ChangeHub
from . import queue_page
from .alike_specs import KnownSpecs
from .answers import answers, reply_of, streams
from .arrays import failed_indices, find_job, page_of_items, show_items, state_now, who_waits
from .attaching import Attachment, check_input, first_request, person_of
from .channels import Channels, Keyboards
from .convert import timestamp
from .convert_jobs import add_times, explanation_proto, job_proto, state_of, story_line
from .following import JobFollower
from .nodes import shown_node
from .paging import PageTokens, page_size
from .reasons import WaitReasons
from .roles import caller
from .starting import until_started
from .stats_marks import has_stats
from .validate import band_of, check_request_id, wanted_jobs
from .watch import watch_changes

JOBS_SELECTED_MAX = 10_000
ARRAYS_KEPT = 1_000
"""Arrays that have ended and are remembered for the indices of their items."""
SIGNAL_MAX = 64
SIGNAL_WAIT_SECONDS_MAX = 1.0
"""How long a signal waits for the job that it is for, while that is being started."""


class JobCalls:
    """What people ask of jobs. Each method is one RPC."""

    engine: Engine
    pages: PageTokens
    changes: ChangeHub
    telemetry: Telemetry
    reasons: WaitReasons
    follower: Callable[[scheduler_pb2.StreamOutputRequest], JobFollower]
    last_offsets: Callable[[job_pb2.Job], Awaitable[None]]
    program_log: Callable[[scheduler_pb2.StreamOutputRequest], AsyncIterator[scheduler_pb2.StreamOutputResponse]]
    one_stream: Callable[[], AbstractContextManager[None]]
    channels: Channels
    keyboards: Keyboards
    known_specs: KnownSpecs
    _arrays: dict[JobId, Job]

    @answers
    async def Submit(self, request: scheduler_pb2.SubmitRequest, context: Any) -> scheduler_pb2.SubmitResponse:
        """Check, decide, store, answer."""
        parent = from_metadata(context.invocation_metadata())
        if request.specs and is_traceparent(request.specs[0].trace_context):
            parent = request.specs[0].trace_context
        with self.telemetry.span("submit", parent=parent, jobs=request.count or len(request.specs)) as span:
            for spec in request.specs:
                spec.trace_context = span.traceparent or new_traceparent()
            submitted = await self._submitted(request, span.traceparent)
            reply = await reply_of(self.engine.request(submitted))
        assert isinstance(reply, Submitted)
        if request.dry_run:
            assert reply.job is not None
            foretold = self._job_foretold(reply.job)
            return scheduler_pb2.SubmitResponse(count=reply.count, job=foretold, notes=reply.notes)
        job = self.engine.view.durable.jobs.get(reply.first) or reply.job
        if job is None:
            job = await self._find(reply.first)
        shown = self._job_now(job)
        return scheduler_pb2.SubmitResponse(first_job_id=reply.first, count=reply.count, job=shown, notes=reply.notes)

    async def _submitted(self, request: scheduler_pb2.SubmitRequest, trace: str) -> JobsSubmitted:
        if request.rerun_failed_job_id and not (request.specs or request.count):
            return await self._submitted_again(request, trace)
        jobs = wanted_jobs(request, self.known_specs)
        named = {each.job for job in jobs for each in job.spec.after}
        ended = {job_id: await self._outcome(job_id) for job_id in named}
        return JobsSubmitted(
            at=self.engine.now(),
            user=caller().user,
            specs=tuple(job.spec for job in jobs),
            band=tuple(job.band for job in jobs),
            is_held=tuple(job.is_held for job in jobs),
            count=request.count or 1,
            request_id=request.request_id,
            request_digest=_digest(request) if request.request_id else "",
            is_dry_run=request.dry_run,
            ended=ended,
            items=jobs[0].items,
        )

    async def _submitted_again(self, request: scheduler_pb2.SubmitRequest, trace: str) -> JobsSubmitted:
        """What failed of a job, as it was asked for, but for what it was to wait for. Errors: NOTHING_FAILED."""
        check_request_id(request.request_id)
        job = await self._find(request.rerun_failed_job_id)
        self._check_owner(job)
        items: Items | None = None
        if job.items is not None:
            numbers = await failed_indices(self.engine, job)
            if not numbers:
                raise GpufleetError(Reason.NOTHING_FAILED, f"no item of array {job.id} has failed")
            items = replace(job.items, indices=Indices.of_numbers(numbers), ended=None)
        elif not isinstance(job.state, Finished) or job.state.outcome not in (Outcome.FAILED, Outcome.TIMED_OUT):
            raise GpufleetError(Reason.NOTHING_FAILED, f"job {job.id} has not failed")
        elif job.array is not None:
            array = await self._find(job.array)
            assert array.items is not None
            items = replace(array.items, indices=Indices.of_numbers([index_of(array, job)]), ended=None)
        spec = replace(job.spec, after=(), begin_at=None, trace_context=trace or new_traceparent())
        return JobsSubmitted(
            at=self.engine.now(),
            user=caller().user,
            specs=(spec,),
            band=(job.band,),
            is_held=(False,),
            request_id=request.request_id,
            request_digest=_digest(request) if request.request_id else "",
            is_dry_run=request.dry_run,
            items=items,
        )

    async def _outcome(self, job_id: JobId) -> Outcome | None:
        """How a job ended; None for one that is live, or that there is not."""
        if job_id in self.engine.view.durable.jobs:
            return None
        try:
            job = await self._find(job_id)
        except GpufleetError:
            return None
        return job.state.outcome if isinstance(job.state, Finished) else None

    def _job_now(self, job: Job) -> job_pb2.Job:
        """A job with its place and the reason why it waits, as of an array its first item does."""
        durable = self.engine.view.durable
        waits = who_waits(durable, job)
        message = job_proto(job, position=position(durable, waits, self.engine.now()))
        show_items(message, durable, job)
        message.has_stats = has_stats(job, self.engine.view.live)
        array = None if job.array is None else durable.jobs.get(job.array) or self._arrays.get(job.array)
        if array is not None:
            message.array_index = index_of(array, job)
        for reason, clause in self.reasons.of([waits]).values():
            message.wait_reason.reason, message.wait_reason.sentence = reason, clause
        return message

    def _job_foretold(self, job: Job) -> job_pb2.Job:
        """A job of a dry run, as it would be: it has no id, and the reason says what would happen."""
        waits = job if job.items is None else items_alike(job)
        message = job_proto(job, position=position(self.engine.view.durable, waits, self.engine.now()))
        show_items(message, self.engine.view.durable, job)
        message.state = state_of(waits)
        message.ClearField("id")
        foretold = foretell(self.engine.view, job, self.engine.now())
        message.wait_reason.reason, message.wait_reason.sentence = foretold.reason, foretold.sentence
        return message

    async def _find(self, job_id: int) -> Job:
        """A live or ended job. Errors: JOB_NOT_FOUND."""
        found = await find_job(self.engine, JobId(job_id))
        if found is None:
            raise GpufleetError(Reason.JOB_NOT_FOUND, f"there is no job {job_id}")
        if found.array is not None and found.array not in self.engine.view.durable.jobs:
            array = await find_job(self.engine, found.array)
            if array is not None:
                self._arrays[array.id] = array
                while len(self._arrays) > ARRAYS_KEPT:
                    del self._arrays[next(iter(self._arrays))]
        return found

    @answers
    async def Cancel(self, request: scheduler_pb2.CancelRequest, context: Any) -> scheduler_pb2.CancelResponse:
        """Stop jobs by the grace rule."""
        changes = await self._change(
            request.jobs,
            lambda jobs: CancelRequested(
                at=self.engine.now(),
                by=caller().user,
                jobs=jobs,
                reason=_short(request.reason, "reason"),
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
        changes = await self._signal(request.jobs, request.signal, request)
        return scheduler_pb2.SignalJobResponse(changes=changes)

    async def _signal(
        self,
        jobs: scheduler_pb2.JobSelector,
        number: int,
        request: scheduler_pb2.SignalJobRequest | None = None,
    ) -> list[scheduler_pb2.JobChange]:
        """Send a signal; a request with an id does so once however often it comes.

        To a job that is being started it waits a moment: what prints its first line runs, though that is told later.
        """
        if len(jobs.job_ids) == 1:
            job = await self._find(JobId(jobs.job_ids[0]))
            self._check_owner(job)
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
                request_digest=_digest(request) if request_id else "",
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
                at=self.engine.now(), by=caller().user, jobs=jobs, reason=_short(request.reason, "reason")
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
            state = state_now(self.engine.view.durable, await self._find(change.job))
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
            self._check_owner(await self._find(job_id))
        return tuple(dict.fromkeys(chosen))

    def _check_owner(self, job: Job) -> None:
        """Only its owner and admins change a job, or type to it. Errors: NOT_YOUR_JOB."""
        if job.user != caller().user and not caller().is_admin:
            raise GpufleetError(Reason.NOT_YOUR_JOB, f"job {job.id} belongs to {job.user}")

    def _check_has_output(self, job: Job) -> None:
        """An array has no output, and nothing to type to, of its own. Errors: IS_AN_ARRAY."""
        if job.items is not None:
            raise GpufleetError(
                Reason.IS_AN_ARRAY,
                f"job {job.id} is an array, and its output is that of its items",
                next_step=f"name one, such as {job.id}.{job.items.indices.at(0)}",
            )

    def _named(self, name: str, user: UserName) -> JobId:
        wholes = self.engine.view.durable.jobs.wholes()
        named = [job.id for job in wholes if job.user == user and job.spec.name == name]
        if not named:
            raise GpufleetError(Reason.JOB_NOT_FOUND, f"no live job of yours is called {name!r}")
        if len(named) > 1:
            ids = ", ".join(map(str, named[:5]))
            raise GpufleetError(Reason.SELECTOR_AMBIGUOUS, f"{len(named)} live jobs are called {name!r}: {ids}")
        return named[0]

    @answers
    async def Queue(self, request: scheduler_pb2.QueueRequest, context: Any) -> scheduler_pb2.QueueResponse:
        """A page of jobs."""
        size = page_size(request.page_size)
        for number, state in enumerate(request.states):
            if state not in job_pb2.JobState.values():
                raise invalid(f"states[{number}]", f"is {state}; see the names of JobState")
        query = _query(request)
        cursor = self.pages.read(query, request.page_token)
        rows: list[queue_page.Row] = []
        if cursor is None or cursor[0] != queue_page.FINISHED:
            for row in queue_page.live_rows(self.engine, request, cursor):
                rows.append(row)
                if len(rows) > size:
                    break
        if request.include_finished and len(rows) <= size:
            rows += await queue_page.finished_rows(self.engine, request, cursor, size + 1 - len(rows))
        more = self.pages.sign(query, rows[size - 1].cursor) if len(rows) > size else ""
        return scheduler_pb2.QueueResponse(
            jobs=self._shown_rows(rows[:size], omit_env=request.omit_env),
            next_page_token=more,
            counts=queue_page.counts(self.engine),
            view_time=timestamp(self.engine.now()),
        )

    def _shown_rows(self, rows: list[queue_page.Row], *, omit_env: bool) -> list[job_pb2.Job]:
        """The jobs of a page; what waits says why, in a clause, and when it is expected to start."""
        durable = self.engine.view.durable
        waiting = [who_waits(durable, row.job) for row in rows]
        reasons = self.reasons.of(waiting)
        starts = self.reasons.starts() if any(row.position for row in rows) else Estimates()
        bounds = self.reasons.known_bounds()
        shown: list[job_pb2.Job] = []
        for row, waits in zip(rows, waiting, strict=True):
            message = job_proto(row.job, position=row.position, omit_env=omit_env)
            show_items(message, durable, row.job)
            message.has_stats = has_stats(row.job, self.engine.view.live)
            if waits.id in reasons:
                message.wait_reason.reason, message.wait_reason.sentence = reasons[waits.id]
            if row.position:
                add_times(message, starts.of(waits.id), bounds.get(waits.id))
            shown.append(message)
        return shown

    @answers
    async def GetJob(self, request: scheduler_pb2.GetJobRequest, context: Any) -> scheduler_pb2.GetJobResponse:
        """One job, by id, by name, or the caller's newest."""
        if request.job_id:
            job = await self._find(request.job_id)
        elif request.last or request.name:
            job = await self._newest(caller().user, request.name or None)
        else:
            raise invalid("job_id", "is not set", next_step="give a job's id, such as 41")
        message = self._job_now(job)
        if message.queue_position:
            waits = who_waits(self.engine.view.durable, job)
            add_times(message, self.reasons.starts().of(waits.id), self.reasons.bound(waits))
        await self.last_offsets(message)
        return scheduler_pb2.GetJobResponse(job=message)

    async def _newest(self, user: UserName, name: str | None) -> Job:
        def is_meant(job: Job) -> bool:
            return job.user == user and job.array is None and (name is None or job.spec.name == name)

        live = [job for job in self.engine.view.durable.jobs.wholes() if is_meant(job)]
        recent = [job for job in self.engine.recently_finished.values() if is_meant(job)]
        newest = max(live + recent, key=lambda job: job.id, default=None)
        if newest is None:
            query = FinishedQuery(user=user, name=name, limit=1)
            stored = await self.engine.on_store_thread(lambda: self.engine.store.finished_jobs(query))
            newest = stored[0] if stored else None
        if newest is None:
            what = "have no job yet" if name is None else f"have no job called {name!r}"
            raise GpufleetError(Reason.JOB_NOT_FOUND, f"you {what}")
        return newest

    @answers
    async def GetStory(self, request: scheduler_pb2.GetStoryRequest, context: Any) -> scheduler_pb2.GetStoryResponse:
        """A page of what happened to a job."""
        job = await self._find(request.job_id)
        size = page_size(request.page_size)
        query = f"story {job.id}"
        cursor = self.pages.read(query, request.page_token)
        after = cursor[0] if cursor else 0
        stored = await self.engine.on_store_thread(
            lambda: self.engine.store.story(job.id, after, size + 1, job.told_with)
        )
        more = self.pages.sign(query, [stored[size - 1].sequence]) if len(stored) > size else ""
        told = [each for each in stored[:size] if job_of(each.record) == job.id or is_shared(each.record, job)]
        return scheduler_pb2.GetStoryResponse(lines=[story_line(each) for each in told], next_page_token=more)

    @answers
    async def Explain(self, request: scheduler_pb2.ExplainRequest, context: Any) -> scheduler_pb2.ExplainResponse:
        """Why a job waits."""
        job = await self._find(request.job_id)
        explanation = explain(self.engine.view, job, self.engine.now(), self.reasons.promises)
        return scheduler_pb2.ExplainResponse(job=self._job_now(job), explanation=explanation_proto(explanation))

    @answers
    async def ListArrayItems(
        self, request: scheduler_pb2.ListArrayItemsRequest, context: Any
    ) -> scheduler_pb2.ListArrayItemsResponse:
        """A page of an array's items."""
        array = await self._find(request.job_id)
        size = page_size(request.page_size)
        query = _query(request)
        cursor = self.pages.read(query, request.page_token)
        items, behind = await page_of_items(self.engine, array, request, cursor[0] if cursor else 0, size)
        more = "" if behind is None else self.pages.sign(query, [behind])
        return scheduler_pb2.ListArrayItemsResponse(items=items, next_page_token=more)

    @streams
    async def Watch(
        self, request: scheduler_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[scheduler_pb2.WatchResponse]:
        """Changes of jobs and nodes."""
        with self.one_stream():
            async for response in watch_changes(self, request):
                yield response

    @streams
    async def StreamOutput(
        self, request: scheduler_pb2.StreamOutputRequest, context: Any
    ) -> AsyncIterator[scheduler_pb2.StreamOutputResponse]:
        """The output of a job, or the log of a program."""
        match request.WhichOneof("source"):
            case "job_id":
                self._check_has_output(await self._find(request.job_id))
                responses: AsyncIterator[scheduler_pb2.StreamOutputResponse] = self.follower(request).stream()
            case "program":
                responses = self.program_log(request)
            case _:
                raise invalid("job_id", "is not set", next_step="give a job's id, or a program")
        with self.one_stream():
            async for response in responses:
                yield response

    @streams
    async def AttachJob(
        self, request_iterator: AsyncIterator[scheduler_pb2.AttachJobRequest], context: Any
    ) -> AsyncIterator[scheduler_pb2.AttachJobResponse]:
        """A job's standard input, and its output."""
        first = await first_request(request_iterator)
        job = await self._find(first.job_id)
        self._check_owner(job)
        self._check_has_output(job)
        check_input(job)
        person = person_of(first, job)

        async def send_signal(number: int) -> None:
            await self._signal(scheduler_pb2.JobSelector(job_ids=[job.id]), number)

        attachment = Attachment(
            person,
            engine=self.engine,
            changes=self.changes,
            channels=self.channels,
            keyboards=self.keyboards,
            follower=self.follower(person.output),
            send_signal=send_signal,
        )
        with self.one_stream():
            async with aclosing(attachment.stream(first, request_iterator)) as responses:
                async for response in responses:
                    yield response

    def node_as_shown(self, name: NodeName) -> node_pb2.Node | None:
        """A node as people see it now; None when it is gone."""
        return shown_node(self.engine, name)

    async def job_as_shown(self, job_id: JobId) -> tuple[job_pb2.Job, bool]:
        """A job as people see it now, and whether it has ended; for followers."""
        job = await self._find(job_id)
        return self._job_now(job), isinstance(job.state, Finished)


def _digest(request: Any) -> str:
    """A hash of what a request asks for, without its id and trace context, which differ between tries."""
    bare = type(request)()
    bare.CopyFrom(request)
    bare.ClearField("request_id")
    for spec in getattr(bare, "specs", ()):
        spec.ClearField("trace_context")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def _query(request: Any) -> str:
    """A page's list and filters, without where it goes on."""
    bare = type(request)()
    bare.CopyFrom(request)
    bare.ClearField("page_token")
    bare.ClearField("page_size")
    return f"{bare.DESCRIPTOR.name} {bare.SerializeToString(deterministic=True).hex()}"


TEXT_CHARS_MAX = 1_000


def _short(text: str, field: str) -> str:
    if len(text) > TEXT_CHARS_MAX:
        raise invalid(field, f"is longer than {TEXT_CHARS_MAX:,} characters")
    return text
