"""How long a node may go on without its scheduler.

A requeueable attempt may be replaced elsewhere once `fence` has passed since the newest heartbeat the
scheduler received. The node must have ended it before that, by its own clock: it counts from the moment the
newest *acknowledged* heartbeat was sent, which is never later than its receipt, and keeps a margin for
clocks that run apart. An attempt that must not be requeued has no fence and runs on.
"""

from enum import StrEnum

FENCE_MARGIN_US_MIN = 5_000_000
FENCE_MARGIN_DIVISOR = 100
"""The margin is 1 % of the fence, and at least five seconds."""

COMMAND_VALID_FOR_US = 30_000_000
"""A command is refused when the heartbeat it names was sent longer ago than this."""


def fence_margin_us(fence_us: int) -> int:
    """Answer how much earlier than the scheduler the node counts the fence as passed."""
    return max(FENCE_MARGIN_US_MIN, -(-fence_us // FENCE_MARGIN_DIVISOR))


def fence_deadline_us(heartbeat_sent_us: int, fence_us: int) -> int:
    """Answer when everything of the attempt must be dead, given when the acknowledged heartbeat was sent."""
    return heartbeat_sent_us + fence_us - fence_margin_us(fence_us)


def grace_within_fence_us(grace_us: int, fence_us: int) -> int:
    """Bound the grace so that at least half of the fence is running time."""
    return min(grace_us, fence_us // 2)


class CommandRefusal(StrEnum):
    """Why an agent does not carry out a command."""

    LOWER_TERM = "LOWER_TERM"
    UNKNOWN_HEARTBEAT = "UNKNOWN_HEARTBEAT"
    TOO_OLD = "TOO_OLD"


def refusal_of_command(
    *,
    term: int,
    highest_term: int,
    heartbeat_sent_us: int | None,
    now_us: int,
    valid_for_us: int = COMMAND_VALID_FOR_US,
) -> CommandRefusal | None:
    """Judge a command by its sender's term and by when this agent sent the heartbeat it names.

    `heartbeat_sent_us` is None when the agent does not remember such a heartbeat. None means: carry it out.
    """
    if term < highest_term:
        return CommandRefusal.LOWER_TERM
    if heartbeat_sent_us is None:
        return CommandRefusal.UNKNOWN_HEARTBEAT
    if now_us - heartbeat_sent_us > valid_for_us:
        return CommandRefusal.TOO_OLD
    return None
