"""What becomes of a replica of a served program: when it takes requests, when it is told to end, and how it ended.

Rule: docs/rules/sessions.md 3.13.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

PROBE_US_FIRST = 50_000
PROBE_US_STARTING_MAX = 500_000
"""Before it is ready for the first time, the pause between probes grows by half from the first to the second."""

PROBE_US = 2_000_000
"""From then on."""

MISSES_MAX = 3
"""A ready program that misses so many probes in a row is left until it answers one."""

QUIET_US = 1_000_000
DRAIN_US_MAX = 170_000_000
"""A drained replica is told to end when no connection was open for the first, or after the second."""

STOP_US_MAX = 5_000_000
"""From SIGTERM to SIGKILL."""

SECOND_START_US_MAX = 2_000_000
"""A program that ends so soon, and whose port somebody else has, is started once more at another port."""


class Phase(Enum):
    """What a replica is, as it says of itself."""

    STARTING = auto()
    READY = auto()
    UNREADY = auto()
    DRAINING = auto()
    FAILED = auto()


class Act(Enum):
    """What is to be done with the program now."""

    START = auto()
    TERMINATE = auto()
    KILL = auto()
    LEAVE = auto()
    """It has ended for good."""


@dataclass(slots=True)
class Replica:
    """One replica. Times are microseconds of a steady clock; `act` is asked after each event and at `due_us`.

    `message` says in a clause why it is not ready, or in a sentence how it has ended. `status` is the program's exit
    status as a shell has it, 128 and more for a signal; None while it runs.
    """

    phase: Phase = Phase.STARTING
    message: str = ""
    status: int | None = None
    probe_pause_us: int = PROBE_US_FIRST
    _starts: int = 0
    _started_us: int = 0
    _is_to_start: bool = True
    _misses: int = 0
    _connections: int = 0
    _drained_us: int | None = None
    _quiet_us: int = 0
    _stop_asked: bool = False
    _terminated_us: int | None = None
    _is_killed: bool = False

    def probed(self, miss: str) -> None:
        """The program was probed; `miss` is why that was no success, empty for one."""
        if self.phase is Phase.STARTING and miss:
            self.probe_pause_us = min(self.probe_pause_us * 3 // 2, PROBE_US_STARTING_MAX)
        else:
            self.probe_pause_us = PROBE_US
        self._misses = self._misses + 1 if miss else 0
        match self.phase:
            case Phase.STARTING | Phase.UNREADY:
                self.phase, self.message = (self.phase if miss else Phase.READY), miss
            case Phase.READY if self._misses >= MISSES_MAX:
                self.phase, self.message = Phase.UNREADY, miss
            case _:
                pass

    def connected(self, count: int, now_us: int) -> None:
        """So many connections are open now."""
        if self._connections and not count:
            self._quiet_us = now_us
        self._connections = count

    def drain(self, now_us: int) -> None:
        """Take nothing new, and end after the last connection."""
        if self._drained_us is None and self.phase is not Phase.FAILED:
            self._drained_us = now_us
            self.phase, self.message = Phase.DRAINING, ""

    def stop(self, now_us: int) -> None:
        """End, whatever goes on."""
        self.drain(now_us)
        self._stop_asked = True

    def exited(self, status: int, how: str, now_us: int, *, is_port_taken: bool = False) -> None:
        """The program has ended: with this status, and `how` in a sentence.

        `is_port_taken`: somebody else listens on the port that it was given.
        """
        self.status = status
        if self._stop_asked or (self._drained_us is not None and status == 0):
            return
        is_soon = now_us - self._started_us <= SECOND_START_US_MAX
        if is_port_taken and is_soon and self._starts == 1 and self._drained_us is None:
            # Whoever answered there was not the program.
            self.phase, self.message, self._misses = Phase.STARTING, "", 0
            self.status, self._is_to_start, self.probe_pause_us = None, True, PROBE_US_FIRST
        else:
            self.phase, self.message = Phase.FAILED, how

    def act(self, now_us: int) -> Act | None:
        """What to do now, each thing once; LEAVE again and again."""
        if self.status is not None or (self._is_to_start and self._drained_us is not None):
            return Act.LEAVE
        if self._is_to_start:
            self._is_to_start, self._started_us = False, now_us
            self._starts += 1
            return Act.START
        if self._drained_us is not None and now_us >= self._end_us():
            self._stop_asked = True
        if self._stop_asked and self._terminated_us is None:
            self._terminated_us = now_us
            return Act.TERMINATE
        if self._terminated_us is not None and now_us >= self._terminated_us + STOP_US_MAX and not self._is_killed:
            self._is_killed = True
            return Act.KILL
        return None

    @property
    def due_us(self) -> int | None:
        """When `act` is to be asked again if nothing happens; None: never."""
        if self._terminated_us is not None:
            return None if self._is_killed else self._terminated_us + STOP_US_MAX
        return None if self._drained_us is None else self._end_us()

    def _end_us(self) -> int:
        assert self._drained_us is not None
        latest_us = self._drained_us + DRAIN_US_MAX
        return latest_us if self._connections else min(max(self._drained_us, self._quiet_us) + QUIET_US, latest_us)
