"""A world for a dispatcher, without sockets: workers that do what a script says, and a time that is made up."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from gpufleet.client.core.calls import AbortRequest, CheckWorker, FinishCall, Rules, SendRequest
from gpufleet.client.core.circuit import Circuit
from gpufleet.client.core.dispatch import Dispatcher
from gpufleet.client.core.outcomes import Answer, Backend, ErrorKind, Failure, Reply, Result
from gpufleet.client.core.workers import Condition, Health, WorkerState

STEPS_MAX = 100_000
"""More than any script needs: a dispatcher that does more goes in circles."""

RULES = Rules(
    backend="auto",
    batch_size=4,
    retries=5,
    backoff_first_s=0.1,
    backoff_max_s=10.0,
    timeout_s=60.0,
    start_wait_s=60.0,
    health_interval_s=10.0,
    poison_breaks=2,
)

Behaviour = Callable[[tuple[int, ...]], "Reply | Failure | None"]
"""What becomes of a request for these items; None never ends by itself."""


@dataclass
class FakeWorker:
    """Answers requests by `does`, after `takes_s`; checks by `health`."""

    does: Behaviour
    backend: Backend = Backend.GPU
    seats: int = 2
    takes_s: float = 0.01
    health: Health = Health(Condition.READY)
    starts_after_s: float = 0.0
    state: WorkerState = field(init=False)

    def made(self, name: str, place: int) -> WorkerState:
        circuit = Circuit(failures=15, requests_min=10, window_s=60.0, open_s=20.0, successes=3)
        is_callable = self.backend is Backend.CALLABLE
        self.state = WorkerState(
            name,
            circuit,
            self.seats,
            backend=self.backend,
            is_labelled=True,
            condition=Condition.READY if is_callable else Condition.UNKNOWN,
            needs_checks=not is_callable,
            place=place,
        )
        return self.state


def answers(items: tuple[int, ...]) -> Reply:
    """The right answer: each item's number."""
    return Reply(tuple(Answer(item) for item in items))


def fails(kind: ErrorKind, retry_after_s: float | None = None) -> Behaviour:
    """Every request fails so."""
    return lambda items: Failure(kind, f"scripted {kind}", 0, retry_after_s)


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One after the other, the last one for ever."""
    rest = list(behaviours)
    return lambda items: (rest.pop(0) if len(rest) > 1 else rest[0])(items)


@dataclass
class Asked:
    """One request as the world saw it."""

    worker: str
    items: tuple[int, ...]
    at_s: float


class World:
    """Plays a dispatcher; it checks on the way that no item is asked twice at a time, and that seats are kept."""

    def __init__(self, workers: dict[str, FakeWorker], rules: Rules = RULES, chance: Callable[[], float] = lambda: 0.0):
        self.workers = workers
        states = [worker.made(name, place) for place, (name, worker) in enumerate(workers.items())]
        self.dispatcher = Dispatcher(rules, states, chance)
        self.now_s = 0.0
        self.asked: list[Asked] = []
        self.finished: dict[int, tuple[Result, ...]] = {}
        self.finished_at_s: dict[int, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._open: dict[int, SendRequest] = {}

    def submit(self, keys: Sequence[Hashable | Failure] | int, deadline_s: float = 600.0) -> int:
        """A call of these items, or of so many of one kind."""
        keys = ["same"] * keys if isinstance(keys, int) else keys
        return self.dispatcher.submit(keys, self.now_s + deadline_s)

    def play(self) -> None:
        """Until all calls are finished."""
        for _ in range(STEPS_MAX):
            self._carry_out()
            wake_at_s = self.dispatcher.wake_at_s()
            if wake_at_s is None:
                return
            event_at_s = self._events[0][0] if self._events else float("inf")
            assert wake_at_s > self.now_s or event_at_s <= self.now_s, "it wants to be woken at once, for ever"
            self.now_s = max(self.now_s, min(wake_at_s, event_at_s))
            while self._events and self._events[0][0] <= self.now_s:
                heapq.heappop(self._events)[2]()
        raise AssertionError("it goes in circles")

    def play_until_asked(self) -> None:
        """Until the first request is under way."""
        while not self.asked:
            self._carry_out()
            if not self.asked:
                self.now_s, _, do = heapq.heappop(self._events)
                do()

    def predict(self, keys: Sequence[Hashable | Failure] | int, deadline_s: float = 600.0) -> tuple[Result, ...]:
        """One call, played to its end."""
        number = self.submit(keys, deadline_s)
        self.play()
        return self.finished[number]

    def _carry_out(self) -> None:
        for action in self.dispatcher.step(self.now_s):
            match action:
                case SendRequest():
                    self._send(action)
                case AbortRequest():
                    del self._open[action.request]
                case CheckWorker():
                    self._after(0.001, self._checked_later(action.worker))
                case FinishCall():
                    assert action.call not in self.finished
                    self.finished[action.call] = action.results
                    self.finished_at_s[action.call] = self.now_s

    def _send(self, action: SendRequest) -> None:
        for other in self._open.values():
            is_same = other.call == action.call and set(other.items) & set(action.items)
            assert not is_same, "an item is asked twice at a time"
        self._open[action.request] = action
        worker = self.workers[action.worker]
        assert sum(each.worker == action.worker for each in self._open.values()) <= worker.seats
        assert worker.state.condition is Condition.READY
        assert action.timeout_s > 0
        self.asked.append(Asked(action.worker, action.items, self.now_s))
        outcome = worker.does(action.items)
        is_late = outcome is None or worker.takes_s >= action.timeout_s
        if is_late:
            outcome = Failure(ErrorKind.TIMED_OUT, "scripted time-out")
        assert outcome is not None
        self._after(action.timeout_s if is_late else worker.takes_s, self._ended_later(action.request, outcome))

    def _ended_later(self, request: int, outcome: Reply | Failure) -> Callable[[], None]:
        def ended() -> None:
            if self._open.pop(request, None) is None:
                return
            if isinstance(outcome, Reply):
                self.dispatcher.replied(request, outcome, self.now_s)
            else:
                self.dispatcher.failed(request, outcome, self.now_s)

        return ended

    def _checked_later(self, name: str) -> Callable[[], None]:
        def checked() -> None:
            worker = self.workers[name]
            is_up = self.now_s >= worker.starts_after_s
            self.dispatcher.checked(name, worker.health if is_up else Health(Condition.STARTING, "loading"), self.now_s)

        return checked

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._events, (self.now_s + seconds, self._number, do))
