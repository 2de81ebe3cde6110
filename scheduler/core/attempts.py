"""What nodes report of attempts, and how an attempt ends.

Finished means stored: an end is decided only when every byte of the output is synced. Until then the end is kept in
`live.exits`; the node keeps it too, until it is told to forget it.
"""

from collections.abc import Mapping
from dataclasses import replace

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus, FileRun, NodeCause, StopCause

from ..policy.admission import never_fits
from ..policy.owners import as_its_users
from ..state.attempts import (
    NODE_LOSS_REASONS,
    OF_THE_JOB,
    Attempt,
    EndedAttempt,
    Rank,
    RankExit,
    RefusalKind,
)
from ..state.commands import Command, ForgetAttempt, KillAttempt
from ..state.events import (
    OutputDamaged,
    OutputSynced,
    RankExited,
    RankRefused,
    RankStarted,
    SetupReported,
    SpoolFilled,
)
from ..state.gpu_choice import NEEDS_GPU_EXIT_CODE
from ..state.ids import NodeName, RankKey
from ..state.jobs import (
    Finished,
    Job,
    Starting,
    Stopping,
    is_being_prepared,
    live_ranks,
    rank_keys,
    state_with_start,
)
from ..state.records import (
    AttemptEnded,
    AttemptStarted,
    AttemptVoided,
    JobFinished,
    JobWarned,
    RankEnded,
    Record,
    SetupStateChanged,
    SpoolStateChanged,
)
from ..state.specs import KeptAway, Outcome
from ..state.state import State
from ..state.units import Instant, Span
from ..state.warnings import has_damaged_output
from . import gangs
from .decision import NOTHING, Decision, together
from .live_ranks import live_attempt
from .warnings import bounded, of_damage, of_end, tell_commands

TAKEN_DOWN = NodeCause.SHUTDOWN.value
"""The end of an attempt whose node's programs were taken down with it: nothing of the job's own making."""


EXCLUDED_MAX = 10
"""A job that is kept from so many nodes, as it asked or for want of what it needs there, ends at the next such node."""

TRIES_ON_NODE_MAX = 5
"""A node that could not meet a job's own needs so often is not tried again for it: about 8 minutes after the first."""

OUT_OF_MEMORY = "OUT_OF_MEMORY"
"""The end of an attempt of which its node's kernel ended processes at its limit of memory: of the job's own making."""

ENDS_OF_ITS_OWN = frozenset({"EXITED", "SIGNALLED", OUT_OF_MEMORY})
"""Ends that a command came to by itself; one that could not be run at all will not be found by a second attempt."""

NAMED_ENDS = frozenset({TAKEN_DOWN, OUT_OF_MEMORY})
"""Ends by a signal of which its node says more."""


def on_rank_started(state: State, event: RankStarted) -> Decision:
    """The command of a rank runs. One that nobody waits for is ended: it was replaced, or given up, meanwhile."""
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return Decision(commands=(KillAttempt(node=event.node, key=event.key),))
    job, attempt = found
    if is_being_prepared(job):
        return ran_unasked(event.at, job, attempt, event.node, KillAttempt(node=event.node, key=event.key))
    if attempt.ranks[event.key.rank].started_at is not None:
        return NOTHING
    return Decision(records=(_start(event.at, attempt, event.key, event.run_span, event.file_runs),))


def _start(
    at: Instant, attempt: Attempt, key: RankKey, started_ago: Span, runs: tuple[FileRun, ...] = ()
) -> AttemptStarted:
    started_at = Instant(max(at - started_ago, attempt.placed_at))
    return AttemptStarted(at=at, key=key, started_at=started_at, file_runs=runs)


def start_by_end(
    at: Instant, job: Job, key: RankKey, started_ago: Span | None
) -> tuple[Job, tuple[AttemptStarted, ...]]:
    """The job with the start of a rank that an end carries, and its record; as it is where that start is known.

    The report of a start may be lost with its agent. Rule: docs/rules/jobs.md 4.76.
    """
    attempt = job.attempt
    if attempt is None or started_ago is None or attempt.ranks[key.rank].started_at is not None:
        return job, ()
    started = _start(at, attempt, key, started_ago)
    return replace(job, state=state_with_start(job, key.rank, started.started_at)), (started,)


def on_rank_exited(state: State, event: RankExited) -> Decision:
    """A rank has ended; it counts once its output is stored. What nobody waits for is forgotten."""
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return Decision(commands=(ForgetAttempt(node=event.node, key=event.key),))
    job, attempt = found
    if is_being_prepared(job):
        return ran_unasked(event.at, job, attempt, event.node, ForgetAttempt(node=event.node, key=event.key))
    return end_of_rank(state, event.at, job, event.key, event.exit, event.started_ago)


def ran_unasked(at: Instant, job: Job, attempt: Attempt, node: NodeName, settle: Command) -> Decision:
    """A rank of a gang runs, or ran, that was never told to start here: a store from before is in use."""
    why = "it ran without having been started"
    void = gangs.handed_back(at, job, attempt, node, "CONFLICT", why, (node,))
    return together(void, Decision(commands=(settle,)))


def end_of_rank(
    state: State, at: Instant, job: Job, key: RankKey, exit_: RankExit, started_ago: Span | None = None
) -> Decision:
    """What follows at once from a rank's end: a gang is stopped when it failed; it counts once its output is stored."""
    job, starts = start_by_end(at, job, key, started_ago)
    assert job.attempt is not None
    stops = gang_stop(state, at, job, job.attempt, key.rank, exit_)
    return together(Decision(records=starts), stops, _end_if_stored(state, at, job, key))


def gang_stop(state: State, at: Instant, job: Job, attempt: Attempt, rank: int, exit_: RankExit) -> Decision:
    """Stop the other ranks of a gang of which one failed."""
    if not attempt.is_gang or not gangs.has_failed(exit_):
        return NOTHING
    why = f"{gangs.rank_words(attempt, rank)} {gangs.exit_words(exit_)}"
    return gangs.stop_others(state, at, job, attempt, rank, why)


def on_output_synced(state: State, event: OutputSynced) -> Decision:
    """More output is stored: an end that waited for it may count now."""
    return end_if_stored(state, event.at, event.key)


def end_if_stored(state: State, at: Instant, key: RankKey) -> Decision:
    """End a rank whose exit is known and whose output is stored."""
    job = state.durable.jobs.get(key.job)
    return NOTHING if job is None else _end_if_stored(state, at, job, key)


def _end_if_stored(state: State, at: Instant, job: Job, key: RankKey) -> Decision:
    exit_ = state.live.exits.get(key)
    if exit_ is None or job.attempt is None or not job.attempt.has(key):
        return NOTHING
    if not state.live.output_is_stored(key, exit_):
        return NOTHING
    if not state.live.output_is_its_own(key, exit_):
        exit_ = replace(exit_, output_is_complete=False)
    return end_rank(state, at, job, job.attempt, key, exit_)


def end_rank(state: State, at: Instant, job: Job, attempt: Attempt, key: RankKey, exit_: RankExit) -> Decision:
    """Decide what the end of a rank means, and let its node forget it."""
    node = attempt.ranks[key.rank].placement.node
    records = end_ranks(state, at, job, attempt, {key.rank: exit_})
    told = tell_commands(state, [record for record in records if isinstance(record, JobWarned)])
    # What it is warned of goes first: with the order to forget, its node tells of the end.
    return Decision(records=records, commands=(*told, ForgetAttempt(node=node, key=key)))


def end_ranks(
    state: State, at: Instant, job: Job, attempt: Attempt, exits: Mapping[int, RankExit]
) -> tuple[Record, ...]:
    """What ends of ranks mean: the end of the job, another attempt, or waiting for the other ranks."""
    ranks = tuple(replace(rank, exit=exits.get(number, rank.exit)) for number, rank in enumerate(attempt.ranks))
    known = [rank.exit for rank in ranks if rank.exit is not None]
    if len(known) < len(ranks):
        keys = rank_keys(job, attempt)
        return tuple(RankEnded(at=at, key=keys[rank], exit=exit_) for rank, exit_ in exits.items())
    deciding_rank = _deciding_rank(job, known)
    deciding = known[deciding_rank]
    is_complete = all(each.output_is_complete for each in known) and not has_damaged_output(job.warnings)
    over = ended_attempt(replace(attempt, ranks=ranks), at, deciding.reason, deciding.message, is_complete=is_complete)
    ended = replace(over, deciding_rank=deciding_rank)
    if attempt.is_gang and deciding.exit != ExitCode(code=0):
        words = f"{gangs.rank_words(attempt, deciding_rank)} {gangs.exit_words(deciding)}"
        deciding = replace(deciding, message=words)
    follows = what_follows(state, at, job, ended, deciding)
    match follows:
        case JobFinished(finished=Finished(outcome=Outcome.SUCCEEDED | Outcome.TIMED_OUT)):
            return (*bounded(state, of_end(state, at, job, ended)), follows)
        case _:
            return (follows,)


def _deciding_rank(job: Job, exits: list[RankExit]) -> int:
    """The rank whose end decides: the first that failed; where all are stopped, one that was; else rank 0."""
    if isinstance(job.state, Stopping):
        if job.state.failed_rank is not None:
            return job.state.failed_rank
        stopped = (number for number, each in enumerate(exits) if each.stop_cause is not None)
        return next(stopped, _first_failed(exits))
    return _first_failed(exits)


def _first_failed(exits: list[RankExit]) -> int:
    return next((number for number, each in enumerate(exits) if gangs.has_failed(each)), 0)


def what_follows(state: State, at: Instant, job: Job, ended: EndedAttempt, exit_: RankExit) -> Record:
    """The record for the end of an attempt: the job has finished, or waits again."""
    cause = job.state.cause if isinstance(job.state, Stopping) else None
    if exit_.reason in NODE_LOSS_REASONS or exit_.stop_cause is StopCause.FENCED:
        lost = ended if exit_.reason in NODE_LOSS_REASONS else replace(ended, reason="NODE_LOST")
        return after_node_loss(state, at, job, lost)
    if cause is StopCause.GANG and _was_stopped_for_its_node(ended, exit_):
        reason = job.state.reason if isinstance(job.state, Stopping) else ""
        return after_node_loss(state, at, job, replace(ended, reason="NODE_LOST", message=reason))
    was_stopped = exit_.stop_cause is not None
    if was_stopped and (cause is StopCause.REQUEUED or cause is StopCause.PREEMPTED):
        return AttemptEnded(at=at, job=job.id, ended=replace(ended, reason=cause.value))
    # Its node may have been told before the store could be (core/early_commands.py), by a scheduler that has forgotten.
    was_told_early = exit_.stop_cause is StopCause.CANCELLED and cause in (None, StopCause.GANG)
    if (was_stopped and cause is StopCause.CANCELLED) or was_told_early:
        return _finished(job, ended, Outcome.CANCELLED, "CANCELLED", _cancel_message(job))
    if exit_.reason == TAKEN_DOWN and cause is not StopCause.CANCELLED and job.spec.is_requeueable:
        return AttemptEnded(at=at, job=job.id, ended=ended)
    if exit_.stop_cause is StopCause.TIME_LIMIT:
        return _after_time_out(state, at, job, ended, exit_)
    if cause in (None, StopCause.GANG) and _needs_gpus(job, exit_):
        return AttemptEnded(at=at, job=job.id, ended=ended, needs_gpus=True)
    if cause in (None, StopCause.GANG) and job.retries_used < job.spec.retries and _may_be_retried(exit_):
        return AttemptEnded(at=at, job=job.id, ended=ended, is_retry=True)
    match exit_.exit:
        case ExitCode(code=0):
            # What its node says of output that nobody has is told, and nothing else of a success.
            message = "exited with code 0" if ended.output_is_complete else exit_.message or "exited with code 0"
            return _finished(job, ended, Outcome.SUCCEEDED, "EXITED", message, exit_.exit)
        case ExitCode(code=code):
            message = exit_.message or f"exited with code {code}"
            return _finished(job, ended, Outcome.FAILED, exit_.reason, message, exit_.exit)
        case ExitSignal(signal=number):
            message = exit_.message or f"ended by signal {number}"
            reason = exit_.reason if exit_.reason in NAMED_ENDS else "SIGNALLED"
            return _finished(job, ended, Outcome.FAILED, reason, message, exit_.exit)
        case None:
            return _finished(job, ended, Outcome.FAILED, exit_.reason, exit_.message)


def _after_time_out(state: State, at: Instant, job: Job, ended: EndedAttempt, exit_: RankExit) -> Record:
    """The time limit has ended an attempt: that of a job which is queued again then, or the job."""
    message = "its time limit was reached"
    if job.spec.is_requeued_on_timeout:
        if job.time_out_count + 1 < state.limits.time_outs:
            return AttemptEnded(at=at, job=job.id, ended=replace(ended, reason=StopCause.TIME_LIMIT.value))
        message = f"its time limit was reached {state.limits.time_outs:,} times, and it is not queued again"
    return _finished(job, ended, Outcome.TIMED_OUT, StopCause.TIME_LIMIT.value, message, exit_.exit)


def _was_stopped_for_its_node(ended: EndedAttempt, exit_: RankExit) -> bool:
    """Whether a gang was stopped for a rank that did not fail by itself: its node was lost, or did not start it."""
    if exit_.stop_cause is StopCause.GANG:
        return True
    stopped = any(rank.exit is not None and rank.exit.stop_cause is StopCause.GANG for rank in ended.ranks)
    return stopped and exit_.exit == ExitCode(code=0) and exit_.stop_cause is None


def _needs_gpus(job: Job, exit_: RankExit) -> bool:
    """Whether a job that fell back says that it needs its GPUs; it gets them once. Rule: docs/rules/jobs.md 2.24."""
    has_said_so = exit_.exit == ExitCode(code=NEEDS_GPU_EXIT_CODE) and _may_be_retried(exit_)
    return has_said_so and job.fell_back is not None and job.spec.is_requeueable


def _may_be_retried(exit_: RankExit) -> bool:
    """Whether a fresh attempt may end better: the command ran and ended by itself with a code or a signal."""
    failed = exit_.exit is not None and exit_.exit != ExitCode(code=0)
    return failed and exit_.stop_cause is None and exit_.reason in ENDS_OF_ITS_OWN


def _cancel_message(job: Job) -> str:
    is_known = isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED
    reason = job.state.reason if is_known and isinstance(job.state, Stopping) else ""
    return f"cancelled: {reason}" if reason else "cancelled"


def _finished(
    job: Job, ended: EndedAttempt, outcome: Outcome, reason: str, message: str, exit_: ExitStatus | None = None
) -> JobFinished:
    at = ended.ended_at
    finished = Finished(outcome=outcome, at=at, reason=reason, message=message, exit=exit_)
    return JobFinished(at=at, job=job.id, finished=finished, ended=replace(ended, reason=reason))


def after_node_loss(state: State, at: Instant, job: Job, ended: EndedAttempt) -> Record:
    """An attempt ended because of its node: queue the job again, unless it must not be or has cost too many nodes."""
    if isinstance(job.state, Stopping) and job.state.cause is StopCause.CANCELLED:
        message = f"{_cancel_message(job)}; its node was lost"
        return _finished(job, ended, Outcome.CANCELLED, "CANCELLED", message)
    losses = job.node_loss_count + 1
    if not job.spec.is_requeueable:
        return _finished(job, ended, Outcome.FAILED, ended.reason, ended.message or "its node was lost")
    if ended.is_blameless:
        if job.blameless_loss_count + 1 < state.limits.blameless_losses:
            return AttemptEnded(at=at, job=job.id, ended=ended)
        message = f"it was lost with its keeper {state.limits.blameless_losses:,} times and is not tried again"
        return _finished(job, ended, Outcome.FAILED, ended.reason, message)
    if losses >= (job.spec.blame_limit or state.limits.node_losses):
        message = f"it ended with its node {losses} times and is not tried again"
        return _finished(job, ended, Outcome.FAILED, ended.reason, message)
    return AttemptEnded(at=at, job=job.id, ended=ended)


def without_its_node(
    state: State, at: Instant, job: Job, attempt: Attempt, node: NodeName, message: str, *, nothing_lives: bool = False
) -> Decision:
    """End what an attempt has on a node that will say no more. `nothing_lives`: its processes are known to be gone.

    One whose end was reported has ended so: only its last output never came, and it is not run twice for that.
    """
    if attempt.is_gang:
        return gang_without_nodes(state, at, job, attempt, {node: message}, nothing_lives=nothing_lives)
    for key in rank_keys(job, attempt):
        exit_ = state.live.exits.get(key)
        if exit_ is not None and exit_.exit is not None:
            return end_rank(state, at, job, attempt, key, replace(exit_, output_is_complete=False))
    attempt = given_up(state, job, attempt, "NODE_LOST", message, is_presumed=not nothing_lives)
    ended = ended_attempt(attempt, at, "NODE_LOST", message, is_complete=False)
    return Decision(records=(after_node_loss(state, at, job, ended),))


def given_up(state: State, job: Job, attempt: Attempt, reason: str, message: str, *, is_presumed: bool) -> Attempt:
    """An attempt of which no rank's end will be told any more; what its nodes told last of its use stays with it."""
    for key, rank in live_ranks(job, attempt):
        attempt = attempt.with_rank(key.rank, exit=_untold(state, key, rank, reason, message, is_presumed=is_presumed))
    return attempt


def _untold(state: State, key: RankKey, rank: Rank, reason: str, message: str, *, is_presumed: bool) -> RankExit:
    """The end of a rank of which nobody will tell any more, with what it used as far as its node told."""
    node = state.live.nodes.get(rank.placement.node)
    told = next((each for known, each in node.usages if known == key), None) if node is not None else None
    use = None if told is None else told.use
    return RankExit(
        exit=None,
        reason=reason,
        message=message,
        output_is_complete=False,
        is_presumed=is_presumed,
        use=None if use is None else replace(use, is_last_told=True),
    )


def gang_without_nodes(
    state: State, at: Instant, job: Job, attempt: Attempt, gone: Mapping[NodeName, str], *, nothing_lives: bool = False
) -> Decision:
    """End the ranks of a gang whose nodes, each with why, will say no more; the others are stopped."""
    if is_being_prepared(job):
        node, message = next(iter(gone.items()))
        return gangs.handed_back(at, job, attempt, node, "NODE_LOST", message)
    exits: dict[int, RankExit] = {}
    for key, rank in live_ranks(job, attempt):
        if rank.placement.node in gone:
            known = state.live.exits.get(key)
            if known is not None and known.exit is not None:
                exits[key.rank] = replace(known, output_is_complete=False)
            else:
                why = gone[rank.placement.node]
                exits[key.rank] = _untold(state, key, rank, "NODE_LOST", why, is_presumed=not nothing_lives)
    failed = next((rank for rank, exit_ in exits.items() if gangs.has_failed(exit_)), None)
    stops = NOTHING if failed is None else gang_stop(state, at, job, attempt, failed, exits[failed])
    return together(stops, Decision(records=end_ranks(state, at, job, attempt, exits)))


def ended_attempt(attempt: Attempt, at: Instant, reason: str, message: str, *, is_complete: bool) -> EndedAttempt:
    """An attempt that is over, though not every rank's end may be known. `is_complete`: all of its output is stored."""
    return EndedAttempt(
        number=attempt.number,
        placed_at=attempt.placed_at,
        ended_at=at,
        ranks=attempt.ranks,
        reason=reason,
        message=message,
        output_is_complete=is_complete,
        forecast=attempt.forecast,
        lineage=attempt.lineage,
        slot=attempt.slot,
    )


def on_rank_refused(state: State, event: RankRefused) -> Decision:
    """A node did not start a rank: place the job again, or end it when the request itself is at fault."""
    forget = ForgetAttempt(node=event.node, key=event.key)
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return Decision(commands=(forget,))
    return together(rank_refused(state, event, *found), Decision(commands=(forget,)))


def rank_refused(state: State, event: RankRefused, job: Job, attempt: Attempt) -> Decision:
    """What a refused rank means: of a gang that was started it is the rank's end, else nothing of the attempt ran."""
    if not attempt.is_gang:
        return Decision(records=(after_refusal(state, event, job, attempt),))
    if is_being_prepared(job):
        others = gangs.abort_commands(job, attempt, but=event.key.rank)
        return Decision(records=(after_refusal(state, event, job, attempt),), commands=others)
    exit_ = _end_by_refusal(event, job, attempt)
    stops = gang_stop(state, event.at, job, attempt, event.key.rank, exit_)
    return together(stops, Decision(records=end_ranks(state, event.at, job, attempt, {event.key.rank: exit_})))


def _end_by_refusal(event: RankRefused, job: Job, attempt: Attempt) -> RankExit:
    message = f"{event.reason}: {event.message}" if event.message else event.reason
    if isinstance(job.state, Stopping) and job.state.failed_rank == event.key.rank:
        message = job.state.reason
    if attempt.ranks[event.key.rank].started_at is not None:
        lost = f"its node no longer knows of it ({event.reason})"
        return RankExit(exit=None, reason="NODE_LOST", message=lost, output_is_complete=False)
    if isinstance(job.state, Stopping) and job.state.failed_rank != event.key.rank:
        return RankExit(exit=None, reason=event.reason, message=event.message, stop_cause=job.state.cause)
    if event.blames in (RefusalKind.REQUEST, RefusalKind.JOB_HERE):
        return RankExit(exit=None, reason=event.reason, message=event.message)
    return RankExit(exit=None, reason="NOT_STARTED", message=message)


def after_refusal(state: State, event: RankRefused, job: Job, attempt: Attempt) -> Record:
    """The record for a refused rank. Nothing ran, so that the attempt's number is void and its output empty."""
    exit_ = RankExit(exit=None, reason=event.reason, message=event.message)
    refused = attempt.with_rank(event.key.rank, exit=exit_)
    ended = ended_attempt(refused, event.at, event.reason, event.message, is_complete=True)
    if attempt.ranks[event.key.rank].started_at is not None:
        # It ran once and its node denies it: the node has lost its memory of it.
        message = f"its node no longer knows of it ({event.reason})"
        lost = replace(ended, reason="NODE_LOST", message=message, output_is_complete=False)
        return after_node_loss(state, event.at, job, lost)
    match job.state:
        case Stopping(cause=StopCause.CANCELLED):
            return _finished(job, ended, Outcome.CANCELLED, "CANCELLED", _cancel_message(job))
        case Starting() if event.blames is RefusalKind.REQUEST:
            return _finished(job, ended, Outcome.FAILED, event.reason, event.message)
        case _:
            kept_away: tuple[KeptAway, ...] = ()
    if event.blames in OF_THE_JOB:
        kept = _kept_away(job, event)
        if kept.is_for_good and isinstance(job.state, Starting) and not _may_run_elsewhere(state, job, kept):
            return _finished(job, ended, Outcome.FAILED, event.reason, event.message)
        kept_away = (kept,)
    return AttemptVoided(
        at=event.at,
        job=job.id,
        number=attempt.number,
        node=event.node,
        reason=event.reason,
        message=event.message,
        kept_away=kept_away,
    )


def _kept_away(job: Job, event: RankRefused) -> KeptAway:
    """How long a job is kept from a node that lacks what it needs: for longer each time, and at last for good."""
    kept = gangs.kept_away(event.at, job, event.node, event.reason, event.message)
    is_over = event.blames is RefusalKind.JOB_HERE or kept.tries >= TRIES_ON_NODE_MAX
    return replace(kept, until=None) if is_over else kept


def on_setup_reported(state: State, event: SetupReported) -> Decision:
    """Note for the story that a rank's environment is made, or its image comes, or that it is there."""
    if live_attempt(state, event.node, event.key) is None:
        return NOTHING
    changed = SetupStateChanged(
        at=event.at, key=event.key, is_ready=event.is_ready, message=event.message, image=event.image
    )
    return Decision(records=(changed,))


def _may_run_elsewhere(state: State, job: Job, kept: KeptAway) -> bool:
    """Whether a job that a node will never start could ever be placed without it."""
    job = as_its_users(state.durable, replace(job, spec=job.spec.keeping_away(kept)))
    for_good = sum(each.is_for_good for each in job.spec.resources.kept_away)
    if len(job.spec.resources.exclude) + for_good > EXCLUDED_MAX:
        return False
    return never_fits(state, job.spec.resources, "") is None


def on_spool_filled(state: State, event: SpoolFilled) -> Decision:
    """Note for the story that a job waits for room for its output, or goes on."""
    if live_attempt(state, event.node, event.key) is None:
        return NOTHING
    return Decision(
        records=(SpoolStateChanged(at=event.at, key=event.key, is_full=event.is_full, message=event.message),)
    )


def on_output_damaged(state: State, event: OutputDamaged) -> Decision:
    """Keep with the job that some of its output is not as it was written: the rest of it goes on."""
    found = live_attempt(state, event.node, event.key)
    if found is None:
        return NOTHING
    warned = tuple(bounded(state, of_damage(event, found[0])))
    return Decision(records=warned, commands=tuple(tell_commands(state, warned)))
