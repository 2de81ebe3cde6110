"""What the keeper must do next with one running attempt: wait, send SIGTERM, or send SIGKILL.

    Running --SendTerm--> Stopping --SendKill--> Killed
       '------------------SendKill------------------^

One grace rule for a cancel, a time limit, a preemption and the fence: SIGTERM to the whole group, the grace,
SIGKILL to the whole group. The shell carries an action out and then stores `after(phase, action)`.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from .fence import fence_deadline_us, grace_within_fence_us
from .outcome import StopCause

GRACE_US = 30_000_000
"""The default time between SIGTERM and SIGKILL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the keeper enforces without the agent; None means no such limit.

    `fence_us` is None for an attempt that must not be requeued: it outlives any silence.
    """

    grace_us: int = GRACE_US
    time_limit_us: int | None = None
    fence_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Nobody has asked it to stop. `heartbeat_sent_us`: when the newest acknowledged heartbeat was sent."""

    limits: Limits
    started_us: int
    heartbeat_sent_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopping:
    """SIGTERM was sent; SIGKILL follows at `kill_us`."""

    cause: StopCause
    kill_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """SIGKILL was sent; there is nothing more a keeper can do."""

    cause: StopCause


Phase = Running | Stopping | Killed


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do before this time; None: nothing at all until something happens."""

    until_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SendTerm:
    """Send SIGTERM (and SIGCONT, for a stopped process cannot act on it) to the group."""

    cause: StopCause
    kill_us: int


@dataclass(frozen=True, slots=True)
class SendKill:
    """Send SIGKILL to the group and to whatever left it."""

    cause: StopCause


Action = Wait | SendTerm | SendKill


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


def stop(phase: Phase, cause: StopCause, grace_us: int | None, now_us: int) -> tuple[Phase, Action]:
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


def stop_cause(phase: Phase) -> StopCause | None:
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
    return Wait(min(wake_us, default=None))


def _term(phase: Running, cause: StopCause, kill_us: int) -> SendTerm:
    """Stop by the grace rule, but never beyond the fence."""
    deadline_us = fence_deadline_of(phase.limits, phase.heartbeat_sent_us)
    return SendTerm(cause=cause, kill_us=kill_us if deadline_us is None else min(kill_us, deadline_us))
