"""The model's own thread: it loads the model, opens and closes sessions, and steps all that have something to step.

Everything of the model runs here and nowhere else. The thread sleeps until there is an input, a tick, or a session to
open or close: it never polls. What it finds out, it tells by the callbacks of `ModelCallbacks`, on this thread.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gpufleet.model import Event, Frame, Inputs, Key, Pointer, Session, Size, Traits

from .core.inputs import Kind, StepInputs, WaitingInputs
from .core.rhythm import Rhythm, Ticker
from .loading import Loaded, NotLoaded, last_line, let_go

_log = logging.getLogger(__name__)


def now_us() -> int:
    """Microseconds of the clock by which everything in a worker is timed."""
    return time.monotonic_ns() // 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedFrame:
    """A frame as a step gave it, and what it shows."""

    frame: Frame
    newest: int
    coalesced: int
    compute_us: int
    trace: str = ""
    """The trace context of an input that this is the first frame to show; empty for nearly all."""


@dataclass(slots=True, eq=False)
class Seat:
    """One session on the model's thread. `deliver` is given each shot, on that thread."""

    session: Session
    deliver: Callable[[RenderedFrame], None]
    inputs: WaitingInputs[Event] = field(default_factory=lambda: WaitingInputs[Event]())
    rhythm: Rhythm = field(default_factory=Rhythm)
    size: Size = Size()
    down: set[str] = field(default_factory=set)
    """Keys that are down behind all inputs that have come, those that wait among them."""

    held: set[str] = field(default_factory=set)
    """Keys that are down behind all inputs that a step had."""

    last: RenderedFrame | None = None
    state: Any = None
    is_open: bool = False
    has_begun: bool = False
    """Whether a step of it has come back."""

    has_ended: bool = False
    stepped_us: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call into the model that is going on: since when, and of which sessions."""

    began_us: int
    sessions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCallbacks:
    """What the model's thread tells, on that thread."""

    loaded: Callable[[Loaded], None]
    not_loaded: Callable[[str], None]
    begun: Callable[[Seat], None]
    """The first step of a session has come back."""

    failed: Callable[[Seat, str], None]
    has_room: Callable[[Seat], None]


class ModelThread:
    """Runs the model. All methods may be called on any thread."""

    def __init__(self, load: Callable[[], Loaded], told: ModelCallbacks) -> None:
        self._load = load
        self._told = told
        self._changed = threading.Condition(threading.Lock())
        self._opening: list[Seat] = []
        self._closing: list[Seat] = []
        self._seats: dict[Seat, None] = {}
        self._is_stopping = False
        self._model: Any = None
        self._traits = Traits()
        self._ticker = Ticker(0.0)
        self._busy_us = 0
        self.call: Call | None = None
        self._thread = threading.Thread(target=self._run, name="model", daemon=True)

    def start(self) -> None:
        """Load the model, and then serve it."""
        self._thread.start()

    def stop(self, wait_s: float) -> bool:
        """Close every session and end; False where the model did not come back within this time."""
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def open(self, seat: Seat) -> None:
        """A session comes: its state is made, and it is stepped once without inputs."""
        with self._changed:
            seat.inputs.takes_one = self._traits.takes_one_input
            self._opening.append(seat)
            self._changed.notify()

    def close(self, seat: Seat) -> None:
        """The session has ended; it is stepped no more, and its state is freed."""
        with self._changed:
            seat.has_ended = True
            self._closing.append(seat)
            self._changed.notify()

    def add(self, seat: Seat, sequence: int, kind: Kind, event: Event) -> bool:
        """An input for the next step; False where its number does not rise."""
        with self._changed:
            is_taken = seat.inputs.add(sequence, kind, event)
            if is_taken:
                if isinstance(event, Key):
                    (seat.down.add if event.is_down else seat.down.discard)(event.key)
                seat.rhythm.note(now_us())
                self._changed.notify()
            return is_taken

    def resize(self, seat: Seat, size: Size) -> None:
        """The room for the picture has changed: the next step is told, and there is one."""
        with self._changed:
            if seat.size != size:
                seat.size = size
                seat.inputs.ask()
                self._changed.notify()

    def release(self, seat: Seat) -> None:
        """The person's connection is lost, and what they let go of is not heard: every key and button comes up."""
        with self._changed:
            self._release(seat)
            self._changed.notify()

    def _release(self, seat: Seat) -> None:
        for key in sorted(seat.down):
            seat.inputs.add_own(Kind.OTHER, Key(key, is_down=False))
        seat.down.clear()
        pointer = seat.inputs.pointer
        if isinstance(pointer, Pointer) and pointer.buttons:
            seat.inputs.add_own(Kind.BUTTON, Pointer(pointer.x, pointer.y))

    def begin_stream(
        self, seat: Seat, deliver: Callable[[RenderedFrame], None], first: Callable[[RenderedFrame], None]
    ) -> None:
        """A new stream has the session: frames go to `deliver` from now on, behind the newest one, given to `first`."""
        with self._changed:
            self._release(seat)
            seat.inputs.begin_stream()
            seat.deliver = deliver
            if (last := seat.last) is not None:
                # Here, where no step can deliver: a newer frame that came first would give way to this one.
                first(RenderedFrame(frame=last.frame, newest=0, coalesced=0, compute_us=last.compute_us))

    def busy_us(self) -> int:
        """For how long the model has computed in all."""
        return self._busy_us

    # --- on the model's thread

    def _run(self) -> None:
        try:
            loaded = self._load()
        except NotLoaded as problem:
            if problem.__cause__ is not None:
                _log.error("the model cannot be loaded", exc_info=problem.__cause__)
            self._told.not_loaded(str(problem))
            return
        self._model, self._traits = loaded.model, loaded.traits
        self._ticker = Ticker(loaded.traits.ticks_per_second)
        self._told.loaded(loaded)
        while not self._is_stopping:
            closing, opening, stepping = self._wait()
            for seat in closing:
                self._close(seat)
            for seat in opening:
                self._open(seat)
            self._step_all(stepping)
            # What a step leaves must not outlive its session until the next one comes.
            del closing, opening, stepping
        for seat in [*self._closing, *self._seats]:
            self._close(seat)
        self._model = None

    def _wait(self) -> tuple[list[Seat], list[Seat], list[tuple[Seat, StepInputs[Event], int]]]:
        with self._changed:
            while True:
                at_us = now_us()
                stepping, later_us = self._due(at_us)
                if self._opening or self._closing or stepping or self._is_stopping:
                    closing, self._closing = self._closing, []
                    opening, self._opening = self._opening, []
                    return closing, opening, stepping
                next_us = self._ticker.next_us(at_us) if self._seats else None
                if next_us is None:
                    self._ticker.rest()
                until_us = min((each for each in (next_us, later_us) if each is not None), default=None)
                self._changed.wait(None if until_us is None else max(0, until_us - at_us) / 1e6)

    def _due(self, at_us: int) -> tuple[list[tuple[Seat, StepInputs[Event], int]], int | None]:
        """What is to be stepped now; and when to look again for a step that waits for an input."""
        is_tick = bool(self._seats) and self._ticker.is_due(at_us)
        due: list[tuple[Seat, StepInputs[Event], int]] = []
        for seat in self._seats:
            if seat.has_ended or not (is_tick or seat.inputs or seat.stepped_us is None):
                continue
            if not is_tick and (later_us := self._better_at(seat, at_us)) is not None:
                return [], later_us
            was_full = seat.inputs.is_full
            elapsed_us = 0 if seat.stepped_us is None else at_us - seat.stepped_us
            seat.stepped_us = at_us
            taken = seat.inputs.take()
            for event in taken.events:
                if isinstance(event, Key):
                    (seat.held.add if event.is_down else seat.held.discard)(event.key)
            due.append((seat, taken, elapsed_us))
            if was_full:
                self._told.has_room(seat)
        return due, None

    def _better_at(self, seat: Seat, at_us: int) -> int | None:
        """When a step that could begin now should begin instead: nobody else may wait for it, and nothing behind it."""
        if len(self._seats) > 1 or seat.last is None or self._traits.takes_one_input:
            return None
        return seat.rhythm.better_at(at_us, seat.last.compute_us)

    def _open(self, seat: Seat) -> None:
        if seat.has_ended:
            return
        with self._calling(seat) as outcome:
            seat.state = self._model.open(seat.session)
            seat.is_open = True
        if outcome.problem is not None:
            self._fail(seat, outcome)
            return
        with self._changed:
            self._seats[seat] = None

    def _close(self, seat: Seat) -> None:
        with self._changed:
            self._seats.pop(seat, None)
        if seat.is_open:
            seat.is_open = False
            with self._calling(seat) as outcome:
                self._model.close(seat.state)
            if outcome.problem is not None:
                _log.error("closing session %s raised: %s\n%s", seat.session.id, outcome.problem, outcome.traceback)
        seat.state = seat.last = None

    def _step_all(self, stepping: list[tuple[Seat, StepInputs[Event], int]]) -> None:
        if self._traits.steps_together and len(stepping) > 1 and self._step_together(stepping):
            return
        for seat, taken, elapsed_us in stepping:
            frame: Frame = None
            with self._calling(seat) as outcome:
                frame = self._model.step(seat.state, _inputs(seat, taken, elapsed_us))
            if outcome.problem is not None:
                self._fail(seat, outcome)
            else:
                self._deliver(seat, taken, frame, outcome.compute_us)

    def _step_together(self, stepping: list[tuple[Seat, StepInputs[Event], int]]) -> bool:
        seats = [seat for seat, _, _ in stepping]
        frames: list[Frame] = []
        with self._calling(*seats) as outcome:
            inputs = [_inputs(*each) for each in stepping]
            frames = list(self._model.step_many([seat.state for seat in seats], inputs))
            if len(frames) != len(seats):
                raise ValueError(f"step_many gave {len(frames)} frames for {len(seats)} sessions")
        if outcome.problem is not None:
            words = "stepping %d sessions together raised, each is stepped alone: %s\n%s"
            _log.error(words, len(seats), outcome.problem, outcome.traceback)
            return False
        for (seat, taken, _), frame in zip(stepping, frames, strict=True):
            self._deliver(seat, taken, frame, outcome.compute_us)
        return True

    def _deliver(self, seat: Seat, taken: StepInputs[Event], frame: Frame, compute_us: int) -> None:
        if not seat.has_begun:
            seat.has_begun = True
            self._told.begun(seat)
        if frame is None or seat.has_ended:
            return
        shot = RenderedFrame(frame=frame, newest=taken.newest, coalesced=taken.coalesced, compute_us=compute_us)
        with self._changed:
            seat.last = shot
            deliver = seat.deliver
        deliver(shot)

    def _fail(self, seat: Seat, outcome: _Calling) -> None:
        _log.error("the model failed in session %s: %s\n%s", seat.session.id, outcome.problem, outcome.traceback)
        with self._changed:
            seat.has_ended = True
            self._seats.pop(seat, None)
        self._told.failed(seat, outcome.problem or "")

    def _calling(self, *seats: Seat) -> _Calling:
        return _Calling(self, seats)

    def _note_call(self, call: Call | None, busy_us: int = 0) -> None:
        self.call = call
        self._busy_us += busy_us


class _Calling:
    """A call into the model: timed, watched, and what it raises is caught and let go with all that it held."""

    def __init__(self, thread: ModelThread, seats: tuple[Seat, ...]) -> None:
        self._thread = thread
        self._sessions = tuple(seat.session.id for seat in seats)
        self._began_us = 0
        self.compute_us = 0
        self.problem: str | None = None
        self.traceback = ""

    def __enter__(self) -> _Calling:
        self._began_us = now_us()
        self._thread._note_call(Call(self._began_us, self._sessions))
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: Any) -> bool:
        self.compute_us = now_us() - self._began_us
        self._thread._note_call(None, self.compute_us)
        if problem is not None:
            self.problem = last_line(problem)
            self.traceback = "".join(traceback.format_exception(problem)).rstrip()
            let_go(problem)
        return True


def _inputs(seat: Seat, taken: StepInputs[Event], elapsed_us: int) -> Inputs:
    pointer = taken.pointer
    return Inputs(
        events=taken.events,
        pointer=pointer if isinstance(pointer, Pointer) else None,
        elapsed_s=elapsed_us / 1e6,
        coalesced=taken.coalesced,
        newest=taken.newest,
        held=frozenset(seat.held),
        path=tuple(each for each in taken.path if isinstance(each, Pointer)),
        size=seat.size,
    )
