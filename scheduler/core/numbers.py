"""Numbers of jobs after a gap: the store lacks jobs that there were, and none of their numbers is given again."""

from ..state.ids import JobId
from ..state.records import NumbersRaised
from ..state.state import State
from ..state.units import Instant
from .decision import NOTHING, Decision


def numbers_above(state: State, at: Instant, known: JobId, reason: str) -> Decision:
    """Give only numbers above one that is known to have been given, and say why; nothing where that is so already."""
    if known < state.durable.counters.next_job:
        return NOTHING
    return Decision(records=(NumbersRaised(at=at, next_job=JobId(known + 1), reason=reason),))
