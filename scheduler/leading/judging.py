"""What a standby makes of what it sees of the leader: wait, lead, or end a leader that hangs and lead. Pure.

It counts by its own monotonic clock, and only the time in which it looked itself: neither the leader's clock nor the
database's says how long the leader has been silent, and a standby that was stopped for an hour has not waited for one.
"""

from dataclasses import dataclass
from enum import Enum

GONE_SECONDS = 1.0
"""Nobody holds the lock, and the count of its last holder has stood still for this long: it is gone."""

STEP_SECONDS_MAX = 1.0
"""Between two looks no more than this counts as waited."""

RUNS_MAX = 16
"""Schedulers of one store that are known at once, the one that leads and those that stand by."""


class LeadingRole(Enum):
    """What a scheduler does in its store."""

    LEADING = "leading"
    BEGINNING = "beginning"
    """It has the lock, and reads what is stored, or brings the tables up to date."""
    STANDING_BY = "standing by"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A scheduler as its row says. Instants are microseconds by the clock of the database."""

    identity: str
    host: str
    pid: int
    address: str
    data_folder: str
    version: str
    role: LeadingRole
    term: int = 0
    sequence: int = 0
    beat: int = 0
    problem: str = ""
    since_us: int = 0
    beat_us: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What the store says at one moment. `holder` is the identity of who has the lock, empty for nobody.

    `clock_us` is the clock of the database. `has_runs`: the table of runs is there, which an older version lacks.
    """

    runs: tuple[Run, ...] = ()
    holder: str = ""
    term: int = 0
    sequence: int = 0
    clock_us: int = 0
    has_runs: bool = True

    def run(self, identity: str) -> Run | None:
        """The row of an identity; None where it has none."""
        return next((run for run in self.runs if run.identity == identity), None)

    def leader(self) -> Run | None:
        """Who leads, or led last and has not said that it leaves."""
        if (holder := self.run(self.holder)) is not None:
            return holder
        leaders = [run for run in self.runs if run.role is not LeadingRole.STANDING_BY]
        return max(leaders, key=lambda run: (run.term, run.since_us), default=None)


class Verdict(Enum):
    """What a standby does next."""

    WAIT = "wait"
    LEAD = "lead"
    END_AND_LEAD = "end and lead"
    """The leader hangs and still has the lock: its sessions are ended first."""


class Judge:
    """Judges one look after another. `silence_max_s`: a leader that holds the lock may be silent for so long."""

    def __init__(self, own: str, silence_max_s: float) -> None:
        self._own = own
        self._silence_max_s = silence_max_s
        self._known: tuple[str, int] | None = None
        self._silent_s = 0.0
        self._looked_at_s: float | None = None
        self._has_lost_sight = False

    @property
    def silent_s(self) -> float:
        """How long the leader's count has stood still, as far as this one has looked."""
        return self._silent_s

    def lose_sight(self) -> None:
        """The store did not answer. When it does again, the leader has as much time to come back as one that hangs."""
        self._silent_s, self._looked_at_s, self._has_lost_sight = 0.0, None, True

    def judge(self, look: Look, now_s: float) -> Verdict:
        """What to do after this look, at an instant of a monotonic clock in seconds."""
        leader = look.leader()
        known = None if leader is None else (leader.identity, leader.beat)
        if known != self._known:
            has_moved = self._known is not None and known is not None
            self._known, self._silent_s = known, 0.0
            self._has_lost_sight = self._has_lost_sight and not has_moved
        elif self._looked_at_s is not None:
            self._silent_s += min(max(now_s - self._looked_at_s, 0.0), STEP_SECONDS_MAX)
        self._looked_at_s = now_s
        if not look.holder or look.holder == self._own:
            # Who leaves in order takes its row along.
            if leader is None or leader.identity == self._own:
                return Verdict.LEAD
            wanted_s = max(self._silence_max_s, GONE_SECONDS) if self._has_lost_sight else GONE_SECONDS
            return Verdict.LEAD if self._silent_s >= wanted_s else Verdict.WAIT
        if leader is None or leader.identity != look.holder:
            return Verdict.WAIT  # an older version, or somebody who examines the store: nothing says how it is
        return Verdict.END_AND_LEAD if self._silent_s >= self._silence_max_s else Verdict.WAIT
