"""What the keeper must do next with one attempt: wait, send SIGTERM, or send SIGKILL; and when it is over.

    Running --SendTerm--> Stopping --SendKill--> Killed      (SendSignal, before the time limit, ends nothing)
       '------------------SendKill------------------^

One grace rule for a cancel, a time limit, a preemption and the fence: SIGTERM to the whole group, the grace,
SIGKILL to the whole group. The shell carries an action out and then stores `after(phase, action)`.

Over it is once its leader exited, the rest is dead, and its output ended or was drained: docs/rules/jobs.md 5.1. After
the leader's exit the group is killed; then either every pipe reaches its end or, two seconds later, the keeper stops
reading and says that the output was cut. Time in which the keeper itself does not read (the spool is full) does not
count: bytes the leader wrote are never dropped for want of room.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from gpufleet.jobs.runs import DEFAULT_GRACE_US, Cause, StopCause

from .fence import fence_deadline_us, grace_within_fence_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the keeper enforces without the agent; None means no such limit.

    `signal` is sent `signal_before_us` before the time limit, to the whole group or to its leader alone. `fence_us` is
    None for an attempt that must not be requeued: it outlives any silence.
    """

    grace_us: int = DEFAULT_GRACE_US
    time_limit_us: int | None = None
    fence_us: int | None = None
    signal: int | None = None
    signal_before_us: int = 0
    is_signal_for_leader: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Nobody has asked it to stop. `heartbeat_sent_us`: when the newest acknowledged heartbeat was sent.

    `signalled_for_us`: the time limit before which the signal was sent, None before. A limit that is raised later makes
    it due once more, and one that is lowered does not.
    """

    limits: Limits
    started_us: int
    heartbeat_sent_us: int
    signalled_for_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """SIGTERM was sent; SIGKILL follows at `kill_us`."""

    cause: Cause
    kill_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """SIGKILL was sent; there is nothing more a keeper can do."""

    cause: Cause


Phase = Running | Stopping | Killed


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this time; None: nothing at all until something happens."""

    until_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTerm:
    """Send SIGTERM (and SIGCONT, for a stopped process cannot act on it) to the group."""

    cause: Cause
    kill_us: int


@dataclass(frozen=True, slots=True)
class SendKill:
    """Send SIGKILL to the group and to whatever left it."""

    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class SendSignal:
    """Send the signal that was asked for before the time limit, `limit_us` after the start."""

    signal: int
    is_for_leader: bool
    limit_us: int


Action = Wait | SendSignal | SendTerm | SendKill


def next_action(phase: Phase, now_us: int) -> Action:
    """Answer what to do at this moment; a Wait names the moment to ask again."""
    match phase:
        case Running():
            return _next_of_running(phase, now_us)
        case Stopping():
            return SendKill(phase.cause) if now_us >= phase.kill_us else Wait(phase.kill_us)
        case Killed():
            return Wait(None)
        case _:
            assert_never(phase)


def stop(phase: Phase, cause: Cause, grace_us: int | None, now_us: int) -> tuple[Phase, Action]:
    """Answer what a request to stop changes; None takes the attempt's own grace, 0 kills at once.

    A repeated request never sends a second SIGTERM; it can only bring the SIGKILL forward.
    """
    match phase:
        case Running():
            grace = phase.limits.grace_us if grace_us is None else grace_us
            action: Action = SendKill(cause) if grace == 0 else _term(phase, cause, now_us + grace)
            return after(phase, action), action
        case Stopping():
            if grace_us is None:
                return phase, Wait(phase.kill_us)
            if grace_us == 0:
                return Killed(cause=phase.cause), SendKill(phase.cause)
            hastened = replace(phase, kill_us=min(phase.kill_us, now_us + grace_us))
            return hastened, Wait(hastened.kill_us)
        case Killed():
            return phase, Wait(None)
        case _:
            assert_never(phase)


def after(phase: Phase, action: Action) -> Phase:
    """Answer the phase once the action has been carried out."""
    match action:
        case Wait():
            return phase
        case SendSignal():
            return replace(phase, signalled_for_us=action.limit_us) if isinstance(phase, Running) else phase
        case SendTerm():
            return Stopping(cause=action.cause, kill_us=action.kill_us)
        case SendKill():
            return Killed(cause=action.cause)
        case _:
            assert_never(action)


def heartbeat_acknowledged(phase: Phase, sent_us: int) -> Phase:
    """Move the fence: the scheduler had the heartbeat sent at this time. An older one changes nothing.

    An attempt that was already told to stop keeps its deadline: its job has seen SIGTERM.
    """
    if isinstance(phase, Running) and sent_us > phase.heartbeat_sent_us:
        return replace(phase, heartbeat_sent_us=sent_us)
    return phase


def with_time_limit(phase: Phase, time_limit_us: int | None) -> Phase:
    """Give it another time limit, which counts from its start; what was already told to stop goes on stopping."""
    if isinstance(phase, Running):
        return replace(phase, limits=replace(phase.limits, time_limit_us=time_limit_us))
    return phase


def time_limit_us_of(phase: Phase) -> int | None:
    """Answer its time limit; None: it has none, or is being stopped."""
    return phase.limits.time_limit_us if isinstance(phase, Running) else None


def stop_cause(phase: Phase) -> Cause | None:
    """Answer why the keeper stopped it, or None when it did not."""
    return None if isinstance(phase, Running) else phase.cause


def fence_deadline_of(limits: Limits, heartbeat_sent_us: int) -> int | None:
    """Answer when the attempt must be dead unless a newer heartbeat is acknowledged; None: never."""
    return None if limits.fence_us is None else fence_deadline_us(heartbeat_sent_us, limits.fence_us)


def _next_of_running(phase: Running, now_us: int) -> Action:
    limits = phase.limits
    wake_us: list[int] = []
    deadline_us = fence_deadline_of(limits, phase.heartbeat_sent_us)
    if deadline_us is not None and limits.fence_us is not None:
        if now_us >= deadline_us:
            return SendKill(StopCause.FENCED)
        fence_term_us = deadline_us - grace_within_fence_us(limits.grace_us, limits.fence_us)
        if now_us >= fence_term_us:
            return SendTerm(cause=StopCause.FENCED, kill_us=deadline_us)
        wake_us.append(fence_term_us)
    if limits.time_limit_us is not None:
        limit_us = phase.started_us + limits.time_limit_us
        if now_us >= limit_us:
            return _term(phase, StopCause.TIME_LIMIT, now_us + limits.grace_us)
        wake_us.append(limit_us)
        if limits.signal is not None and limits.time_limit_us > (phase.signalled_for_us or 0):
            signal_us = limit_us - limits.signal_before_us
            if now_us >= signal_us:
                return SendSignal(
                    signal=limits.signal, is_for_leader=limits.is_signal_for_leader, limit_us=limits.time_limit_us
                )
            wake_us.append(signal_us)
    return Wait(min(wake_us, default=None))


def _term(phase: Running, cause: Cause, kill_us: int) -> SendTerm:
    """Stop by the grace rule, but never beyond the fence."""
    deadline_us = fence_deadline_of(phase.limits, phase.heartbeat_sent_us)
    return SendTerm(cause=cause, kill_us=kill_us if deadline_us is None else min(kill_us, deadline_us))


DRAIN_US = 2_000_000
"""How long a stray process may hold the output open, or outlive SIGKILL, before the attempt ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The leader has exited. `drain_since_us` moves on while the spool is full."""

    drain_since_us: int
    output_is_open: bool
    spool_is_full: bool
    processes_remain: bool


@dataclass(frozen=True, slots=True)
class Finish:
    """The attempt is over. A stream still open was cut: take what its pipe holds right now, and no more."""


def next_step_of_ending(ending: Ending, now_us: int) -> Finish | Wait:
    """Answer whether the attempt is over, or until when to wait for its output and its last processes."""
    if not ending.output_is_open and not ending.processes_remain:
        return Finish()
    if ending.output_is_open and ending.spool_is_full:
        return Wait(None)
    deadline_us = ending.drain_since_us + DRAIN_US
    if now_us >= deadline_us:
        return Finish()
    return Wait(deadline_us)


def observe(
    ending: Ending, *, output_is_open: bool, spool_is_full: bool, processes_remain: bool, now_us: int
) -> Ending:
    """Take in what the shell sees; the drain begins anew each time the spool stops being full."""
    drain_since_us = now_us if ending.spool_is_full else ending.drain_since_us
    return replace(
        ending,
        drain_since_us=drain_since_us,
        output_is_open=output_is_open,
        spool_is_full=spool_is_full,
        processes_remain=processes_remain,
    )
