"""The way in: one event, one decision.

`step` is what the engine and the simulator run: take note of the event, decide, make the records true. Commands leave
only after the records are stored; that is the engine's part.
"""

from typing import assert_never

from ..state import events, live
from ..state.apply import apply
from ..state.events import Event
from ..state.groups.changes import GroupEvent
from ..state.sessions import turns
from ..state.sessions.events import SessionEvent
from ..state.state import State
from . import (
    access,
    attempts,
    deadlines,
    entries,
    gangs,
    gaps,
    groups,
    jobs,
    kept,
    membership,
    nodes,
    notices,
    programs,
    results,
    secrets,
    updating,
)
from .decision import NOTHING, Decision, together
from .dependencies import with_consequences
from .kept import with_kept_waits
from .sessions.decide import decide_session
from .sessions.serving import renumbered
from .sessions.worker_ends import with_worker_ends


def step(state: State, event: Event) -> Decision:
    """Take note of an event, decide what follows, and make it true in memory."""
    live.apply_event(state.live, state.durable, state.limits, event)
    decision = with_consequences(state, with_kept_waits(state, with_worker_ends(state, decide(state, event))))
    decision = together(gaps.reported_by(state, event, decision), decision)
    make_true(state, decision)
    return decision


def make_true(state: State, decision: Decision) -> None:
    """Apply the records of a decision, in order."""
    for record in decision.records:
        live.before_record(state.live, state.durable, record)
        apply(state.durable, record)
        live.after_record(state.live, state.durable, state.limits, record)
    for note in decision.notes:
        turns.apply_note(state.live.turns, state.durable.sessions, note)


def decide(state: State, event: Event) -> Decision:
    """What follows from an event. Changes nothing."""
    if isinstance(event, SessionEvent):
        return decide_session(state, event)
    if isinstance(event, GroupEvent):
        return groups.decide_group(state, event)
    match event:
        case events.JobsSubmitted():
            return jobs.on_jobs_submitted(state, event)
        case events.CancelRequested():
            return jobs.on_cancel_requested(state, event)
        case events.HoldRequested():
            return jobs.on_hold_requested(state, event)
        case events.BandRequested():
            return jobs.on_band_requested(state, event)
        case events.UpdateRequested():
            return updating.on_update_requested(state, event)
        case events.SignalRequested():
            return jobs.on_signal_requested(state, event)
        case events.EntryRequested():
            return entries.on_entry_requested(state, event)
        case events.ResultsReported():
            return results.on_results_reported(state, event)
        case events.CheckpointStored():
            return kept.on_checkpoint_stored(state, event)
        case events.RequeueRequested():
            return jobs.on_requeue_requested(state, event)
        case events.NodeAnnounced():
            return nodes.on_node_announced(state, event)
        case events.InventoryReported():
            return nodes.on_inventory_reported(state, event)
        case events.NodeBeat():
            return nodes.on_node_beat(state, event)
        case events.SchedulerStarted():
            return together(gaps.on_scheduler_started(state, event), renumbered(state, event.at))
        case events.GapReleaseRequested():
            return gaps.on_gap_release_requested(state, event)
        case events.NumbersReported():
            return gaps.on_numbers_reported(state, event)
        case events.NodeRefused() | events.NodeDisconnected() | events.ReadingResumed():
            return NOTHING
        case events.RankReady():
            return gangs.on_rank_ready(state, event)
        case events.RankStarted():
            return attempts.on_rank_started(state, event)
        case events.RankExited():
            return attempts.on_rank_exited(state, event)
        case events.RankRefused():
            return attempts.on_rank_refused(state, event)
        case events.OutputSynced():
            return attempts.on_output_synced(state, event)
        case events.NoticeFailed():
            return notices.on_notice_failed(event)
        case events.SetupReported():
            return attempts.on_setup_reported(state, event)
        case events.SpoolFilled():
            return attempts.on_spool_filled(state, event)
        case events.OutputDamaged():
            return attempts.on_output_damaged(state, event)
        case events.DrainRequested():
            return nodes.on_drain_requested(state, event)
        case events.SharedRootChecked():
            return nodes.on_shared_root_checked(state, event)
        case events.ForgetRequested():
            return nodes.on_forget_requested(state, event)
        case events.NodeApprovalRequested():
            return membership.on_node_approval_requested(state, event)
        case events.NodeRevokeRequested():
            return membership.on_node_revoke_requested(state, event)
        case events.TokenRequested():
            return access.on_token_requested(state, event)
        case events.RevokeRequested():
            return access.on_revoke_requested(state, event)
        case events.LoginProven():
            return access.on_login_proven(state, event)
        case events.LogoutRequested():
            return access.on_logout_requested(state, event)
        case events.ProgramAnnounced():
            return programs.on_program_announced(state, event)
        case events.SecretSubmitted():
            return secrets.on_secret_submitted(state, event)
        case events.SecretRemovalRequested():
            return secrets.on_secret_removal_requested(state, event)
        case events.ClockAdvanced():
            return deadlines.on_clock_advanced(state, event)
        case _:
            assert_never(event)
