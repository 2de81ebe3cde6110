"""What a launch, a scheduler's verdict or an old record means for what the node already holds."""

from enum import StrEnum

from .outcome import AttemptPhase, LossReason


class LaunchDecision(StrEnum):
    """What to do with a launch, which may be a repeated one."""

    START = "START"
    ANSWER = "ANSWER"
    """It is known: answer with what became of it and start nothing."""


def decide_launch(known: AttemptPhase | None) -> LaunchDecision:
    """Start only what this node has never seen; `known` is None for that alone."""
    return LaunchDecision.START if known is None else LaunchDecision.ANSWER


class Verdict(StrEnum):
    """What the scheduler says about one attempt of an inventory."""

    KEEP = "KEEP"
    KILL = "KILL"
    FORGET = "FORGET"


class Obedience(StrEnum):
    """How the agent carries a verdict out."""

    NOTHING = "NOTHING"
    REPORT_END = "REPORT_END"
    """Upload the rest of its output, then report the end again."""
    KILL = "KILL"
    KILL_THEN_FORGET = "KILL_THEN_FORGET"
    FORGET = "FORGET"


def obey(verdict: Verdict, phase: AttemptPhase) -> Obedience:
    """Answer what a verdict means for an attempt in this phase.

    Nothing live is ever forgotten: a Forget for it kills it first. A Kill for what has ended is a Forget,
    for the scheduler has closed it and will take neither output nor end.
    """
    if phase is AttemptPhase.FORGOTTEN:
        return Obedience.NOTHING
    match verdict, phase.is_live:
        case Verdict.KEEP, True:
            return Obedience.NOTHING
        case Verdict.KEEP, False:
            return Obedience.REPORT_END
        case Verdict.KILL, True:
            return Obedience.KILL
        case Verdict.FORGET, True:
            return Obedience.KILL_THEN_FORGET
        case _:
            return Obedience.FORGET


class RecordFate(StrEnum):
    """What a record of an attempt, found on disk by a starting agent, means."""

    ADOPT = "ADOPT"
    """Its keeper lives; ask that."""
    ENDED = "ENDED"
    """Its keeper recorded the end before it died."""
    KILL = "KILL"
    """Its keeper died: kill what is left of it, wait until it is dead, then its end is unknown."""
    GONE = "GONE"
    """It belongs to another boot: nothing of it runs, its end is unknown."""


def fate_of_record(*, keeper_is_alive: bool, is_this_boot: bool, has_end: bool) -> RecordFate:
    """Answer what to do about a recorded attempt.

    An end recorded before a reboot is not believed: the bytes it counts may never have reached the disk.
    """
    if not is_this_boot:
        return RecordFate.GONE
    if keeper_is_alive:
        return RecordFate.ADOPT
    return RecordFate.ENDED if has_end else RecordFate.KILL


def is_blameless(*, is_isolated: bool, lost_count: int) -> bool:
    """Answer whether an attempt that was lost with its keeper is not to be suspected of having ended that.

    An isolated one cannot reach its keeper; of `lost_count` that were lost together any may have done it.
    """
    return is_isolated or lost_count > 1


def loss_of(fate: RecordFate) -> LossReason | None:
    """Answer why the end of a recorded attempt is unknown, or None when it is (or will be) known."""
    match fate:
        case RecordFate.KILL:
            return LossReason.KEEPER_DIED
        case RecordFate.GONE:
            return LossReason.NODE_REBOOTED
        case _:
            return None
