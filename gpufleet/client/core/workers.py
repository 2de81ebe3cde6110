"""The workers of a client: what is known of each, and which of them is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from .circuit import Circuit, CircuitState
from .outcomes import Backend

START_CHECK_S = 1.0
"""How often a worker that is not ready is asked whether it is."""

RETRY_AFTER_S_MAX = 300.0
"""No server holds a client for longer than this."""


class Condition(StrEnum):
    """What a worker said when it was last asked how it is."""

    UNKNOWN = "unknown"
    READY = "ready"
    STARTING = "starting"
    UNREACHABLE = "unreachable"
    REFUSED = "refused"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Health:
    """What a check found. `backend` and `batch_max` (0: no limit) are what the worker says of itself, if it does.

    `is_silent`: it did not answer in time. `status` is the HTTP status of its answer, 0 where there was none.
    """

    condition: Condition
    why: str = ""
    backend: Backend | None = None
    batch_max: int = 0
    is_silent: bool = False
    status: int = 0


@dataclass(slots=True, eq=False)
class WorkerState:
    """One worker, or the gateway in front of several, or the callable.

    `backend` is None until the worker has said what it is. `is_labelled`: the user said so, and the worker's own word
    does not count. `held_until_s`: it asked for a pause. `place` is its place in the settings.
    """

    id: str
    circuit: Circuit
    seats: int
    backend: Backend | None = None
    is_labelled: bool = False
    condition: Condition = Condition.UNKNOWN
    why: str = "it was not asked yet"
    status: int = 0
    was_ready: bool = False
    batch_max: int = 0
    requests_under_way: int = 0
    items_under_way: int = 0
    used: int = 0
    held_until_s: float = 0.0
    check_at_s: float = float("-inf")
    is_being_checked: bool = False
    needs_checks: bool = True
    place: int = field(default=0)
    kept_for: object = None
    """The suspect that it is asked for next, or now: it gets nothing else meanwhile."""

    def is_usable(self, now_s: float) -> bool:
        """Whether it takes requests at all, be it busy or not."""
        return (
            self.condition is Condition.READY
            and now_s >= self.held_until_s
            and self.circuit.state(now_s) is not CircuitState.OPEN
        )

    def has_room(self, now_s: float) -> bool:
        """Whether it can be given a request now."""
        has_seat = self.requests_under_way < self.seats and self.kept_for is None
        return has_seat and self.is_usable(now_s) and self.circuit.allows(now_s)

    def is_free_for(self, suspect: object, now_s: float) -> bool:
        """Whether it can be given an item for which it may end: once it has nothing else of ours."""
        is_alone = self.kept_for is suspect and not self.requests_under_way
        return is_alone and self.is_usable(now_s) and self.circuit.allows(now_s)

    def may_come(self, now_s: float) -> bool:
        """Whether it is worth a wait before something lesser is asked: it starts, or asked for a pause."""
        match self.condition:
            case Condition.UNKNOWN | Condition.STARTING:
                return True
            case Condition.UNREACHABLE:
                return not self.was_ready
            case Condition.READY:
                return now_s < self.held_until_s
            case Condition.REFUSED | Condition.FAILED:
                return False

    def is_of(self, backend: Backend) -> bool:
        """Whether it is of this kind, or might be."""
        return self.backend is None or self.backend is backend

    def describe(self, now_s: float) -> str:
        """Why it is of no use now, for people."""
        if self.condition is not Condition.READY:
            return f"{self.id} is {self.condition}" + (f" ({self.why})" if self.why else "")
        if self.circuit.state(now_s) is not CircuitState.CLOSED:
            return f"the circuit of {self.id} is {self.circuit.state(now_s)}"
        return f"{self.id} asked for a pause" if now_s < self.held_until_s else f"{self.id} is ready"

    def checked(self, health: Health, now_s: float, interval_s: float) -> None:
        """It was asked how it is."""
        self.is_being_checked = False
        if health.is_silent and self.condition is Condition.READY and self.requests_under_way:
            # It is busy, or a gateway lets the check wait behind requests: those say themselves how it is.
            self.check_at_s = now_s + interval_s
            return
        self.condition, self.why, self.status = health.condition, health.why, health.status
        if health.condition is Condition.READY:
            self.was_ready = True
            self.batch_max = health.batch_max
            if not self.is_labelled:
                # One that does not say takes the preferred place: it is asked first.
                self.backend = health.backend or Backend.GPU
        is_ready = health.condition is Condition.READY
        self.check_at_s = now_s + (interval_s if is_ready else min(interval_s, START_CHECK_S))


def choose(workers: Iterable[WorkerState], avoided: str) -> WorkerState:
    """The one with the fewest requests under way, then the fewest items, then the one that was used least recently.

    One that has just failed these items is asked only where there is no other.
    """
    return min(
        workers,
        key=lambda worker: (
            worker.id == avoided,
            worker.requests_under_way,
            worker.items_under_way,
            worker.used,
            worker.place,
        ),
    )


def tiers_of(wanted: str, workers: Sequence[WorkerState]) -> tuple[Backend, ...]:
    """The backends to ask, the preferred first: all that there may be for "auto", else the wanted one alone."""
    if wanted != "auto":
        return (Backend(wanted),)
    return tuple(backend for backend in Backend if any(worker.is_of(backend) for worker in workers))
