"""Watch: the full picture first, then every change, coalesced for a slow reader, and why jobs wait as it changes."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import Reason, invalid

from ...clock import is_set_within
from ...engine import Engine
from ...state.ids import JobId, NodeName
from ...state.indexes.equal_jobs import EqualJobs
from ...state.jobs import Finished, Job, index_of
from ...watching import Change, ChangeHub, Watcher
from ...wire.convert_jobs import add_times, wait_reason_proto
from ..fleet.nodes import shown_node
from ..server_facts import ServerFacts
from ..sight import Sight
from .arrays import find_job, who_waits
from .reasons import WaitReasons
from .sent_reasons import SentReasons
from .shown import shown_job

KEEPALIVE_SECONDS = 10.0
SNAPSHOT_BATCH = 200
"""Jobs of the full picture between two looks at everything else."""

RESUME_TOKEN = re.compile(r"(?P<term>[0-9]{1,18})\.(?P<number>[0-9]{1,18})")
JOBS_WATCHED_MAX = 10_000

Response = scheduler_pb2.WatchResponse


class Watchable(Protocol):
    """What watching needs of the servicer."""

    engine: Engine
    changes: ChangeHub
    reasons: WaitReasons
    facts: ServerFacts


async def watch_changes(source: Watchable, request: scheduler_pb2.WatchRequest) -> AsyncIterator[Response]:
    """Everything that a watcher is told."""
    if len(request.job_ids) > JOBS_WATCHED_MAX:
        raise invalid("job_ids", f"holds {len(request.job_ids):,} ids; at most {JOBS_WATCHED_MAX:,}")
    hub = source.changes
    resumed = _resumed(hub, request.resume_token)
    told = SentReasons(source.engine, source.reasons, request)
    watcher = hub.join(map(JobId, request.job_ids))
    try:
        if resumed is None:
            if request.resume_token:
                yield Response(event=scheduler_pb2.WATCH_EVENT_RESYNC)
            async for response in _picture(source, request, watcher, told, with_snapshot=not request.skip_snapshot):
                yield response
        else:
            for number, value in resumed:
                for response in _told(source, request, told, number, value):
                    yield response
        async for response in _follow(source, request, watcher, told):
            yield response
    finally:
        hub.leave(watcher)


async def _follow(
    source: Watchable, request: scheduler_pb2.WatchRequest, watcher: Watcher, told: SentReasons
) -> AsyncIterator[Response]:
    loop = asyncio.get_running_loop()
    quiet_since = loop.time()
    while True:
        keepalive_in = quiet_since + KEEPALIVE_SECONDS - loop.time()
        if await is_set_within(watcher.wakeup, max(min(keepalive_in, told.seconds_to_look()), 0.0)):
            watcher.wakeup.clear()
            told.doubt()
            if watcher.must_resync:
                yield Response(event=scheduler_pb2.WATCH_EVENT_RESYNC)
                async for response in _picture(source, request, watcher, told, with_snapshot=True):
                    yield response
            while watcher.pending:
                _, (number, value) = watcher.pending.popitem(last=False)
                for response in _told(source, request, told, number, value):
                    yield response
                    quiet_since = loop.time()
        elif loop.time() >= quiet_since + KEEPALIVE_SECONDS:
            yield _at(source, Response(event=scheduler_pb2.WATCH_EVENT_KEEPALIVE), source.changes.number)
            quiet_since = loop.time()
        if told.seconds_to_look() <= 0:
            for job in told.changed():
                if watcher.wakeup.is_set():
                    told.doubt()  # what changed meanwhile comes first, and these are looked at again
                    break
                # Without a token: why a job waits has no place in the row of changes.
                yield Response(event=scheduler_pb2.WATCH_EVENT_CHANGED, job=_job(source, told, job))
                quiet_since = loop.time()


async def _picture(
    source: Watchable,
    request: scheduler_pb2.WatchRequest,
    watcher: Watcher,
    told: SentReasons,
    *,
    with_snapshot: bool,
) -> AsyncIterator[Response]:
    """The full picture and its end.

    Its token is that of its beginning: what changes while it is sent comes behind it, and again after a resume. What
    changed before it is in it, and is not told afterwards as if it were newer.
    """
    number = source.changes.number
    watcher.begin_anew()
    if with_snapshot:
        async for response in _snapshot(source, request, told):
            yield response
    else:
        told.take_as_told()
    yield _at(source, Response(event=scheduler_pb2.WATCH_EVENT_SYNCED), number)


async def _snapshot(
    source: Watchable, request: scheduler_pb2.WatchRequest, told: SentReasons
) -> AsyncIterator[Response]:
    live = source.engine.view.durable.jobs
    jobs = [live[JobId(job)] for job in request.job_ids if job in live] if request.job_ids else list(live.wholes())
    for number, job in enumerate(jobs):
        if _is_wanted(job, request):
            yield Response(event=scheduler_pb2.WATCH_EVENT_SNAPSHOT, job=_job(source, told, job))
        if number % SNAPSHOT_BATCH == 0:
            await asyncio.sleep(0)
    for named in dict.fromkeys(request.job_ids):
        ended = await _ended(source.engine, JobId(named))
        if ended is not None and _is_wanted(ended, request):
            array = None if ended.array is None else await find_job(source.engine, ended.array)
            yield Response(event=scheduler_pb2.WATCH_EVENT_SNAPSHOT, job=_job(source, told, ended, array))
    if request.include_nodes:
        for name in list(source.engine.view.durable.nodes):
            node = shown_node(source.engine, name)
            if node is not None:
                yield Response(event=scheduler_pb2.WATCH_EVENT_SNAPSHOT, node=node)


async def _ended(engine: Engine, job_id: JobId) -> Job | None:
    """The last state of a job that somebody names and that has ended; None for another."""
    durable = engine.view.durable
    if not 0 < job_id < durable.counters.next_job or job_id in durable.jobs:
        return None
    found = await find_job(engine, job_id)
    return found if found is not None and isinstance(found.state, Finished) else None


def _told(
    source: Watchable, request: scheduler_pb2.WatchRequest, told: SentReasons, number: int, change: Change
) -> Iterator[Response]:
    """A change as it is told; equal jobs one by one, and only with the last of them is all of it told."""
    if not isinstance(change, EqualJobs):
        response = _changed(source, request, told, change)
        if response is not None:
            yield _at(source, response, number)
        return
    wanted = (job for job in change.jobs() if _is_wanted(job, request))
    job = next(wanted, None)
    while job is not None:
        following = next(wanted, None)
        response = Response(event=scheduler_pb2.WATCH_EVENT_CHANGED, job=_job(source, told, job))
        yield _at(source, response, number if following is None else number - 1)
        job = following


def _changed(
    source: Watchable, request: scheduler_pb2.WatchRequest, told: SentReasons, value: Job | NodeName
) -> Response | None:
    if isinstance(value, Job):
        if not _is_wanted(value, request):
            return None
        return Response(event=scheduler_pb2.WATCH_EVENT_CHANGED, job=_job(source, told, value))
    if not request.include_nodes:
        return None
    node = shown_node(source.engine, value)
    if node is None:
        return Response(event=scheduler_pb2.WATCH_EVENT_REMOVED, node=node_pb2.Node(name=value))
    return Response(event=scheduler_pb2.WATCH_EVENT_CHANGED, node=node)


def _is_wanted(job: Job, request: scheduler_pb2.WatchRequest) -> bool:
    if (request.job_ids or job.array is not None) and job.id not in request.job_ids:
        return False
    return not request.user or job.user == request.user


def _job(source: Watchable, told: SentReasons, job: Job, array: Job | None = None) -> job_pb2.Job:
    """A job as it is told; `array` is that of an item, where it may have ended long ago."""
    engine = source.engine
    sight = Sight.of_caller(source.facts)
    message = shown_job(job, engine.view, source.facts.output_error(), sight, omit_env=True)
    if job.array is not None:
        array = array or engine.view.durable.jobs.get(job.array) or engine.recently_finished.get(job.array)
        message.array_index = 0 if array is None else index_of(array, job)
    if (now := told.tell(job)) is not None:
        message.wait_reason.CopyFrom(wait_reason_proto(who_waits(engine.view.durable, job), now.reason))
        add_times(message, now.estimate, now.bound)
        sight.hide_caps(engine.view.durable.groups, job.group, message.wait_reason, message)
    return message


def _at(source: Watchable, response: Response, number: int) -> Response:
    response.resume_token = f"{source.changes.term}.{number}"
    response.view_time.FromMicroseconds(source.engine.now())
    return response


def _resumed(hub: ChangeHub, token: str) -> list[tuple[int, Change]] | None:
    """What a watcher missed; None for one that begins, or that was away for too long."""
    if not token:
        return None
    named = RESUME_TOKEN.fullmatch(token)
    if named is None:
        raise invalid("resume_token", "is no token of this scheduler", reason=Reason.RESUME_TOKEN_EXPIRED)
    return hub.since(int(named["term"]), int(named["number"]))
