"""Jobs by what they are: read page by page, counted, and handed on in lots that a call takes.

An array of which all that has not ended is meant is one id. Where only some of it is, as with `--state queued` of an
array that runs, those items are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.client import Client, all_pages
from gpufleet.fleet.named_jobs import IDS_MAX, PAGE_SIZE
from gpufleet.fleet.reading import wrong
from gpufleet.text.units import counted

from .filter_options import Filters
from .queue_view import ENDED, QueueRequest

JOBS_MAX = 1_000_000
"""Ids that one command may find: as many as a scheduler queues by default."""

LIVE = (
    ("queued", job_pb2.JOB_STATE_QUEUED),
    ("held", job_pb2.JOB_STATE_HELD),
    ("starting", job_pb2.JOB_STATE_STARTING),
    ("running", job_pb2.JOB_STATE_RUNNING),
    ("stopping", job_pb2.JOB_STATE_STOPPING),
)
"""The counts of an array's items that have not ended, and their states."""


@dataclass(frozen=True, slots=True)
class Found:
    """The ids to name, how many jobs they stand for (each item of an array is one), and whose they are.

    `ended_count` is how many of them have ended already.
    """

    job_ids: tuple[int, ...]
    count: int
    users: frozenset[str]
    caller: str
    ended_count: int = 0

    def to_wait_for(self) -> str:
        """`4 jobs, 1 of which has ended`."""
        ended, has = self.ended_count, "has" if self.ended_count == 1 else "have"
        return f"{counted(self.count, 'job')}{f', {ended:,} of which {has} ended' if ended else ''}"

    def whose(self) -> str:
        """`of yours`, `of ada`, `of 3 people`."""
        if self.users <= {self.caller}:
            return "of yours"
        return f"of {next(iter(self.users))}" if len(self.users) == 1 else f"of {len(self.users)} people"

    def lots(self) -> Iterator[scheduler_pb2.JobSelector]:
        """Selectors of as many ids as a call takes."""
        for begin in range(0, len(self.job_ids), IDS_MAX):
            yield scheduler_pb2.JobSelector(job_ids=self.job_ids[begin : begin + IDS_MAX])


def check_filters(command: str, filters: Filters, jobs: Sequence[str]) -> None:
    """Refuse jobs that are named beside filters, neither of them, and states of jobs that have ended."""
    if filters.are_given and jobs:
        raise invalid(
            "JOB",
            f'"{jobs[0]}" is named, and jobs are chosen by what they are, too',
            next_step="Name jobs, or give options such as --name and --state.",
        )
    if not filters.are_given and not jobs:
        raise invalid(
            "JOB",
            "no job is named",
            next_step=f"Name them, or choose them with --name, --state and others: gpuctl {command} --help",
        )
    if any(state in ENDED for state in _wanted(filters, "").state_numbers()):
        raise invalid(
            "--state",
            "a job that has ended stays as it is",
            next_step="Choose among: queued, held, starting, running, stopping.",
        )


def find(client: Client, filters: Filters) -> Found:
    """What has not ended and passes the filters; of nobody else's unless a user is named."""
    caller = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
    wanted = _wanted(filters, filters.user or caller)
    states = frozenset(wanted.state_numbers()) or frozenset(state for _, state in LIVE)
    ids: list[int] = []
    users: set[str] = set()
    count = 0
    for job in _candidates(client, wanted, filters, caller):
        for job_id, jobs in _of_job(client, job, states):
            ids.append(job_id)
            count += jobs
            users.add(job.user)
            if len(ids) > JOBS_MAX:
                raise wrong(f"more than {JOBS_MAX:,} jobs are chosen", "Choose fewer, in several commands.")
    return Found(tuple(ids), count, frozenset(users), caller)


def _wanted(filters: Filters, user: str) -> QueueRequest:
    return QueueRequest(
        user=user, name=filters.name, labels=tuple(filters.label or ()), states=tuple(filters.state or ())
    )


def _candidates(client: Client, wanted: QueueRequest, filters: Filters, caller: str) -> Iterator[job_pb2.Job]:
    """Jobs and arrays that pass all filters but the state, of which an array has several."""
    any_state = replace(wanted, states=())
    if filters.array is not None:
        job = client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=filters.array)).job
        if not job.HasField("array_counts"):
            raise GpufleetError(Reason.NOT_AN_ARRAY, f"job {job.id} is no array")
        is_meant = wanted.with_finished or job.state not in ENDED
        if is_meant and (not filters.user or job.user == filters.user) and any_state.takes(job):
            yield job
        return
    request = any_state.request(wanted.user)
    request.page_size = PAGE_SIZE
    for page in all_pages(client, client.scheduler.Queue, request):
        yield from (job for job in page.jobs if job.user == wanted.user and any_state.takes(job))


def _of_job(client: Client, job: job_pb2.Job, states: frozenset[int]) -> Iterator[tuple[int, int]]:
    """The ids that stand for it, each with how many jobs it is."""
    if not job.HasField("array_counts"):
        if job.state in states:
            yield job.id, 1
        return
    live = {state: getattr(job.array_counts, name) for name, state in LIVE}
    meant = {state: number for state, number in live.items() if number and state in states}
    if sum(meant.values()) == sum(live.values()):
        if meant:
            yield job.id, sum(meant.values())
        return
    request = scheduler_pb2.ListArrayItemsRequest(job_id=job.id, states=list(meant), page_size=PAGE_SIZE)
    for page in all_pages(client, client.scheduler.ListArrayItems, request) if meant else ():
        yield from ((item.job_id, 1) for item in page.items)


def find_to_wait_for(client: Client, filters: Filters, since: datetime) -> Found:
    """Find what `wait` waits for: jobs that have not ended and, without --state, those that ended before the call.

    An array counts with all its items. By their name or label, jobs that ended after `since` count. Errors:
    JOB_NOT_FOUND where there is none, INVALID_ARGUMENT where there are more than one stream follows.
    """
    if filters.state or not (filters.name or filters.label or filters.array):
        found = find(client, filters)
    else:
        found = _find_with_ended(client, filters, since)
    if not found.job_ids:
        raise GpufleetError(
            Reason.JOB_NOT_FOUND,
            "no job is chosen by these options",
            next_step="Look further back with --since 7d, or see the names with: gpuctl queue -a",
        )
    if len(found.job_ids) > IDS_MAX:
        what = f"{len(found.job_ids):,} jobs are more than {IDS_MAX:,} at once"
        raise wrong(what, "Choose fewer, in several commands.")
    return found


def _find_with_ended(client: Client, filters: Filters, since: datetime) -> Found:
    caller = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
    wanted = replace(_wanted(filters, filters.user or caller), with_finished=True)
    jobs: dict[int, job_pb2.Job] = {}  # a job may end between two pages, and then comes twice
    for job in _candidates(client, wanted, filters, caller):
        if filters.array is None and job.state in ENDED and job.end_time.ToDatetime(UTC) < since:
            break  # ended jobs come behind all others, the newest end first
        jobs[job.id] = job
    chosen = jobs.values()
    return Found(
        tuple(jobs),
        sum(_item_count(job) for job in chosen),
        frozenset(job.user for job in chosen),
        caller,
        ended_count=sum(_ended_count(job) for job in chosen),
    )


def _item_count(job: job_pb2.Job) -> int:
    return job.array_counts.items if job.HasField("array_counts") else 1


def _ended_count(job: job_pb2.Job) -> int:
    if not job.HasField("array_counts"):
        return int(job.state in ENDED)
    counts = job.array_counts
    return counts.succeeded + counts.failed + counts.timed_out + counts.cancelled
