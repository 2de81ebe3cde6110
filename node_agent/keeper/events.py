"""What a node's keepers tell the agent without being asked."""

from dataclasses import dataclass, field

from gpufleet.jobs.runs import RankKey

from ..core.outcome import AttemptEnd, AttemptView, FullReason
from . import reports
from .values import Json, end_from


@dataclass(frozen=True, slots=True)
class Receipt:
    """Names a report to the keeper that sent it."""

    keeper_id: str
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted:
    """Its process runs. `started_us` is CLOCK_BOOTTIME."""

    key: RankKey
    pid: int
    started_us: int
    receipt: Receipt = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded:
    """It is over, and its output is spooled up to `end.output_ends`."""

    key: RankKey
    end: AttemptEnd
    receipt: Receipt = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolChanged:
    """Its output waits for room, and so its job may; or, with `full` None, goes on."""

    key: RankKey
    full: FullReason | None
    receipt: Receipt = field(compare=False)


@dataclass(frozen=True, slots=True)
class KeeperDied:
    """A keeper died. All it had launched is dead by now; `attempts` says how each ended, if that is known."""

    keeper_id: str
    attempts: tuple[AttemptView, ...]


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another agent took this node's keepers over: there is nothing left for this one to do but to leave."""

    keeper_id: str


Report = AttemptStarted | AttemptEnded | SpoolChanged
Event = Report | KeeperDied | Superseded


def event_from(keeper_id: str, data: Json) -> Report:
    """Read a report as it came from this keeper."""
    key = RankKey.parse(data["key"])
    receipt = Receipt(keeper_id, int(data["report"]))
    match data["kind"]:
        case reports.STARTED:
            return AttemptStarted(key=key, pid=int(data["pid"]), started_us=int(data["started_us"]), receipt=receipt)
        case reports.ENDED:
            return AttemptEnded(key=key, end=end_from(data["end"]), receipt=receipt)
        case reports.SPOOL:
            full = None if data["full"] is None else FullReason(data["full"])
            return SpoolChanged(key=key, full=full, receipt=receipt)
        case kind:
            raise ValueError(f"keeper {keeper_id} reports {kind!r}, which this version does not know")
