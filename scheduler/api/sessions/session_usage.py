"""The Scheduler service, the part about who came to the models: people, turns, waits and ends over days."""

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import invalid

from ...engine import Engine
from ...series.visit_log import VisitLog
from ...series.visits import Found, Visitors
from ...state.ids import ModelName
from ...state.units import DAY, HOUR, Instant, Span, after
from ...wire.convert import duration, timestamp
from ...wire.validate import span_of
from ...wire.validate_models import model_name
from ..answers import Calls
from ..fleet.history import USAGE_SPAN_DEFAULT, span_of_request

STEPS_MAX = 1_000
STEP_MAX = 366 * DAY
P50, P95 = 0.5, 0.95


class SessionUsageCalls(Calls):
    """What people ask of visits. Each method is one RPC."""

    engine: Engine
    visits: VisitLog

    async def ListSessionUsage(
        self, request: sessions_pb2.ListSessionUsageRequest
    ) -> sessions_pb2.ListSessionUsageResponse:
        """How many people came to each model, how long they waited, and how their sessions ended."""
        model = model_name(request.model, "model") if request.model else ""
        begin, end = span_of_request(request, USAGE_SPAN_DEFAULT, self.engine.now())
        step = span_of(request.step) if request.HasField("step") else DAY
        if not HOUR <= step <= STEP_MAX:
            raise invalid("step", "must be an hour to 366 days", next_step="leave it out for a day")
        if (end - begin) > STEPS_MAX * step:
            raise invalid("step", f"cuts the span into more than {STEPS_MAX:,} steps", next_step="ask for longer steps")
        found, known_since = await self.visits.read(begin, end, Span(step), model)
        return _answer(found, begin, Span(step), known_since)


def _answer(found: Found, begin: Instant, step: Span, known_since: Instant) -> sessions_pb2.ListSessionUsageResponse:
    models = sorted(found.items())
    return sessions_pb2.ListSessionUsageResponse(
        rows=[_row(name, begin, whole) for name, (whole, _) in models],
        steps=[
            _row(name, after(begin, number * step), visitors)
            for name, (_, steps) in models
            for number, visitors in sorted(steps.items())
        ],
        start_time=timestamp(begin),
        step=duration(step),
        known_since_time=timestamp(known_since),
    )


def _row(model: ModelName, begin: Instant, visitors: Visitors) -> sessions_pb2.SessionUsage:
    half, most = visitors.wait(P50), visitors.wait(P95)
    ends = sorted(visitors.ends.items(), key=lambda each: (-each[1], each[0]))
    return sessions_pb2.SessionUsage(
        model=model,
        start_time=timestamp(begin),
        people=len(visitors.people),
        visits=visitors.visits,
        turns=visitors.turns,
        give_ups=visitors.give_ups,
        wait_p50=None if half is None else duration(half),
        wait_p95=None if most is None else duration(most),
        turn_time=duration(Span(visitors.turn_span)),
        ends=[sessions_pb2.SessionEnds(reason=reason, count=count) for reason, count in ends],
    )
