"""The Scheduler service, the part about what was: devices and the queue over time, and who used how much."""

from collections.abc import Callable
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import capacity_pb2, job_pb2

from gpufleet.errors import invalid

from ...engine import Engine
from ...series.accounts import BUCKET_SPAN, AccountedHold, Totals, UsageSpan, bucket_of, holds_of
from ...series.held import UsageTotals
from ...series.points import BAND, DEVICE, NOT_READ
from ...series.queries import History, HistoryQueries
from ...series.reading import POINTS_DEFAULT, POINTS_MAX, Readings
from ...state.groups.group import GroupId, UserGroups
from ...state.ids import NodeName
from ...state.shares import WHOLE_MILLI
from ...state.specs import Band
from ...state.units import DAY, HOUR, SECOND, Instant, Span, after
from ...state.used import RankUse
from ...wire.convert import duration, timestamp
from ...wire.usages import MJ_PER_WH
from ...wire.validate import instant_of, no_such_node
from ..answers import Calls
from ..server_facts import ServerFacts
from ..sight import Sight

SPAN_DEFAULT, USAGE_SPAN_DEFAULT = HOUR, Span(7 * DAY)
SPAN_MAX = Span(10 * 366 * DAY)
"""Nobody asks for more, and nothing is kept for longer."""
ROWS_MAX = 1_000
OTHER_GROUPS = "(other groups)"
"""The row of groups that the caller sees nothing else of."""
GROUPS = {
    capacity_pb2.USAGE_GROUP_UNSPECIFIED: "user",
    capacity_pb2.USAGE_GROUP_USER: "user",
    capacity_pb2.USAGE_GROUP_NODE: "node",
    capacity_pb2.USAGE_GROUP_MODEL: "model",
    capacity_pb2.USAGE_GROUP_BAND: "band",
    capacity_pb2.USAGE_GROUP_GROUP: "group",
}


class HistoryCalls(Calls):
    """What people ask of the past. Each method is one RPC."""

    engine: Engine
    histories: HistoryQueries
    facts: ServerFacts

    async def GetNodeHistory(self, request: capacity_pb2.GetNodeHistoryRequest) -> capacity_pb2.GetNodeHistoryResponse:
        """What devices did."""
        begin, end = self._span_of(request, SPAN_DEFAULT)
        points = _points_of(request.points_max)
        index = request.index if request.HasField("index") else None
        if index is not None and request.by_node:
            raise invalid("by_node", "takes all devices of a node together; leave out index")
        if index is not None and index < 0:
            raise invalid("index", f"is {index}; devices are counted from 0")
        node = NodeName(request.node)
        found = await self.histories.devices(node, index, begin, end, points, by_node=request.by_node)
        if node and not found.told and node not in self.engine.view.durable.nodes:
            raise no_such_node("node", node)
        return await self.histories.on_thread(lambda: _node_history(found, by_node=request.by_node))

    async def GetQueueHistory(
        self, request: capacity_pb2.GetQueueHistoryRequest
    ) -> capacity_pb2.GetQueueHistoryResponse:
        """How long the queue was, and how long jobs had waited."""
        begin, end = self._span_of(request, SPAN_DEFAULT)
        found = await self.histories.bands(begin, end, _points_of(request.points_max))
        answer = capacity_pb2.GetQueueHistoryResponse(
            start_time=timestamp(found.begin),
            step=duration(found.step),
        )
        for facts, readings in found.told:
            band = answer.bands.add(band=job_pb2.Band.ValueType(Band[facts.key.uuid]))
            for at, counter in enumerate(BAND.counters):
                _fill(getattr(band, counter.name), readings, at)
        return answer

    async def ListUsage(self, request: capacity_pb2.ListUsageRequest) -> capacity_pb2.ListUsageResponse:
        """Who used how much, or what was used of nodes and models, in bands and by groups."""
        if request.group not in GROUPS:
            raise invalid("group", f"is {request.group}; it must be user, node, model, band or group")
        if not 0 <= request.steps_max <= POINTS_MAX:
            raise invalid("steps_max", f"is {request.steps_max:,}; it must be 0 to {POINTS_MAX:,}")
        begin, end = self._span_of(request, USAGE_SPAN_DEFAULT)
        group = GROUPS[request.group]
        span = usage_span(begin, end, request.steps_max)
        found, known_since = await self.histories.usage(self._open_holds, span, group, request.user)
        if group == "group":
            found = _of_named(found, self.engine.view.durable.groups, Sight.of_caller(self.facts))
        return await self.histories.on_thread(lambda: _usage(found, span, known_since))

    def _open_holds(self) -> Callable[[], list[AccountedHold]]:
        """What attempts hold at this moment; what they used is read when the answer is called, on another thread."""
        durable, now = self.engine.view.durable, self.engine.now()
        jobs = [durable.jobs[job_id] for job_id in durable.active]
        usages = [usage for node in self.engine.view.live.nodes.values() for usage in node.usages]

        def holds() -> list[AccountedHold]:
            uses: dict[tuple[int, int], dict[int, RankUse]] = {}
            for key, told in usages:
                use = told.use
                if use is not None:
                    uses.setdefault((key.job, key.attempt), {})[key.rank] = use
            found: list[AccountedHold] = []
            for job in jobs:
                if job.attempt is not None:
                    known = {
                        number: rank.exit.use
                        for number, rank in enumerate(job.attempt.ranks)
                        if rank.exit is not None and rank.exit.use is not None
                    }
                    known |= uses.get((job.id, job.attempt.number), {})
                    found += holds_of(job, job.attempt, known, until=now)
            return found

        return holds

    def _span_of(self, request: Any, default: Span) -> tuple[Instant, Instant]:
        return span_of_request(request, default, self.engine.now())


def span_of_request(request: Any, default: Span, now: Instant) -> tuple[Instant, Instant]:
    """What a request asks for by start_time and end_time; `default` is how long that is. Errors: INVALID_ARGUMENT."""
    end = _instant_of(request.end_time, "end_time") if request.HasField("end_time") else now
    begin = (
        _instant_of(request.start_time, "start_time")
        if request.HasField("start_time")
        else Instant(max(0, end - default))
    )
    if begin >= end:
        raise invalid(
            "start_time", "is not before the end", next_step="give a start_time before end_time, and before now"
        )
    if end - begin > SPAN_MAX:
        raise invalid("start_time", "is more than ten years before the end")
    return begin, min(end, max(now, after(begin, SECOND)))


def _node_history(found: History, *, by_node: bool) -> capacity_pb2.GetNodeHistoryResponse:
    answer = capacity_pb2.GetNodeHistoryResponse(start_time=timestamp(found.begin), step=duration(found.step))
    for facts, readings in found.told:
        device = answer.devices.add(
            node=facts.key.node, uuid=facts.key.uuid, name=facts.name, memory_bytes=facts.memory_bytes
        )
        if not by_node:
            device.index = facts.index
        for at, counter in enumerate(DEVICE.counters):
            _fill(getattr(device, counter.name), readings, at)
    return answer


def _usage(found: dict[str, UsageTotals], span: UsageSpan, known_since: Instant) -> capacity_pb2.ListUsageResponse:
    answer = capacity_pb2.ListUsageResponse(
        start_time=timestamp(span.begin),
        step=duration(span.step) if span.steps else None,
        known_since_time=timestamp(known_since),
    )
    everything = UsageTotals(course=[0] * span.steps)
    for each in found.values():
        everything.totals.add_all(each.totals)
        everything.course = [sum(pair) for pair in zip(everything.course, each.course, strict=True)]
    largest = sorted(found.items(), key=lambda each: (-each[1].totals.milli_us, -each[1].totals.jobs, each[0]))
    answer.rows.extend(_row(name, each) for name, each in largest[:ROWS_MAX])
    answer.total.CopyFrom(_row("", everything))
    return answer


def usage_span(begin: Instant, end: Instant, steps: int) -> UsageSpan:
    """The span in whole buckets, and in as many equal steps as may be."""
    first = bucket_of(begin)
    length = -(-(end - first) // BUCKET_SPAN) * BUCKET_SPAN
    if not steps:
        return UsageSpan(first, after(first, length), Span(length))
    step = -(-length // steps // BUCKET_SPAN) * BUCKET_SPAN
    while -(-length // step) > steps:
        step += BUCKET_SPAN
    return UsageSpan(first, after(first, length), Span(step), -(-length // step))


def _instant_of(time: Timestamp, field: str) -> Instant:
    if (instant := instant_of(time, 0)) is None:
        raise invalid(field, "is no time from 1970 to 9999")
    return instant


def _points_of(points: int) -> int:
    if not 0 <= points <= POINTS_MAX:
        raise invalid("points_max", f"is {points:,}; it must be 1 to {POINTS_MAX:,}, or 0 for {POINTS_DEFAULT}")
    return points or POINTS_DEFAULT


def _fill(course: capacity_pb2.Course, readings: Readings, counter: int) -> None:
    told = [NOT_READ if each is None else each[counter] for each in readings]
    course.min.extend(low for low, _, _ in told)
    course.max.extend(high for _, high, _ in told)
    course.mean.extend(mean for _, _, mean in told)


def _of_named(found: dict[str, UsageTotals], groups: UserGroups, sight: Sight) -> dict[str, UsageTotals]:
    """What groups used, by their names of now in place of their ids: those that were removed say so.

    Those that are none of the caller's are told together.
    """
    named: dict[str, UsageTotals] = {}
    for told, used in found.items():
        group = groups.by_id.get(GroupId(int(told)))
        name = "" if group is None else f"{group.name} (removed)" if group.is_removed else str(group.name)
        if group is not None and not sight.sees_group(groups, group.id):
            name = OTHER_GROUPS
        if name in named:
            named[name].add_all(used)
        else:
            named[name] = used
    return named


def _row(name: str, group: UsageTotals) -> capacity_pb2.UsageRow:
    totals = group.totals
    row = capacity_pb2.UsageRow(
        name=name,
        gpu_seconds=_device_seconds(totals.milli_us),
        job_count=totals.jobs,
        failed_job_count=totals.failed,
        start_count=totals.starts,
        wait_seconds=_waits(totals),
        gpu_seconds_course=[_device_seconds(each) for each in group.course],
    )
    if totals.load_milli_us:
        row.utilization_percent = totals.load / totals.load_milli_us
    if totals.energy_mj is not None:
        row.energy_wh = totals.energy_mj / MJ_PER_WH
    return row


def _device_seconds(milli_us: int) -> float:
    return milli_us / WHOLE_MILLI / SECOND


def _waits(totals: Totals) -> capacity_pb2.Statistic | None:
    if not totals.starts:
        return None
    return capacity_pb2.Statistic(
        min=totals.wait_us_min / SECOND,
        max=totals.wait_us_max / SECOND,
        mean=totals.wait_us / totals.starts / SECOND,
        count=totals.starts,
    )
