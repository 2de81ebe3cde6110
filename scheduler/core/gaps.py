"""History that was cut off: numbers go on above all that were given, and jobs wait for what nodes may still run.

A database that was put back lacks what happened since it was copied, and somebody said to go on with it
(scheduler/known_store.py). What is waited for is policy/gap.py's; here is what becomes durable of it.
"""

from ..policy.gap import gap_hold, is_over
from ..state.events import (
    Event,
    GapReleaseRequested,
    InventoryReported,
    NumbersReported,
    RankExited,
    RankRefused,
    SchedulerStarted,
)
from ..state.gap import HistoryGap
from ..state.ids import JobId
from ..state.records import (
    AttemptFound,
    GapAccepted,
    GapClosed,
    GapNodeReported,
    GapReleasedWhole,
    NumbersRaised,
    Record,
)
from ..state.state import State
from ..state.units import Instant
from .decision import NOTHING, Decision


def on_scheduler_started(state: State, event: SchedulerStarted) -> Decision:
    """With a gap: give only numbers above those that are known to have been given, and wait for what nodes tell."""
    if not event.gap:
        return NOTHING
    counters, records = state.durable.counters, _raised(state, event, event.gap)
    awaited = tuple(sorted(state.durable.nodes))
    jobs_from = JobId(max(event.jobs_above + 1, counters.next_job))
    below, before = JobId(counters.next_job), state.durable.gap
    gap = HistoryGap(
        at=event.at,
        reason=event.gap,
        jobs_below=below,
        jobs_from=jobs_from,
        awaited=awaited,
        term=event.term,
        earlier=() if before is None else before.lacked,
        found=() if before is None else before.found,
    )
    return Decision(records=(*records, GapAccepted(at=event.at, gap=gap)))


def on_numbers_reported(state: State, event: NumbersReported) -> Decision:
    """History that was given up went further than was known then."""
    return Decision(records=tuple(_raised(state, event, "a node knows higher numbers of history that was given up")))


def on_gap_release_requested(state: State, event: GapReleaseRequested) -> Decision:
    """Let all jobs start that wait since history was cut off, though nodes may run some of them."""
    gap = gap_hold(state, event.at)
    if gap is None or gap.gap.is_released:
        return NOTHING
    return Decision(records=(GapReleasedWhole(at=event.at, by=event.by),))


def _raised(state: State, seen: SchedulerStarted | NumbersReported, reason: str) -> list[Record]:
    """That numbers go on above those that were seen, where they are not yet."""
    counters = state.durable.counters
    if seen.jobs_above < counters.next_job and seen.sessions_above < counters.next_session:
        return []
    next_job = JobId(max(seen.jobs_above + 1, counters.next_job))
    next_session = seen.sessions_above + 1 if seen.sessions_above >= counters.next_session else 0
    return [NumbersRaised(at=seen.at, next_job=next_job, next_session=next_session, reason=reason)]


def reported_by(state: State, event: Event, decision: Decision) -> Decision:
    """That a node has told what it runs, and runs nothing that the store lacks: by its inventory, or an end of that."""
    gap = state.durable.gap
    if gap is None or gap.is_closed or not isinstance(event, InventoryReported | RankExited | RankRefused):
        return NOTHING
    live = state.live.nodes.get(event.node)
    if event.node not in gap.awaited or live is None or not live.has_inventory:
        return NOTHING
    found = {key for each in decision.records if isinstance(each, AttemptFound) for key in each.attempt.keys(each.job)}
    if live.lingering - found:
        return NOTHING
    return Decision(records=(GapNodeReported(at=event.at, node=event.node),))


def closed_if_over(state: State, at: Instant) -> Decision:
    """The end of a gap for which nothing waits any more."""
    return Decision(records=(GapClosed(at=at),)) if is_over(state, at) else NOTHING
