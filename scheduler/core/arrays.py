"""Arrays: when the end of an item means the end of those that wait, and how an array ended."""

from ..state.attempts import ExitCode
from ..state.jobs import Finished, Job, Tally
from ..state.specs import Outcome
from ..state.units import Instant


def too_many_failures(array: Job, tally: Tally, at: Instant) -> Finished | None:
    """The end of what waits of an array whose items failed too often; None for one that goes on."""
    assert array.items is not None
    most = array.items.failures_max
    if not most or tally.failures < most:
        return None
    failed = "1 item of its array" if tally.failures == 1 else f"{tally.failures:,} items of its array"
    message = f"{failed} failed, and at most {most:,} may (--max-fails)"
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="MAX_FAILS", message=message)


def end_of_array(array: Job, tally: Tally, at: Instant) -> Finished | None:
    """How an array ended; None as long as not all of its items have."""
    assert array.items is not None
    count = array.items.indices.count
    if tally.ended < count:
        return None
    if tally.succeeded == count:
        message = f"all {count:,} items succeeded" if count > 1 else "its item succeeded"
        return Finished(outcome=Outcome.SUCCEEDED, at=at, reason="ITEMS_ENDED", message=message, exit=ExitCode(code=0))
    for ended in tally.together:
        if sum(end - begin for begin, end in ended.spans) == count:
            return ended.finished
    if tally.cancelled == count:
        message = f"all {count:,} items were cancelled"
        return Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=message)
    told = [(tally.failures, "failed"), (tally.cancelled, "cancelled"), (tally.succeeded, "succeeded")]
    message = f"of {count:,} {'item' if count == 1 else 'items'} " + ", ".join(
        f"{number:,} {how}" for number, how in told if number
    )
    if tally.failures:
        code = ExitCode(code=tally.highest_exit)
        return Finished(outcome=Outcome.FAILED, at=at, reason="ITEMS_ENDED", message=message, exit=code)
    return Finished(outcome=Outcome.CANCELLED, at=at, reason="CANCELLED", message=message)
