"""When an attempt is over: its leader exited, the rest is dead, and its output ended or was drained.

Output rule (a): after the leader's exit the group is killed; then either every pipe reaches its end or, two
seconds later, the keeper stops reading and says that the output was cut. Time in which the keeper itself
does not read (the spool is full) does not count: bytes the leader wrote are never dropped for want of room.
"""

from dataclasses import dataclass, replace

from .attempt import Wait

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
