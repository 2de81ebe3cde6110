"""The Scheduler service, the part about what has ended: how long it ran and waited, and what it used."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import history_pb2, job_pb2

from gpufleet.errors import invalid
from gpufleet.jobs.run_protos import exit_to_proto

from ...engine import Engine
from ...ports import EndedQuery
from ...state.attempts import EndedAttempt
from ...state.ids import JobId, NodeName, UserName
from ...state.jobs import ATTEMPTS_KEPT, Finished, Job, index_of
from ...state.units import Instant, Span
from ...wire.convert import duration, timestamp
from ...wire.convert_jobs import OUTCOMES, state_of
from ...wire.digests import query_of
from ...wire.validate import node_name
from ..answers import Calls
from ..paging import PageTokens, page_size
from .arrays import show_items

READ_AT_ONCE = 200
"""Jobs that are read while a page looks for those of a node."""
SCANNED_MAX = 2_000
"""Jobs that are read for one page; it may then be short and still have a successor."""


class EndedJobCalls(Calls):
    """What people ask of what has ended."""

    engine: Engine
    pages: PageTokens
    find: Callable[[int], Awaitable[Job]]

    async def ListEndedJobs(self, request: history_pb2.ListEndedJobsRequest) -> history_pb2.ListEndedJobsResponse:
        """A page of what has ended, newest end first."""
        size = page_size(request.page_size)
        wanted = _query(request)
        query = query_of(request)
        cursor = self.pages.read(query, request.page_token)
        before = (Instant(cursor[0]), JobId(cursor[1])) if cursor else None
        found: list[Job] = []
        scanned, is_over = 0, False
        while len(found) < size and scanned < SCANNED_MAX and not is_over:
            limit = READ_AT_ONCE if wanted.node is not None else size
            page = replace(wanted, before=before, limit=limit)
            # Not on the store's own thread: a commit never waits for somebody who looks back.
            jobs = await self.engine.meeting_damage(asyncio.to_thread(partial(self.engine.store.ended_jobs, page)))
            for job in jobs:
                if len(found) == size:
                    break
                before = (_end_of(job).at, job.id)
                if wanted.node is None or _was_on(job, wanted.node):
                    found.append(job)
            else:
                is_over = len(jobs) < page.limit
            scanned += len(jobs)
        more = "" if is_over or before is None else self.pages.sign(query, list(before))
        return history_pb2.ListEndedJobsResponse(
            jobs=[await self._ended(job) for job in found],
            next_page_token=more,
            view_time=timestamp(self.engine.now()),
        )

    async def _ended(self, job: Job) -> history_pb2.EndedJob:
        message = ended_job(job)
        if job.array is not None:
            array = self.engine.view.durable.jobs.get(job.array) or await self.find(job.array)
            message.array_id, message.array_index = array.id, index_of(array, job)
        elif job.items is not None:
            shown = job_pb2.Job()
            show_items(shown, self.engine.view.durable, job)
            message.array_counts.CopyFrom(shown.array_counts)
        return message


def _query(request: history_pb2.ListEndedJobsRequest) -> EndedQuery:
    """What is asked for. Errors: INVALID_ARGUMENT."""
    outcome_of = {state: outcome for outcome, state in OUTCOMES.items()}
    for number, state in enumerate(request.states):
        if state not in outcome_of:
            raise invalid(
                f"states[{number}]",
                f"is {job_pb2.JobState.Name(state) if state in job_pb2.JobState.values() else state}; "
                "it must be an end: SUCCEEDED, FAILED, CANCELLED or TIMED_OUT",
                next_step="see jobs that have not ended with: gpuctl queue",
            )
    since = _instant(request.start_time, "start_time") if request.HasField("start_time") else None
    until = _instant(request.end_time, "end_time") if request.HasField("end_time") else None
    if since is not None and until is not None and since >= until:
        raise invalid("start_time", "is not before end_time")
    return EndedQuery(
        since=since,
        until=until,
        user=UserName(request.user) if request.user else None,
        name=request.name or None,
        outcomes=tuple(outcome_of[state] for state in request.states),
        node=node_name(request.node) if request.node else None,
        has_items=request.include_items,
    )


def _instant(time: Timestamp, field: str) -> Instant:
    try:
        return Instant(time.ToMicroseconds())
    except ValueError:
        raise invalid(field, "is no time", next_step="give a time such as 2026-01-31T12:00:00Z") from None


def ended_job(job: Job) -> history_pb2.EndedJob:
    """A job that has ended, with what its newest attempt was and used."""
    end = _end_of(job)
    newest = job.past[-1] if job.past else None
    message = history_pb2.EndedJob(
        job_id=job.id,
        user=job.user,
        name=job.spec.name,
        band=job_pb2.Band.ValueType(job.band),
        state=state_of(job),
        exit=exit_to_proto(end.exit),
        exit_reason=end.reason,
        exit_message=end.message,
        submit_time=timestamp(job.submitted_at),
        end_time=timestamp(end.at),
        wait=duration(_waited(job, end)),
        attempt_count=job.run_count,
        time_limit=duration(job.spec.time_limit),
    )
    if newest is not None:
        _add_use(message, newest)
    return message


def _add_use(message: history_pb2.EndedJob, attempt: EndedAttempt) -> None:
    ranks = attempt.ranks
    starts = [rank.started_at for rank in ranks if rank.started_at is not None]
    if len(starts) == len(ranks):
        message.start_time.FromMicroseconds(max(starts))
        message.elapsed.FromMicroseconds(max(0, attempt.ended_at - max(starts)))
    exits = [rank.exit for rank in ranks if rank.exit is not None]
    uses = [each.use for each in exits if each.use is not None]
    processes = [use.processes.memory_bytes for use in uses if use.processes is not None]
    devices = [device for use in uses for device in use.devices]
    loads = [each.utilization_percent for each in devices if each.utilization_percent is not None]
    message.nodes.extend(rank.placement.node for rank in ranks)
    message.gpu_count = sum(len(rank.placement.devices) for rank in ranks)
    message.cpus = sum(rank.placement.cpus for rank in ranks)
    message.cpu_seconds = sum(each.cpu_seconds for each in exits)
    peaks = [each.memory_bytes_max for each in exits] + [round(each.high) for each in processes if each is not None]
    message.memory_bytes_max = max(peaks, default=0)
    if loads:
        message.gpu_percent_mean = sum(each.mean * each.count for each in loads) / sum(each.count for each in loads)
    used = (each.memory_used_bytes for each in devices)
    message.gpu_memory_bytes_max = max((round(each.high) for each in used if each is not None), default=0)


def _waited(job: Job, end: Finished) -> Span | None:
    """From when it could run until its first attempt had its devices, or it ended without one.

    An attempt that its node refused is no attempt here: it never ran, and its number is not kept.
    Of a job that was queued again at its time limit its age counts from there: its first wait counts from its submit.
    """
    if job.items is not None or (len(job.past) >= ATTEMPTS_KEPT and job.past[0].number > 1):
        return None
    never_could = job.unmet or (job.begins_at is not None and job.begins_at > end.at)
    if never_could and not job.past:
        return None
    since = job.submitted_at if job.time_out_count else job.age_since
    return Span(max(0, (job.past[0].held_since if job.past else end.at) - since))


def _end_of(job: Job) -> Finished:
    assert isinstance(job.state, Finished), f"job {job.id} has not ended"
    return job.state


def _was_on(job: Job, node: NodeName) -> bool:
    return any(rank.placement.node == node for attempt in job.past for rank in attempt.ranks)
