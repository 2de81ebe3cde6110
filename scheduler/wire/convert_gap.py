"""Values become protos: what jobs wait for since history was cut off."""

from gpufleet.v1 import scheduler_pb2

from ..policy.gap import GapHold, longest
from ..state.units import NEVER, Instant
from .convert import timestamp


def store_gap(hold: GapHold | None) -> scheduler_pb2.StoreGap | None:
    """What is said of a gap while jobs wait since it; None for none."""
    if hold is None:
        return None
    limits = hold.limits
    return scheduler_pb2.StoreGap(
        accept_time=timestamp(hold.gap.at),
        reason=hold.gap.reason,
        jobs_below=hold.gap.jobs_below,
        awaited_nodes=hold.gap.awaited,
        wait_until=timestamp(_known(hold.until(limits.requeue_fence))),
        no_requeue_until=timestamp(_known(hold.until(longest(limits)))),
    )


def _known(until: Instant) -> Instant | None:
    return None if until == NEVER else until
