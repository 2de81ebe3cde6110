"""The Scheduler service: jobs as people look at them: one, many, their stories, and their output."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, aclosing

from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import invalid

from ...output_hub import OutputHub
from ...policy.explain import explain
from ...policy.forecast import Estimates
from ...state.ids import JobId
from ...state.jobs import Finished
from ...state.records import NoticeNotDelivered, is_shared, job_of
from ...wire.convert import timestamp
from ...wire.convert_jobs import add_times, explanation_proto, story_line, wait_reason_proto
from ...wire.digests import query_of
from ..fleet.notices import add_failures
from ..output.attaching import Attachment, check_input, first_request, person_of
from ..output.channels import Channels, Keyboards
from ..output.following import JobFollower
from ..output.program_logs import ProgramLogs
from ..output.setup_output import SetupReader
from ..output.stored_ends import tell_stored_ends
from ..paging import PageTokens, page_size
from ..roles import caller
from ..sight import Sight
from . import queue_page
from .actions import ChangeCalls
from .arrays import page_of_items, who_waits
from .shown import shown_job
from .submitting import SubmitCalls
from .watch import watch_changes
from .what_came import add_results


class JobCalls(SubmitCalls, ChangeCalls):
    """What people ask of jobs. Each method is one RPC."""

    pages: PageTokens
    logs: ProgramLogs
    _outputs: OutputHub
    one_stream: Callable[[], AbstractContextManager[None]]
    channels: Channels
    keyboards: Keyboards

    async def GetJob(self, request: scheduler_pb2.GetJobRequest) -> scheduler_pb2.GetJobResponse:
        """One job, by id, by name, or the caller's newest."""
        if request.job_id:
            job = await self.find(request.job_id)
        elif request.last or request.name:
            job = await self.newest(caller().user, request.name or None)
        else:
            raise invalid("job_id", "is not set", next_step="give a job's id, such as 41")
        message = self.job_now(job)
        if message.queue_position:
            waits = who_waits(self.engine.view.durable, job)
            add_times(message, self.reasons.starts().of(waits.id), self.reasons.bound(waits))
            sight = Sight.of_caller(self.facts)
            sight.hide_caps(self.engine.view.durable.groups, job.group, message.wait_reason, message)
        await tell_stored_ends(message, self._outputs)
        results = files_pb2.JobResults()
        await add_results(results, self.engine, self.blobs, job, Sight.of_caller(self.facts))
        if results.state:
            message.results.CopyFrom(results)
        await add_failures(message, self.engine, job, Sight.of_caller(self.facts))
        return scheduler_pb2.GetJobResponse(job=message)

    async def Queue(self, request: scheduler_pb2.QueueRequest) -> scheduler_pb2.QueueResponse:
        """A page of jobs."""
        size = page_size(request.page_size)
        for number, state in enumerate(request.states):
            if state not in job_pb2.JobState.values():
                raise invalid(f"states[{number}]", f"is {state}; see the names of JobState")
        query = query_of(request)
        cursor = self.pages.read(query, request.page_token)
        rows: list[queue_page.PageRow] = []
        if cursor is None or cursor[0] != queue_page.FINISHED:
            for row in queue_page.live_rows(self.engine, request, cursor):
                rows.append(row)
                if len(rows) > size:
                    break
        if request.include_finished and len(rows) <= size:
            rows += await queue_page.finished_rows(self.engine, request, cursor, size + 1 - len(rows))
        more = self.pages.sign(query, rows[size - 1].cursor) if len(rows) > size else ""
        return scheduler_pb2.QueueResponse(
            jobs=self._shown_rows(queue_page.each_once(rows[:size]), omit_env=request.omit_env),
            next_page_token=more,
            counts=queue_page.counts(self.engine),
            view_time=timestamp(self.engine.now()),
        )

    def _shown_rows(self, rows: list[queue_page.PageRow], *, omit_env: bool) -> list[job_pb2.Job]:
        """The jobs of a page; what waits says why, in a clause, and when it is expected to start."""
        durable = self.engine.view.durable
        waiting = [who_waits(durable, row.job) for row in rows]
        reasons = self.reasons.of(waiting)
        starts = self.reasons.starts() if any(row.position for row in rows) else Estimates()
        bounds = self.reasons.known_bounds()
        output_error, sight = self.facts.output_error(), Sight.of_caller(self.facts)
        shown: list[job_pb2.Job] = []
        for row, waits in zip(rows, waiting, strict=True):
            message = shown_job(
                row.job, self.engine.view, output_error, sight, position=row.position, omit_env=omit_env
            )
            if waits.id in reasons:
                message.wait_reason.CopyFrom(wait_reason_proto(waits, reasons[waits.id]))
            if row.position:
                add_times(message, starts.of(waits.id), bounds.get(waits.id))
            sight.hide_caps(durable.groups, row.job.group, message.wait_reason, message)
            shown.append(message)
        return shown

    async def ListArrayItems(
        self, request: scheduler_pb2.ListArrayItemsRequest
    ) -> scheduler_pb2.ListArrayItemsResponse:
        """A page of an array's items."""
        array = await self.find(request.job_id)
        size = page_size(request.page_size)
        query = query_of(request)
        cursor = self.pages.read(query, request.page_token)
        items, behind = await page_of_items(self.engine, array, request, cursor[0] if cursor else 0, size)
        more = "" if behind is None else self.pages.sign(query, [behind])
        return scheduler_pb2.ListArrayItemsResponse(items=items, next_page_token=more)

    async def GetStory(self, request: scheduler_pb2.GetStoryRequest) -> scheduler_pb2.GetStoryResponse:
        """A page of what happened to a job."""
        job = await self.find(request.job_id)
        self.check_may_read(job)
        size = page_size(request.page_size)
        query = f"story {job.id}"
        cursor = self.pages.read(query, request.page_token)
        after = cursor[0] if cursor else 0
        stored = await self.engine.on_store_thread(
            lambda: self.engine.store.story(job.id, after, size + 1, job.told_with)
        )
        more = self.pages.sign(query, [stored[size - 1].sequence]) if len(stored) > size else ""
        told = [each for each in stored[:size] if job_of(each.record) == job.id or is_shared(each.record, job)]
        if not Sight.of_caller(self.facts).is_whole(job.user):
            told = [each for each in told if not isinstance(each.record, NoticeNotDelivered)]
        return scheduler_pb2.GetStoryResponse(lines=[story_line(each) for each in told], next_page_token=more)

    async def Explain(self, request: scheduler_pb2.ExplainRequest) -> scheduler_pb2.ExplainResponse:
        """Why a job waits."""
        job = await self.find(request.job_id)
        explanation = explain(self.engine.view, job, self.engine.now(), self.reasons.promises)
        told = explanation_proto(explanation)
        Sight.of_caller(self.facts).hide_caps(self.engine.view.durable.groups, job.group, told.reason, told)
        return scheduler_pb2.ExplainResponse(job=self.job_now(job), explanation=told)

    async def Watch(self, request: scheduler_pb2.WatchRequest) -> AsyncIterator[scheduler_pb2.WatchResponse]:
        """Changes of jobs and nodes."""
        with self.one_stream():
            async for response in watch_changes(self, request):
                yield response

    async def StreamOutput(
        self, request: scheduler_pb2.StreamOutputRequest
    ) -> AsyncIterator[scheduler_pb2.StreamOutputResponse]:
        """The output of a job, or the log of a program."""
        match request.WhichOneof("source"):
            case "job_id":
                job = await self.find(request.job_id)
                self.check_may_read(job)
                self.check_has_output(job)
                responses: AsyncIterator[scheduler_pb2.StreamOutputResponse]
                if request.of_setup:
                    setup = SetupReader(request, self.logs, self.changes, self.find, self.job_as_shown)
                    responses = setup.stream(job)
                else:
                    responses = self._follower(request).stream()
            case "program":
                if request.of_setup:
                    raise invalid("of_setup", "is of a job, and a program is named", next_step="leave out either")
                responses = self.logs.stream(request)
            case _:
                raise invalid("job_id", "is not set", next_step="give a job's id, or a program")
        with self.one_stream():
            async for response in responses:
                yield response

    async def AttachJob(
        self, request_iterator: AsyncIterator[scheduler_pb2.AttachJobRequest]
    ) -> AsyncIterator[scheduler_pb2.AttachJobResponse]:
        """A job's standard input, and its output."""
        first = await first_request(request_iterator)
        job = await self.find(first.job_id)
        self.check_owner(job)
        self.check_has_output(job)
        check_input(job)
        person = person_of(first, job)

        async def send_signal(number: int) -> None:
            await self.signal_jobs(scheduler_pb2.JobSelector(job_ids=[job.id]), number)

        attachment = Attachment(
            person,
            engine=self.engine,
            changes=self.changes,
            channels=self.channels,
            keyboards=self.keyboards,
            follower=self._follower(person.output),
            send_signal=send_signal,
        )
        with self.one_stream():
            async with aclosing(attachment.stream(first, request_iterator)) as responses:
                async for response in responses:
                    yield response

    def _follower(self, request: scheduler_pb2.StreamOutputRequest) -> JobFollower:
        return JobFollower(request, self._outputs, self.changes, self.job_as_shown)

    async def job_as_shown(self, job_id: JobId) -> tuple[job_pb2.Job, bool]:
        """A job as people see it now, and whether it has ended; for followers."""
        job = await self.find(job_id)
        return self.job_now(job), isinstance(job.state, Finished)
