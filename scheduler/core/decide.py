"""The way in: one event, one decision.

`step` is what the engine and the simulator run: take note of the event, decide, make the records true. Commands leave
only after the records are stored; that is the engine's part.
"""

from typing import assert_never

from ..state import live, turns
from ..state.apply import apply
from ..state.events import (
    BandRequested,
    CancelRequested,
    ClockAdvanced,
    DrainRequested,
    Event,
    ForgetRequested,
    HoldRequested,
    InventoryReported,
    JobsSubmitted,
    NodeAnnounced,
    NodeBeat,
    NodeDisconnected,
    OutputSynced,
    RankExited,
    RankReady,
    RankRefused,
    RankStarted,
    ReadingResumed,
    RequeueRequested,
    RevokeRequested,
    SchedulerStarted,
    SignalRequested,
    SpoolFilled,
    TokenRequested,
)
from ..state.session_events import SessionEvent
from ..state.state import State
from . import access, attempts, deadlines, gangs, jobs, nodes, sessions
from .decision import NOTHING, Decision
from .dependencies import with_consequences
from .serving import renumbered
from .worker_ends import with_worker_ends


def step(state: State, event: Event) -> Decision:
    """Take note of an event, decide what follows, and make it true in memory."""
    live.observe(state.live, state.durable, state.limits, event)
    decision = with_consequences(state, with_worker_ends(state, decide(state, event)))
    make_true(state, decision)
    return decision


def make_true(state: State, decision: Decision) -> None:
    """Apply the records of a decision, in order."""
    for record in decision.records:
        live.foresee(state.live, state.durable, record)
        apply(state.durable, record)
        live.follow(state.live, state.durable, state.limits, record)
    for note in decision.notes:
        turns.take(state.live.turns, state.durable.sessions, note)


def decide(state: State, event: Event) -> Decision:
    """What follows from an event. Changes nothing."""
    if isinstance(event, SessionEvent):
        return sessions.decide_session(state, event)
    match event:
        case JobsSubmitted():
            return jobs.on_jobs_submitted(state, event)
        case CancelRequested():
            return jobs.on_cancel_requested(state, event)
        case HoldRequested():
            return jobs.on_hold_requested(state, event)
        case BandRequested():
            return jobs.on_band_requested(state, event)
        case SignalRequested():
            return jobs.on_signal_requested(state, event)
        case RequeueRequested():
            return jobs.on_requeue_requested(state, event)
        case NodeAnnounced():
            return nodes.on_node_announced(state, event)
        case InventoryReported():
            return nodes.on_inventory_reported(state, event)
        case NodeBeat():
            return nodes.on_node_beat(state, event)
        case SchedulerStarted():
            return renumbered(state, event.at)
        case NodeDisconnected() | ReadingResumed():
            return NOTHING
        case RankReady():
            return gangs.on_rank_ready(state, event)
        case RankStarted():
            return attempts.on_rank_started(state, event)
        case RankExited():
            return attempts.on_rank_exited(state, event)
        case RankRefused():
            return attempts.on_rank_refused(state, event)
        case OutputSynced():
            return attempts.on_output_synced(state, event)
        case SpoolFilled():
            return attempts.on_spool_filled(state, event)
        case DrainRequested():
            return nodes.on_drain_requested(state, event)
        case ForgetRequested():
            return nodes.on_forget_requested(state, event)
        case TokenRequested():
            return access.on_token_requested(state, event)
        case RevokeRequested():
            return access.on_revoke_requested(state, event)
        case ClockAdvanced():
            return deadlines.on_clock_advanced(state, event)
        case _:
            assert_never(event)
