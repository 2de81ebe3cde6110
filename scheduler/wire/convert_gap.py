"""Values become protos: what jobs wait for since history was cut off."""

from gpufleet.v1 import scheduler_pb2

from ..policy.gap import GapHold, longest
from ..state.gap import HistoryGap
from ..state.units import HOUR, NEVER, Instant, Span, after
from .convert import timestamp

JOBS_TOLD_MAX = 100
"""Jobs that are named; of more the number is told."""

TOLD_SPAN = Span(7 * 24 * HOUR)
"""How long is said what nodes told of, once no job waits any more."""


def store_gap(gap: HistoryGap | None, hold: GapHold | None, at: Instant) -> scheduler_pb2.StoreGap | None:
    """What is said of a gap while jobs wait since it, and of what nodes told of for a while; None for nothing.

    `hold` is None where no job waits for it.
    """
    if gap is None:
        return None
    given_up = sorted({job for job, _ in gap.given_up})
    if hold is None and (at > after(gap.at, TOLD_SPAN) or not (gap.found or given_up)):
        return None
    fence, most = (
        (None, None) if hold is None else (hold.until(hold.limits.requeue_fence), hold.until(longest(hold.limits)))
    )
    return scheduler_pb2.StoreGap(
        accept_time=timestamp(gap.at),
        reason=gap.reason,
        jobs_below=gap.jobs_below,
        awaited_nodes=gap.awaited,
        wait_until=timestamp(_known(fence)),
        no_requeue_until=timestamp(_known(most)),
        found_job_ids=gap.found[:JOBS_TOLD_MAX],
        found_job_count=len(gap.found),
        given_up_job_ids=given_up[:JOBS_TOLD_MAX],
        given_up_job_count=len(given_up),
        is_released=gap.is_released,
        is_over=hold is None,
    )


def _known(until: Instant | None) -> Instant | None:
    return None if until == NEVER else until
