"""Counts of requests to programs: batches of gateways, checked, and rows for people."""

import re

from gpufleet.v1 import sessions_pb2

from gpufleet.errors import invalid

from ..series.requests import Batch, RequestSums
from ..state.ids import UserName
from ..state.units import DAY
from .convert import duration
from .validate import span_of
from .validate_models import model_name

ROWS_MAX = 1_000
USER_CHARS_MAX = 128
COUNT_MAX = 10**12
"""Of requests or tokens in one row of a batch."""
DURATION_MAX = 366 * DAY * 1_000
SEQUENCE_MAX = 2**62
GATEWAY_START = re.compile(r"[A-Za-z0-9_-]{8,64}")
COUNTS = ("request_count", "failed_count", "prompt_tokens", "completion_tokens", "unknown_count", "fallback_count")


def batch_of(request: sessions_pb2.CountRequestsRequest) -> Batch:
    """What a gateway tells. Errors: INVALID_ARGUMENT."""
    if not GATEWAY_START.fullmatch(request.gateway_start):
        raise invalid("gateway_start", "must be 8 to 64 letters, digits, '-' or '_'")
    if not 1 <= request.sequence <= SEQUENCE_MAX:
        raise invalid("sequence", f"is {request.sequence:,}; batches are numbered from 1")
    if not 1 <= len(request.rows) <= ROWS_MAX:
        raise invalid("rows", f"holds {len(request.rows):,}; it must hold 1 to {ROWS_MAX:,}")
    rows = tuple(_sums_of(row, f"rows[{number}]") for number, row in enumerate(request.rows))
    return Batch(gateway_start=request.gateway_start, sequence=request.sequence, rows=rows)


def _sums_of(row: sessions_pb2.CountedRequests, path: str) -> RequestSums:
    if len(row.user) > USER_CHARS_MAX or not row.user.isprintable():
        raise invalid(f"{path}.user", f"must be {USER_CHARS_MAX} characters at most, which can be printed")
    for field in COUNTS:
        if not 0 <= getattr(row, field) <= COUNT_MAX:
            raise invalid(f"{path}.{field}", f"is {getattr(row, field):,}; it must be 0 to {COUNT_MAX:,}")
    if row.failed_count + row.unknown_count > row.request_count:
        raise invalid(f"{path}.request_count", "is less than failed_count and unknown_count together")
    lasted = span_of(row.duration)
    if not 0 <= lasted <= DURATION_MAX:
        raise invalid(f"{path}.duration", "must not be negative, nor longer than 1,000 years")
    return RequestSums(
        model=model_name(row.model, f"{path}.model"),
        user=UserName(row.user),
        requests=row.request_count,
        failed=row.failed_count,
        prompt_tokens=row.prompt_tokens,
        completion_tokens=row.completion_tokens,
        unknown=row.unknown_count,
        duration=lasted,
        fallbacks=row.fallback_count,
    )


def counted_proto(sums: RequestSums) -> sessions_pb2.CountedRequests:
    """What requests came to, for people."""
    return sessions_pb2.CountedRequests(
        model=sums.model,
        user=sums.user,
        request_count=sums.requests,
        failed_count=sums.failed,
        prompt_tokens=sums.prompt_tokens,
        completion_tokens=sums.completion_tokens,
        unknown_count=sums.unknown,
        duration=duration(sums.duration),
        fallback_count=sums.fallbacks,
    )
