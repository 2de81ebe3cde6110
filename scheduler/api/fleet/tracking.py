"""The Scheduler service, the part about capacity and use: devices by their scores, what a model needs, whether a
request would start now, and what a job used."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractContextManager
from typing import NoReturn

from gpufleet.v1 import capacity_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, invalid

from ...engine import Engine
from ...links import Links
from ...policy.capacity import Capacity, capacity
from ...policy.estimate import Misfit, estimate
from ...policy.fit import FreeDevice, NodeView, default_min_memory_bytes, node_views
from ...series.attempts import AttemptSeries
from ...series.history_file import CourseFacts, CourseKey
from ...series.queries import HistoryQueries
from ...state.attempts import Attempt, EndedAttempt, Rank
from ...state.events import JobsSubmitted, WantedJob
from ...state.ids import DeviceUuid, NodeName, RankKey
from ...state.indexes.indexes import NodeHold
from ...state.jobs import Job
from ...state.replies import Submitted
from ...state.units import DAY, SECOND, Span
from ...state.used import RankUse
from ...watching import ChangeHub
from ...wire.convert import timestamp
from ...wire.convert_nodes import device_now, is_free
from ...wire.usages import add_courses, add_courses_of_histories, stats_proto
from ...wire.validate import check_nodes, span_of, wanted_jobs
from ..answers import Calls, reply_of
from ..paging import PageTokens, page_size
from ..roles import caller
from ..server_facts import ServerFacts
from ..sight import Sight
from .freshness import Freshness

WAIT_SPAN_MAX = DAY
LOOK_SECONDS_MIN = 0.1
REST_FACTOR = 20
"""Between two looks, however much changes; of many nodes, so many times as long as a look takes."""
LOOK_SECONDS_MAX = 2.0
"""What time alone changes (a device that was left out for a moment) is seen within this."""
CONFIG_BYTES_MAX = 1_000_000
EXAMPLE = '{"model": {"id_or_path": "llama-3-70b"}, "parameters": {"tp-size": 4}}'


class TrackingCalls(Calls):
    """What people ask of capacity. Each method is one RPC."""

    engine: Engine
    pages: PageTokens
    freshness: Freshness
    changes: ChangeHub
    links: Links
    one_stream: Callable[[], AbstractContextManager[None]]
    find: Callable[[int], Awaitable[Job]]
    facts: ServerFacts
    series: AttemptSeries
    histories: HistoryQueries

    async def GetJobStats(self, request: capacity_pb2.GetJobStatsRequest) -> capacity_pb2.GetJobStatsResponse:
        """What an attempt of a job used, or uses so far."""
        job = await self.find(request.job_id)
        Sight.of_caller(self.facts).check_reads(job.id, job.user)
        known: dict[int, Attempt | EndedAttempt] = {each.number: each for each in job.past}
        if job.attempt is not None:
            known[job.attempt.number] = job.attempt
        if request.attempt and request.attempt not in known:
            there_are = ", ".join(map(str, sorted(known))) or "none"
            raise invalid(
                "attempt",
                f"job {job.id} has no attempt {request.attempt}; those known of it: {there_are}",
                next_step="Leave it out for the newest.",
            )
        attempt = known.get(request.attempt or max(known, default=0))
        if attempt is None:
            return capacity_pb2.GetJobStatsResponse()
        keyed = zip(attempt.keys(job.id), attempt.ranks, strict=True)
        parts = [(rank.placement, self._use(key, rank)) for key, rank in keyed]
        told = stats_proto(attempt, parts, self.engine.now())
        if isinstance(attempt, EndedAttempt):
            add_courses(told, (await self.series.of(attempt.keys(job.id)[0])).values())
            # Of a rank whose end nobody told no course came with it. A step that lasts longer may be of who came next.
            if told.is_incomplete and (left := [each for each in told.devices if not each.series.offset_ms]):
                courses = await self.histories.since(_facts(left), attempt.placed_at, attempt.ended_at)
                add_courses_of_histories(left, courses, attempt.placed_at, attempt.ended_at)
        else:
            courses = await self.histories.since(_facts(told.devices), attempt.placed_at)
            add_courses_of_histories(told.devices, courses, attempt.placed_at)
        return told

    def _use(self, key: RankKey, rank: Rank) -> RankUse | None:
        """What a rank used: what is stored with its end, or what its node told last."""
        live = self.engine.view.live
        ended = rank.exit or live.exits.get(key)
        if ended is not None:
            return ended.use
        node = live.nodes.get(rank.placement.node)
        told = None if node is None else dict(node.usages).get(key)
        return None if told is None else told.use

    async def CheckCapacity(
        self, request: capacity_pb2.CheckCapacityRequest
    ) -> AsyncIterator[capacity_pb2.CheckCapacityResponse]:
        """Whether a request would start now, and for who waits, each answer that differs."""
        wait = span_of(request.wait) if request.HasField("wait") else Span(0)
        if not 0 <= wait <= WAIT_SPAN_MAX:
            raise invalid("wait", "must be 0 or more, and at most a day")
        job = await self._job_to_check(request.spec)
        with self.one_stream():
            async for found in until_available(self.engine, self.changes, self.links, job, wait / SECOND):
                yield capacity_pb2.CheckCapacityResponse(
                    is_available=found.is_available,
                    message=found.message,
                    reason=found.reason,
                    latest_start_time=timestamp(found.latest_start),
                )

    async def _job_to_check(self, spec: job_pb2.JobSpec) -> Job:
        """The job that would come of it, by a dry run. Errors: those of Submit, with the path in the spec."""
        if not spec.argv:
            spec.argv.append("true")
        if not spec.cwd:
            spec.cwd = "/"
        if spec.is_held:
            raise invalid("spec.is_held", "is set, and what is held does not start")
        (wanted,) = wanted_jobs(scheduler_pb2.SubmitRequest(specs=[spec]))
        event = JobsSubmitted(
            at=self.engine.now(),
            user=caller().user,
            jobs=(WantedJob(spec=wanted.spec, band=wanted.band),),
            is_dry_run=True,
            items=wanted.items,
        )
        reply = await reply_of(self.engine.request(event))
        assert isinstance(reply, Submitted) and reply.job is not None
        return reply.job

    async def ListDevices(self, request: scheduler_pb2.ListDevicesRequest) -> scheduler_pb2.ListDevicesResponse:
        """A page of the devices of all nodes, the highest score first."""
        if request.min_memory_bytes < 0:
            raise invalid("min_memory_bytes", f"is {request.min_memory_bytes:,}; it must be 0 or more")
        has_limit = request.HasField("max_utilization_percent")
        if has_limit and not 0 <= request.max_utilization_percent <= 100:
            raise invalid("max_utilization_percent", f"is {request.max_utilization_percent}; it must be 0 to 100")
        size = page_size(request.page_size)
        limit = request.max_utilization_percent if has_limit else None
        query = f"devices {request.only_free} {request.min_memory_bytes} {limit} {sorted(request.nodes)}"
        cursor = self.pages.read(query, request.page_token)
        known = self.engine.view.durable.nodes
        check_nodes(request.nodes, known, "nodes")
        names = {NodeName(name) for name in request.nodes} or set(known)
        if request.fresh and cursor is None:
            await self.freshness.of(names)
        now = self.engine.now()
        min_memory_bytes = request.min_memory_bytes or default_min_memory_bytes(self.engine.view)
        found = [
            (_place_in_list(view, free), view, free)
            for view in node_views(self.engine.view, now).values()
            if view.node.name in names
            for hold in (self.engine.view.durable.hold(view.node.name),)
            for free in view.devices
            if _is_wanted(request, view, free, hold, min_memory_bytes)
        ]
        found = sorted((each for each in found if cursor is None or list(each[0]) > cursor), key=lambda each: each[0])
        more = self.pages.sign(query, list(found[size - 1][0])) if len(found) > size else ""
        shown = [device_now(free, view, self.engine.view, now) for _, view, free in found[:size]]
        return scheduler_pb2.ListDevicesResponse(devices=shown, next_page_token=more)

    async def Estimate(self, request: capacity_pb2.EstimateRequest) -> capacity_pb2.EstimateResponse:
        """What a model's configuration needs."""
        try:
            found = estimate(_from_json(request.config_json))
        except Misfit as problem:
            raise invalid(f"config_json: {problem.path}", problem.why, next_step=problem.next_step) from None
        return capacity_pb2.EstimateResponse(
            device_count=found.devices,
            min_memory_bytes=found.memory_bytes,
            sentence=found.sentence,
            unused_parameters=found.unused,
        )


def _place_in_list(view: NodeView, free: FreeDevice) -> tuple[float, str, int]:
    """Sorts the highest score first, and those without one last."""
    return (1.0 if free.score is None else -free.score, view.node.name, free.device.index)


def _is_wanted(
    request: scheduler_pb2.ListDevicesRequest, view: NodeView, free: FreeDevice, hold: NodeHold, min_memory_bytes: int
) -> bool:
    """`min_memory_bytes`: what a free device must have free, as asked for or as a job finds by default."""
    if request.only_free and not is_free(free, hold, view, min_memory_bytes):
        return False
    load = None if free.sample is None else free.sample.utilization_percent
    if request.HasField("max_utilization_percent") and (load or 0) > request.max_utilization_percent:
        return False
    return free.free_memory_bytes >= request.min_memory_bytes


def _from_json(text: str) -> object:
    """The configuration; a name that comes twice, and a number that JSON does not know, are refused."""
    if len(text.encode()) > CONFIG_BYTES_MAX:
        raise invalid("config_json", f"is longer than {CONFIG_BYTES_MAX:,} bytes")
    try:
        return json.loads(text, object_pairs_hook=_each_once, parse_constant=_no_number)
    except GpufleetError:
        raise
    except RecursionError:
        raise invalid("config_json", "is nested too deeply to be read") from None
    except ValueError as problem:
        raise invalid("config_json", f"is no JSON: {problem}", next_step=f"Write: {EXAMPLE}") from None


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise invalid("config_json", f'names "{name[:100]}" twice', next_step="Keep one of the two.")
        found[name] = value
    return found


def _no_number(word: str) -> NoReturn:
    raise invalid("config_json", f"holds {word}, which is no number of JSON")


def _facts(devices: Iterable[capacity_pb2.DeviceStats]) -> list[CourseFacts]:
    """Whose courses are asked of the histories."""
    return [
        CourseFacts(
            key=CourseKey(node=NodeName(each.node), uuid=DeviceUuid(each.uuid)),
            index=each.index,
            name=each.name,
            memory_bytes=0,
        )
        for each in devices
    ]


async def until_available(
    engine: Engine, changes: ChangeHub, links: Links, job: Job, wait_seconds: float
) -> AsyncIterator[Capacity]:
    """Whether a job would start now; then each answer that differs, until it would, or the wait is over.

    The last answer after a wait in vain comes in any case.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    has_beaten = asyncio.Event()

    def beaten(name: NodeName) -> None:
        has_beaten.set()

    told = capacity(engine.view, job, engine.now())
    yield told
    if told.is_available or wait_seconds <= 0:
        return
    watcher = changes.join()
    links.beat_listeners.add(beaten)
    try:
        rest_seconds = LOOK_SECONDS_MIN
        while loop.time() < deadline:
            await asyncio.sleep(min(rest_seconds, deadline - loop.time()))
            until = max(0.0, min(LOOK_SECONDS_MAX, deadline - loop.time()))
            await _first_of(watcher.wakeup, has_beaten, until)
            watcher.begin_anew()
            watcher.must_resync = False
            watcher.wakeup.clear()
            has_beaten.clear()
            began = time.perf_counter()
            found = capacity(engine.view, job, engine.now())
            rest_seconds = max(LOOK_SECONDS_MIN, REST_FACTOR * (time.perf_counter() - began))
            if found != told or loop.time() >= deadline:
                told = found
                yield told
            if told.is_available:
                return
    finally:
        changes.leave(watcher)
        links.beat_listeners.discard(beaten)


async def _first_of(one: asyncio.Event, other: asyncio.Event, timeout_seconds: float) -> None:
    """Wait until one of two is set, or the time is over."""
    waits = [asyncio.ensure_future(event.wait()) for event in (one, other)]
    try:
        await asyncio.wait(waits, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
