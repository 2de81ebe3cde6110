"""What nodes report of attempts, and how an attempt ends.

Finished means stored: an end is decided only when every byte of the output is synced. Until then the end is kept in
`live.exits`; the node keeps it too, until it is told to forget it.
"""

from dataclasses import replace

from ..state.commands import Command, ForgetAttempt, KillAttempt
from ..state.events import OutputSynced, RankExited, RankRefused, RankStarted, SpoolFilled
from ..state.ids import NodeName, RankKey
from ..state.jobs import (
    Attempt,
    EndedAttempt,
    ExitCode,
    ExitSignal,
    ExitStatus,
    Finished,
    Job,
    Outcome,
    RankExit,
    Starting,
    StopCause,
    Stopping,
    rank_keys,
)
from ..state.records import (
    AttemptEnded,
    AttemptStarted,
    AttemptVoided,
    JobFinished,
    RankEnded,
    Record,
    SpoolStateChanged,
)
from ..state.refusals import BLAMES_THE_JOB
from ..state.state import State
from ..state.units import Instant
from .decision import NOTHING, Decision

TAKEN_DOWN = "SHUTDOWN"
"""The end of an attempt whose node's programs were taken down with it: nothing of the job's own making."""


ENDS_OF_ITS_OWN = frozenset({"EXITED", "SIGNALLED"})
"""Ends that a command came to by itself; one that could not be run at all will not be found by a second attempt."""


def live_attempt(state: State, node: NodeName, key: RankKey) -> tuple[Job, Attempt] | None:
    """The job and attempt that a node's report is about, if that rank is live and is on that node."""
    job = state.durable.jobs.get(key.job)
    if job is None or job.attempt is None or job.attempt.number != key.attempt:
        return None
    attempt = job.attempt
    if key.rank >= len(attempt.ranks):
        return None
    rank = attempt.ranks[key.rank]
    return (job, attempt) if rank.placement.node == node and rank.exit is None else None


def on_rank_started(state: State, event: RankStarted) -> Decision:
    """The command of a rank runs. One that nobody waits for is ended: it was replaced, or given up, meanwhile."""
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return Decision(commands=(KillAttempt(node=event.node, key=event.key),))
    _, attempt = found
    if attempt.ranks[event.key.rank].started_at is not None:
        return NOTHING
    started_at = Instant(max(event.at - event.run_span, attempt.placed_at))
    return Decision(records=(AttemptStarted(at=event.at, key=event.key, started_at=started_at),))


def on_rank_exited(state: State, event: RankExited) -> Decision:
    """A rank has ended; it counts once its output is stored. What nobody waits for is forgotten."""
    if live_attempt(state, event.node, event.key) is None:
        return Decision(commands=(ForgetAttempt(node=event.node, key=event.key),))
    return end_if_stored(state, event.at, event.key)


def on_output_synced(state: State, event: OutputSynced) -> Decision:
    """More output is stored: an end that waited for it may count now."""
    return end_if_stored(state, event.at, event.key)


def end_if_stored(state: State, at: Instant, key: RankKey) -> Decision:
    """End a rank whose exit is known and whose output is stored."""
    exit_ = state.live.exits.get(key)
    job = state.durable.jobs.get(key.job)
    if exit_ is None or job is None or job.attempt is None or job.attempt.number != key.attempt:
        return NOTHING
    if not state.live.output_is_stored(key, exit_):
        return NOTHING
    return end_rank(state, at, job, job.attempt, key, exit_)


def end_rank(state: State, at: Instant, job: Job, attempt: Attempt, key: RankKey, exit_: RankExit) -> Decision:
    """Decide what the end of a rank means: the end of the job, another attempt, or waiting for the other ranks."""
    ranks = list(attempt.ranks)
    ranks[key.rank] = replace(ranks[key.rank], exit=exit_)
    node = ranks[key.rank].placement.node
    forget: tuple[Command, ...] = (ForgetAttempt(node=node, key=key),)
    if any(rank.exit is None for rank in ranks):
        return Decision(records=(RankEnded(at=at, key=key, exit=exit_),), commands=forget)
    deciding = _deciding_exit([rank.exit for rank in ranks if rank.exit is not None])
    ended = EndedAttempt(
        number=attempt.number,
        placed_at=attempt.placed_at,
        ended_at=at,
        ranks=tuple(ranks),
        reason=deciding.reason,
        message=deciding.message,
        output_is_complete=all(rank.exit.output_is_complete for rank in ranks if rank.exit is not None),
    )
    return Decision(records=(what_follows(state, at, job, ended, deciding),), commands=forget)


def _deciding_exit(exits: list[RankExit]) -> RankExit:
    """The exit that decides: the first failing rank's, else rank 0's."""
    return next((each for each in exits if each.exit != ExitCode(code=0)), exits[0])


def what_follows(state: State, at: Instant, job: Job, ended: EndedAttempt, exit_: RankExit) -> Record:
    """The record for the end of an attempt: the job has finished, or waits again."""
    cause = job.state.cause if isinstance(job.state, Stopping) else None
    if exit_.reason == "EXIT_UNKNOWN" or exit_.stop_cause is StopCause.FENCED:
        lost = ended if exit_.reason == "EXIT_UNKNOWN" else replace(ended, reason="NODE_LOST")
        return after_node_loss(state, at, job, lost)
    was_stopped = exit_.stop_cause is not None
    if was_stopped and cause in (StopCause.REQUEUED, StopCause.PREEMPTED):
        return AttemptEnded(at=at, job=job.id, ended=replace(ended, reason=cause.value))
    if was_stopped and cause is StopCause.CANCELLED:
        return _finished(at, job, ended, Outcome.CANCELLED, "CANCELLED", _cancel_message(job), None)
    if exit_.reason == TAKEN_DOWN and cause is not StopCause.CANCELLED and job.spec.is_requeueable:
        return AttemptEnded(at=at, job=job.id, ended=ended)
    if exit_.stop_cause is StopCause.TIME_LIMIT:
        return _finished(at, job, ended, Outcome.TIMED_OUT, "TIME_LIMIT", "its time limit was reached", exit_.exit)
    if cause is None and job.retries_used < job.spec.retries and _may_be_retried(exit_):
        return AttemptEnded(at=at, job=job.id, ended=ended, is_retry=True)
    match exit_.exit:
        case ExitCode(code=0):
            return _finished(at, job, ended, Outcome.SUCCEEDED, "EXITED", "exited with code 0", exit_.exit)
        case ExitCode(code=code):
            message = exit_.message or f"exited with code {code}"
            return _finished(at, job, ended, Outcome.FAILED, exit_.reason, message, exit_.exit)
        case ExitSignal(signal=number):
            message = exit_.message or f"ended by signal {number}"
            reason = exit_.reason if exit_.reason == TAKEN_DOWN else "SIGNALLED"
            return _finished(at, job, ended, Outcome.FAILED, reason, message, exit_.exit)
        case None:
            return _finished(at, job, ended, Outcome.FAILED, exit_.reason, exit_.message, None)


def _may_be_retried(exit_: RankExit) -> bool:
    """Whether a fresh attempt may end better: the command ran and ended by itself with a code or a signal."""
    failed = exit_.exit is not None and exit_.exit != ExitCode(code=0)
    return failed and exit_.stop_cause is None and exit_.reason in ENDS_OF_ITS_OWN


def _cancel_message(job: Job) -> str:
    reason = job.state.reason if isinstance(job.state, Stopping) else ""
    return f"cancelled: {reason}" if reason else "cancelled"


def _finished(
    at: Instant,
    job: Job,
    ended: EndedAttempt,
    outcome: Outcome,
    reason: str,
    message: str,
    exit_: ExitStatus | None,
) -> JobFinished:
    finished = Finished(outcome=outcome, at=at, reason=reason, message=message, exit=exit_)
    return JobFinished(at=at, job=job.id, finished=finished, ended=replace(ended, reason=reason))


def after_node_loss(state: State, at: Instant, job: Job, ended: EndedAttempt) -> Record:
    """An attempt ended because of its node: queue the job again, unless it must not be or has cost too many nodes."""
    if isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED:
        message = f"{_cancel_message(job)}; its node was lost"
        return _finished(at, job, ended, Outcome.CANCELLED, "CANCELLED", message, None)
    losses = job.node_loss_count + 1
    if not job.spec.is_requeueable:
        return _finished(at, job, ended, Outcome.FAILED, ended.reason, ended.message or "its node was lost", None)
    if losses >= (job.spec.blame_limit or state.limits.node_losses):
        message = f"it ended with its node {losses} times and is not tried again"
        return _finished(at, job, ended, Outcome.FAILED, ended.reason, message, None)
    return AttemptEnded(at=at, job=job.id, ended=ended)


def without_its_node(
    state: State, at: Instant, job: Job, attempt: Attempt, message: str, *, nothing_lives: bool = False
) -> Decision:
    """End an attempt of which its node will say no more. `nothing_lives`: its processes are known to be gone.

    One whose end was reported has ended so: only its last output never came, and it is not run twice for that.
    """
    for key in rank_keys(job, attempt):
        exit_ = state.live.exits.get(key)
        if exit_ is not None and exit_.exit is not None:
            return end_rank(state, at, job, attempt, key, replace(exit_, output_is_complete=False))
    if nothing_lives:
        gone = RankExit(exit=None, reason="NODE_LOST", message=message, output_is_complete=False)
        attempt = replace(attempt, ranks=tuple(replace(rank, exit=rank.exit or gone) for rank in attempt.ranks))
    ended = ended_attempt(attempt, at, reason="NODE_LOST", message=message, output_is_complete=False)
    return Decision(records=(after_node_loss(state, at, job, ended),))


def ended_attempt(
    attempt: Attempt, at: Instant, *, reason: str, message: str = "", output_is_complete: bool
) -> EndedAttempt:
    """An attempt that is over although not every rank's end is known."""
    return EndedAttempt(
        number=attempt.number,
        placed_at=attempt.placed_at,
        ended_at=at,
        ranks=attempt.ranks,
        reason=reason,
        message=message,
        output_is_complete=output_is_complete,
    )


def on_rank_refused(state: State, event: RankRefused) -> Decision:
    """A node did not start a rank: place the job again, or end it when the request itself is at fault."""
    forget = ForgetAttempt(node=event.node, key=event.key)
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return Decision(commands=(forget,))
    job, attempt = found
    return Decision(records=(after_refusal(state, event, job, attempt),), commands=(forget,))


def after_refusal(state: State, event: RankRefused, job: Job, attempt: Attempt) -> Record:
    """The record for a refused rank. Nothing ran, so that the attempt's number is void and its output empty."""
    refused_rank = replace(
        attempt.ranks[event.key.rank], exit=RankExit(exit=None, reason=event.reason, message=event.message)
    )
    ranks = (*attempt.ranks[: event.key.rank], refused_rank, *attempt.ranks[event.key.rank + 1 :])
    ended = ended_attempt(
        replace(attempt, ranks=ranks),
        event.at,
        reason=event.reason,
        message=event.message,
        output_is_complete=True,
    )
    if attempt.ranks[event.key.rank].started_at is not None:
        # It ran once and its node denies it: the node has lost its memory of it.
        message = f"its node no longer knows of it ({event.reason})"
        lost = replace(ended, reason="NODE_LOST", message=message, output_is_complete=False)
        return after_node_loss(state, event.at, job, lost)
    match job.state:
        case Stopping(cause=StopCause.CANCELLED):
            return _finished(event.at, job, ended, Outcome.CANCELLED, "CANCELLED", _cancel_message(job), None)
        case Starting() if event.reason in BLAMES_THE_JOB:
            return _finished(event.at, job, ended, Outcome.FAILED, event.reason, event.message, None)
        case _:
            return AttemptVoided(
                at=event.at,
                job=job.id,
                number=attempt.number,
                node=event.node,
                reason=event.reason,
                message=event.message,
            )


def on_spool_filled(state: State, event: SpoolFilled) -> Decision:
    """Note for the story that a job waits for room for its output, or goes on."""
    if live_attempt(state, event.node, event.key) is None:
        return NOTHING
    return Decision(
        records=(SpoolStateChanged(at=event.at, key=event.key, is_full=event.is_full, message=event.message),)
    )
