"""The Scheduler service, the part about requests to programs: what gateways count, and what people see of it."""

from collections.abc import Sequence

from gpufleet.v1 import sessions_pb2

from ...engine import Engine
from ...series.accounts import bucket_of
from ...series.requests import RequestLog, RequestSums
from ...state.ids import ModelName, UserName
from ...state.units import Span
from ...wire.convert import timestamp
from ...wire.request_counts import ROWS_MAX, batch_of, counted_proto
from ...wire.validate_models import model_name
from ..answers import Calls
from ..fleet.history import USAGE_SPAN_DEFAULT, span_of_request


class RequestUsageCalls(Calls):
    """What gateways tell and people ask of requests. Each method is one RPC."""

    engine: Engine
    requests: RequestLog

    async def CountRequests(self, request: sessions_pb2.CountRequestsRequest) -> sessions_pb2.CountRequestsResponse:
        """Store what requests came to; a batch that comes again is not counted again."""
        await self.requests.count(batch_of(request))
        return sessions_pb2.CountRequestsResponse()

    async def ListRequestUsage(
        self, request: sessions_pb2.ListRequestUsageRequest
    ) -> sessions_pb2.ListRequestUsageResponse:
        """How many requests each user made to each program, and how many tokens those took."""
        model = model_name(request.model, "model") if request.model else ""
        begin, end = span_of_request(request, USAGE_SPAN_DEFAULT, self.engine.now())
        found, known_since = await self.requests.read(begin, end, request.user, model)
        return sessions_pb2.ListRequestUsageResponse(
            rows=[counted_proto(each) for each in found[:ROWS_MAX]],
            total=counted_proto(_total(found)),
            start_time=timestamp(bucket_of(begin)),
            known_since_time=timestamp(known_since),
        )


def _total(rows: Sequence[RequestSums]) -> RequestSums:
    return RequestSums(
        model=ModelName(""),
        user=UserName(""),
        requests=sum(each.requests for each in rows),
        failed=sum(each.failed for each in rows),
        prompt_tokens=sum(each.prompt_tokens for each in rows),
        completion_tokens=sum(each.completion_tokens for each in rows),
        unknown=sum(each.unknown for each in rows),
        duration=Span(sum(each.duration for each in rows)),
        fallbacks=sum(each.fallbacks for each in rows),
    )
