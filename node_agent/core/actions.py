"""What the agent's core is asked to do, and what it asks its shell to do: orders and actions, as values."""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.jobs.runs import RankKey, StopCause

from .commands import AttemptCommand, LaunchAttempt
from .delivery import Receipt
from .fence import CommandRefusal
from .inventory import AttemptReport, InBacklog, Prepared, Refused
from .outcome import AttemptEnd, AttemptView, FullReason, Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A command, and what it rests on.

    `heartbeat_sent_us`: when the newest message that the scheduler knew of us was sent, 0 when nobody knows. `refusal`
    is set when a command that starts something rests on what is too old. `receipt` is None for the agent's own wish.
    """

    command: AttemptCommand
    receipt: Receipt | None = None
    heartbeat_sent_us: int = 0
    refusal: CommandRefusal | None = None


@dataclass(frozen=True, slots=True)
class Master:
    """Where rank 0 of a gang listens for the others."""

    address: str
    port: int


@dataclass(frozen=True, slots=True)
class CheckNode:
    """See whether the node is as the launch expects; answer with `checked`.

    For a Prepare, which starts nothing that would show it: also all that a keeper would say to the launch.
    """

    command: LaunchAttempt
    is_prepare: bool


@dataclass(frozen=True, slots=True)
class GiveUpFiles:
    """A rank whose files are being fetched is not wanted any more; answer its CheckNode with `given_up`."""

    key: RankKey


@dataclass(frozen=True, slots=True)
class Hold:
    """Hold a rank for its gang, or in the backlog; answer with `held_too_long` when its time has passed."""

    held: Prepared | InBacklog


@dataclass(frozen=True, slots=True)
class BeginNext:
    """A rank of the backlog is the next in its slot: say with `next_begun` whether what it rests on is recent enough.

    That was sent at `sent_us`.
    """

    launch: LaunchAttempt
    sent_us: int


@dataclass(frozen=True, slots=True)
class LetGo:
    """A rank is not held any more, because it is started or given up: what was kept for it is free."""

    key: RankKey


@dataclass(frozen=True, slots=True)
class SpawnAttempt:
    """Have the keeper start it, with a fence that counts from `heartbeat_sent_us`; answer with `spawned`."""

    command: LaunchAttempt
    master: Master | None
    heartbeat_sent_us: int


@dataclass(frozen=True, slots=True)
class StopProcess:
    """Have the keeper end it by the grace rule, 0 kills at once; answer with `done`."""

    key: RankKey
    cause: StopCause
    grace_us: int | None


@dataclass(frozen=True, slots=True)
class SignalProcess:
    """Have the keeper send a signal; answer with `done`."""

    key: RankKey
    signal: int


@dataclass(frozen=True, slots=True)
class LimitProcess:
    """Have the keeper give it another time limit, None for none; answer with `done`."""

    key: RankKey
    time_limit_us: int | None


@dataclass(frozen=True, slots=True)
class ForgetAttempt:
    """Have the keeper delete its spool and keep its tombstone, send no more of it; answer with `done`."""

    key: RankKey


@dataclass(frozen=True, slots=True)
class Follow:
    """Send its output, as it comes; `is_new`: nothing of it was ever sent."""

    view: AttemptView
    is_new: bool


@dataclass(frozen=True, slots=True)
class Tell:
    """Report this to the scheduler until it is stored."""

    report: AttemptReport | Refused | Prepared


@dataclass(frozen=True, slots=True)
class CarriedOut:
    """The message with this receipt is done."""

    receipt: Receipt


Outstanding = CheckNode | SpawnAttempt | StopProcess | SignalProcess | LimitProcess | ForgetAttempt
"""What takes its time: nothing else is done about the attempt before it is answered."""

Action = Outstanding | GiveUpFiles | BeginNext | Hold | LetGo | Follow | Tell | CarriedOut

Change = AttemptEnd | FullReason | Offsets | None
"""What a keeper says of an attempt: its end, why its output waits (None: it goes on), or how far its output goes."""
