"""No field of what people ask of the past, and of what it answers, is dropped in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from google.protobuf.message import Message
from gpufleet.v1 import capacity_pb2, history_pb2, job_pb2, sessions_pb2

from gpufleet.errors import GpufleetError
from scheduler.api.fleet.history import HistoryCalls, _node_history, _usage
from scheduler.api.jobs.ended_jobs import EndedJobCalls, ended_job
from scheduler.api.roles import Caller, _caller
from scheduler.api.sessions.request_usage import RequestUsageCalls, _total
from scheduler.api.sessions.session_usage import SessionUsageCalls, _answer
from scheduler.ports import EndedQuery
from scheduler.series.accounts import Totals, UsageSpan
from scheduler.series.held import UsageTotals
from scheduler.series.history_file import CourseFacts, CourseKey
from scheduler.series.points import BAND, DEVICE
from scheduler.series.queries import History
from scheduler.series.requests import RequestSums
from scheduler.series.visits import Visitors
from scheduler.state.access import Role
from scheduler.state.attempts import EndedAttempt
from scheduler.state.groups.group import UserGroups
from scheduler.state.ids import DeviceUuid, ModelName, NodeName, TokenId, UserName
from scheduler.state.jobs import Finished, Job
from scheduler.state.units import MB, SECOND, Instant, Span
from scheduler.state.used import RankUse, Statistic
from scheduler.wire.request_counts import batch_of, counted_proto
from scheduler.wire.usages import stats_proto
from tests.fields.filled import BEGIN_SECONDS, get, paths, unheard, unsaid_of
from tests.store.stored_format import example

NOW = Instant((BEGIN_SECONDS + 1_000_000) * SECOND)
HISTORY = History(Instant(SECOND), Span(2 * SECOND), ())


def unset(message: type[Message], shown: list[Any]) -> set[str]:
    """The fields of a message that nothing of what is shown sets."""
    return {path for path in paths(message.DESCRIPTOR) if not any(get(each, path) for each in shown)}


# --- what is asked for


class Asked:
    """What is behind the servicers: it keeps what it is asked for."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.store = self
        self.now = lambda: NOW
        self.view = SimpleNamespace(durable=SimpleNamespace(nodes={"node"}, groups=UserGroups()))

    async def meeting_damage(self, read: Awaitable[object]) -> object:
        return await read

    async def devices(self, *asked: object, **by_name: object) -> History:
        self.calls.append((asked, by_name))
        return HISTORY

    async def bands(self, *asked: object) -> History:
        self.calls.append(asked)
        return HISTORY

    async def usage(self, _: object, *asked: object) -> object:
        self.calls.append(asked)
        return {}, NOW

    async def read(self, *asked: object) -> object:
        self.calls.append(asked)
        return {}, NOW

    async def requested(self, *asked: object) -> object:
        self.calls.append(asked)
        return [], NOW

    async def on_thread(self, call: Callable[[], object]) -> object:
        return call()

    def ended_jobs(self, query: EndedQuery) -> list[Job]:
        self.calls.append(query)
        return []


class Pages:
    """Page tokens that are numbers."""

    def read(self, query: str, token: str) -> list[int]:
        return [len(token), 1] if token else []


def asked(method: Any, request: Message) -> object:
    """What a servicer asks those behind it for, or how it refuses."""
    behind = Asked()
    requests = SimpleNamespace(read=behind.requested)
    calls = SimpleNamespace(engine=behind, histories=behind, visits=behind, requests=requests, pages=Pages())
    calls._span_of = lambda request, default: HistoryCalls._span_of(calls, request, default)  # type: ignore[arg-type]
    calls._open_holds = None
    calls.facts = SimpleNamespace(output_is_shared=lambda: True)
    _caller.set(Caller(UserName("ana"), Role.ADMIN, TokenId("admin")))
    try:
        asyncio.run(method.__wrapped__(calls, request))
    except GpufleetError as refused:
        return str(refused)
    return behind.calls


def test_every_field_of_what_is_asked_of_devices_is_heard() -> None:
    base = capacity_pb2.GetNodeHistoryRequest()
    assert not unheard(lambda request: asked(HistoryCalls.GetNodeHistory, request), base)


def test_every_field_of_what_is_asked_of_the_queue_is_heard() -> None:
    base = capacity_pb2.GetQueueHistoryRequest()
    assert not unheard(lambda request: asked(HistoryCalls.GetQueueHistory, request), base)


def test_every_field_of_what_is_asked_of_usage_is_heard() -> None:
    base = capacity_pb2.ListUsageRequest()
    assert not unheard(lambda request: asked(HistoryCalls.ListUsage, request), base)


def test_every_field_of_what_is_asked_of_visits_is_heard() -> None:
    base = sessions_pb2.ListSessionUsageRequest()
    values = {"step": timedelta(hours=2), "model": "canvas"}
    assert not unheard(lambda request: asked(SessionUsageCalls.ListSessionUsage, request), base, values=values)


def test_every_field_of_what_is_asked_of_requests_is_heard() -> None:
    base = sessions_pb2.ListRequestUsageRequest()
    values = {"model": "chat"}
    assert not unheard(lambda request: asked(RequestUsageCalls.ListRequestUsage, request), base, values=values)


def test_every_field_of_what_a_gateway_counts_is_heard() -> None:
    row = sessions_pb2.CountedRequests(model="chat", request_count=10)
    base = sessions_pb2.CountRequestsRequest(gateway_start="gateway-1", sequence=1, rows=[row])
    values = {"gateway_start": "gateway-2", "sequence": 2, "rows.model": "other", "rows.request_count": 11}
    assert not unheard(batch_of, base, values=values)


def test_every_field_of_what_is_asked_of_ended_jobs_is_heard() -> None:
    base = history_pb2.ListEndedJobsRequest()
    values = {"states": [job_pb2.JOB_STATE_FAILED], "node": "n1"}
    assert not unheard(lambda request: asked(EndedJobCalls.ListEndedJobs, request), base, values=values)


# --- what is answered


COURSE = [((1, 3, 2), (4, 6, 5), (7, 9, 8), (10, 12, 11)), None]


def device(**other: Any) -> History:
    """The history of one device."""
    key = CourseKey(node=NodeName("n1"), uuid=DeviceUuid("u"))
    facts = CourseFacts(key=key, index=1, name="GPU", memory_bytes=5)
    return History(Instant(SECOND), Span(SECOND), [(replace(facts, **other), COURSE)])  # type: ignore[list-item]


def test_every_field_of_a_history_of_devices_is_set() -> None:
    answer = _node_history(device(), by_node=False)
    assert not unset(capacity_pb2.GetNodeHistoryResponse, [answer])
    told = [getattr(answer.devices[0], counter.name) for counter in DEVICE.counters]
    read = COURSE[0]
    assert read is not None
    assert [tuple(list(course) for course in (each.min, each.max, each.mean)) for each in told] == [
        tuple([value, -1.0] for value in reading) for reading in read
    ]


def test_every_field_of_a_history_of_the_queue_is_set() -> None:
    class Band(Asked):
        async def bands(self, *asked: object) -> History:
            return device(key=CourseKey(node=NodeName(""), uuid=DeviceUuid("HIGH")))

    calls: Any = SimpleNamespace(engine=Asked(), histories=Band())
    calls._span_of = lambda request, default: HistoryCalls._span_of(calls, request, default)
    method: Any = HistoryCalls.GetQueueHistory
    answer = asyncio.run(method.__wrapped__(calls, capacity_pb2.GetQueueHistoryRequest()))
    assert not unset(capacity_pb2.GetQueueHistoryResponse, [answer])
    told = [getattr(answer.bands[0], counter.name).mean[0] for counter in BAND.counters]
    assert told == [2, 5, 8]


def test_everything_that_is_counted_of_usage_is_shown() -> None:
    span = UsageSpan(Instant(SECOND), Instant(9 * SECOND), Span(4 * SECOND), 2)

    def shown(totals: Totals) -> capacity_pb2.ListUsageResponse:
        return _usage({"ada": UsageTotals(totals, [3, 4])}, span, Instant(SECOND))

    names = [field.name for field in fields(Totals)]
    one = Totals(**{name: number for number, name in enumerate(names, start=10)})
    other = Totals(**{name: number for number, name in enumerate(names, start=100)})
    assert not unsaid_of(shown, one, other)
    assert unset(capacity_pb2.ListUsageResponse, [shown(one)]) == {"total.name"}


def test_everything_that_is_counted_of_visits_is_shown() -> None:
    def shown(whole: Visitors) -> sessions_pb2.ListSessionUsageResponse:
        found = {ModelName("canvas"): (whole, {1: whole})}
        return _answer(found, Instant(SECOND), Span(SECOND), Instant(SECOND))

    one = Visitors({b"a"}, 1, 2, 3, 4 * SECOND, [5 * SECOND], {"LEFT": 6})
    other = Visitors({b"a", b"b"}, 7, 8, 9, 10 * SECOND, [11 * SECOND], {"IDLE": 12})
    assert not unsaid_of(shown, one, other)
    assert not unset(sessions_pb2.ListSessionUsageResponse, [shown(one)])


def test_everything_that_is_counted_of_requests_is_shown() -> None:
    def shown(row: RequestSums) -> sessions_pb2.CountedRequests:
        return counted_proto(row)

    names = [field.name for field in fields(RequestSums)][2:]
    numbers: list[dict[str, Any]] = [{each: at for at, each in enumerate(names, start)} for start in (10, 100)]
    one = RequestSums(model=ModelName("a"), user=UserName("a"), **numbers[0])
    other = RequestSums(model=ModelName("b"), user=UserName("b"), **numbers[1])
    assert not unsaid_of(shown, one, other)
    assert not unset(sessions_pb2.CountedRequests, [shown(one)])
    total = _total([one, other])
    assert [getattr(total, each) for each in names] == [getattr(one, each) + getattr(other, each) for each in names]


def test_every_field_of_a_job_that_has_ended_is_set() -> None:
    ended = [replace(example(Job, each), state=example(Finished, each), items=None) for each in range(10)]
    never = unset(history_pb2.EndedJob, [ended_job(each) for each in ended])
    of_arrays = {path for path in paths(history_pb2.EndedJob.DESCRIPTOR) if path.startswith("array")}
    assert never == of_arrays  # added by _ended, which looks at the array


def test_every_field_of_what_a_job_used_is_set() -> None:
    attempt, use = example(EndedAttempt, 0), example(RankUse, 0)
    placement, plenty = attempt.ranks[0].placement, Statistic(low=MB, high=3.0 * MB, mean=2.0 * MB, count=4)
    assert use.processes is not None
    of_device = replace(use.devices[0], uuid=placement.devices[0].uuid, memory_used_bytes=plenty)
    of_processes = replace(use.processes, memory_bytes=plenty)
    use = replace(use, is_last_told=True, devices=(of_device,), processes=of_processes)
    shown = stats_proto(attempt, [(placement, None), (placement, use)], NOW)
    series = {path for path in paths(capacity_pb2.GetJobStatsResponse.DESCRIPTOR) if path.startswith("devices.series.")}
    assert unset(capacity_pb2.GetJobStatsResponse, [shown]) == series  # added by add_courses
