"""Simulated people: they join, move, idle, leave, reload, come back, open second tabs, and know what they did."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from gpufleet.v1 import sessions_pb2

from scheduler.state.sessions.session import EndReason
from tests.simulation.gateways import Gateway, Place
from tests.simulation.session_workers import TurnStream
from tests.simulation.session_world import SessionWorld
from tests.simulation.world import Broken

END_REASONS = frozenset(
    {
        "TURN_ENDED",
        "IDLE",
        "LEFT",
        "MOVED",
        "CLAIM_TIMEOUT",
        "DISCONNECTED",
        "WORKER_LOST",
        "MODEL_FAILED",
        "DRAINING",
        "CLOSED",
        "REFUSED",
    }
)
"""Ends of a session (docs/rules/sessions.md 1.9)."""

REFUSALS = frozenset({"LINE_FULL", "STORE_UNAVAILABLE", "OUTCOME_UNKNOWN", "QUEUE_FULL"})
"""Why a join was not taken up; the person may ask again."""

HEARD_SECONDS_MAX = 7.5
"""An input is known to the scheduler by then: it may be 3 s on its way, and the report behind it as long."""

IDLE_SLACK_SECONDS = 0.2

RELOAD_SECONDS = 2.0
"""A page that was closed for longer was no reload (docs/rules/sessions.md 1.5): its person was away."""

INPUT_SECONDS = 3.0
"""Somebody who is at it does something at least this often."""


@dataclass
class Visit:
    """One session as the person saw it, from the join to its end: what they did, for who says why it ended."""

    model: str
    has_left: bool = False
    has_closed: bool = False
    closed_at: float = math.inf
    """Since when the page is closed."""
    was_away: bool = False
    has_moved: bool = False
    lost_stream: bool = False
    offers: int = 0
    opened: int = 0
    session: str = ""
    before: Visit | None = None
    """The one before, of which a late word may still speak."""
    inputs: deque[float] = field(default_factory=lambda: deque(maxlen=100))


class Person:
    """One identity. `places` are its open tabs, the newest last."""

    def __init__(self, world: SessionWorld, number: int, gateways: Sequence[Gateway], models: Sequence[str]) -> None:
        self.world = world
        self.identity = f"p{number}"
        self._rng = world.rng(f"person {number}")
        self._gateways = gateways
        self._models = models
        self.places: list[Place] = []
        self.visit: Visit | None = None
        self._last: Visit | None = None
        self._key = ""
        self._wants = 1 + (self._rng.random() < 0.3)
        """How many turns it wants."""
        self._is_away = False
        self.is_done = False
        self._generation = 0

    def __str__(self) -> str:
        return self.identity

    # --- coming

    def arrive(self) -> None:
        """Choose a model and join its line."""
        if not self.is_done:
            self._join(self._rng.choice(self._models), "")

    def _join(self, model: str, key: str) -> None:
        self._is_away = False
        if self.visit is None or self.visit.model != model:
            self.visit = self._last = Visit(model, before=self._last)
        else:
            self.visit.was_away |= self.world.now - self.visit.closed_at > RELOAD_SECONDS
            self.visit.closed_at = math.inf
        gateway = self._rng.choice(self._gateways)
        place = gateway.join(self, model, key)
        place.visit = self.visit
        self.places.append(place)
        self.world.note("{}: joins {} at {}/{}", self, model, gateway.name, place.number)

    def _come_back(self, model: str) -> None:
        if self._is_away and not self.is_done:
            self.world.met.add("a person who came back")
            self._join(model, self._key)

    def _after(self, seconds: float, call: Callable[[], None]) -> None:
        """Do something later, if nothing else came of it by then."""
        generation = self._generation
        self.world.after(seconds, lambda: call() if generation == self._generation and not self.is_done else None)

    @property
    def _place(self) -> Place | None:
        return self.places[-1] if self.places else None

    # --- what the page shows

    def told_place(self, place: Place, told: sessions_pb2.PlaceInfo) -> None:
        """Where it stands."""
        visit = place.visit
        self._key = told.place_key or self._key
        if not 1 <= told.place <= told.line_length:
            raise Broken(f"{self} is told place {told.place} of {told.line_length}")
        if not told.HasField("longest_wait") and not told.bound_cause:
            raise Broken(f"{self} is told no bound, and not why")
        if visit.session != told.session:
            did_something = visit.was_away or visit.has_closed or visit.has_left
            # Its end may be on its way to a page that joins just then, or was said while this gateway was not heard.
            is_over = self.world.ended.get(visit.session) in (
                EndReason.TURN_ENDED,
                EndReason.CLOSED,
                EndReason.MODEL_FAILED,
            )
            if visit.session and not did_something and not is_over:
                raise Broken(f"{self} was session {visit.session} and is now {told.session}, and did nothing")
            visit.session = told.session
            self._generation += 1
            self._change_of_mind(0.35)

    def granted(self, place: Place, grant: sessions_pb2.TurnGrant) -> None:
        """A seat: mostly it is taken at once."""
        visit = place.visit
        visit.offers += 1
        visit.session = grant.session
        self._key = grant.place_key or self._key
        roll = 1.0 if self.world.is_healed else self._rng.random()
        if roll < 0.04:
            self.world.met.add("a seat that nobody took")
            place.hang_up()
            visit.lost_stream = True
        elif place.stream is not None:
            self._dial(place, grant)
        elif roll < 0.10:
            self.world.after(self._rng.uniform(0.0, 14.0), self._dial, place, grant)
        else:
            self._dial(place, grant)

    def _dial(self, place: Place, grant: sessions_pb2.TurnGrant) -> None:
        if place.is_open and place.grant is grant:
            place.dial(grant)

    def not_opened(self, place: Place, why: str) -> None:
        """The worker did not let it in; the page waits for what the scheduler says."""

    def opened(self, place: Place, stream: TurnStream) -> None:
        """Frames come."""
        if not place.is_open:
            return
        visit = place.visit
        visit.opened += 1
        visit.inputs.append(self.world.now)
        self._generation += 1
        self._play(place, stream, self._generation)
        # Somebody's turn lasts seconds or, where nobody waits, until they have had enough.
        seconds = self._rng.uniform(1.0, 4.0) if self.world.is_healed else self._rng.choice((2.0, 8.0, 30.0, 90.0))
        self._after(seconds * self._rng.uniform(0.5, 1.5), lambda: self._had_enough(place))
        if not self.world.is_healed:
            self._change_of_mind(0.35)
            if place.grant is not None and self._rng.random() < 0.1:
                self.world.after(self._rng.uniform(0.1, 5.0), self._reuse, stream, place.grant.ticket)

    def _reuse(self, stream: TurnStream, ticket: str) -> None:
        """Somebody has got hold of a ticket that was used."""

        def answered(why: str) -> None:
            if not why:
                raise Broken(f"{stream.session} of {self} is opened a second time by one ticket")

        self.world.met.add("a ticket that was used again")
        stream.worker.open(ticket, TurnStream(stream.worker, stream.epoch, lambda why: None), answered)

    def _play(self, place: Place, stream: TurnStream, generation: int) -> None:
        if not place.is_open or place.stream is not stream or generation != self._generation:
            return
        place.visit.inputs.append(self.world.now)
        self.world.after(self.world.network.delay(), stream.worker.input, stream)
        self.world.after(self._rng.uniform(0.5, INPUT_SECONDS), self._play, place, stream, generation)

    def _had_enough(self, place: Place) -> None:
        """Leave, close the page, or walk away from it."""
        roll = 0.0 if self.world.is_healed else self._rng.random()
        if roll < 0.6:
            self._leave(place)
        elif roll < 0.75:
            self._close(place, comes_back=False)
        else:
            self.world.met.add("a person who walked away")
            self._generation += 1  # and nothing more is done: it is for the idle limit

    def stream_ended(self, place: Place, why: str) -> None:
        """No frames any more; why is the scheduler's to say. A page that hears nothing joins anew."""
        place.visit.lost_stream = True
        if not why and place.is_open and not self.is_done:
            self.world.after(self._rng.uniform(0.5, 2.0), self._join_anew, place)

    def _join_anew(self, place: Place) -> None:
        if place.is_open and place.is_known and place.stream is None and not self.is_done:
            self.world.met.add("a stream that was lost")
            for other in self.places:
                other.visit.has_moved = other.visit.has_moved or other is not place
            place.gateway.rejoin(place)

    def told_news(self, place: Place, notice: sessions_pb2.SessionNotice) -> None:
        """A warning, or that a limit is lifted."""
        visit = place.visit
        self.world.met.add(f"news: {notice.reason}")
        if notice.reason == "IDLE_WARNING":
            idle_seconds = self._idle_seconds(visit, self.world.now)
            if idle_seconds < self.world.idle_warned_seconds(visit.model) - IDLE_SLACK_SECONDS:
                raise Broken(f"{self} is asked whether anybody is there, and was: {visit}")
            if self._rng.random() < 0.3 and place.stream is not None:
                visit.inputs.append(self.world.now)
                self.world.after(self.world.network.delay(), place.stream.worker.input, place.stream)

    def told_end(self, place: Place, notice: sessions_pb2.SessionNotice) -> None:
        """It is over, and why: that has to be true."""
        self.world.met.add(f"end: {notice.reason}")
        self.world.note("{}: is told {}: {}", self, notice.reason, notice.message)
        if not notice.message or notice.reason not in END_REASONS | REFUSALS:
            raise Broken(f"{self} is told that it is over because of {notice.reason!r}: {notice.message!r}")
        self.places = [each for each in self.places if each is not place]
        self._is_true(place.visit, notice, place)
        if notice.reason == "MOVED" and self.places:
            return
        self._over()

    def _is_true(self, visit: Visit, notice: sessions_pb2.SessionNotice, place: Place) -> None:
        # An end is decided by what is known then; what is done while it waits for the store comes too late.
        decided_at = self.world.end_decided_at.get(visit.session, self.world.now)
        idle_seconds = self._idle_seconds(visit, decided_at)
        if not visit.session and visit.before is not None:
            visit = visit.before
        match notice.reason:
            case "LEFT":
                true = visit.has_left or visit.has_closed
            case "MOVED":
                # A tab whose gateway could not say so before may take over late.
                true = visit.has_moved or visit.was_away or bool(self.places)
            case "CLAIM_TIMEOUT":
                true = visit.offers >= 2 or visit.was_away
            case "IDLE":
                true = visit.opened > 0 and idle_seconds > self.world.idle_seconds(visit.model) - IDLE_SLACK_SECONDS
            case "TURN_ENDED":
                # The end may be heard before the first frame: by a page that was loaded anew, or whose stream was cut.
                same = visit.before if visit.before is not None and visit.before.session == visit.session else visit
                true = visit.opened + same.opened > 0 or visit.lost_stream
            case "DISCONNECTED":
                was_closed = self.world.now - visit.closed_at > RELOAD_SECONDS
                true = visit.was_away or visit.lost_stream or was_closed
            case "CLOSED":
                true = not visit.session or self.world.was_closed(visit.session)
            case _:
                true = True
        if not true:
            raise Broken(f"{place} is told {notice.reason}, which is not true: {visit}, {idle_seconds:.1f} s idle")

    def scheduler_is_silent(self, place: Place) -> None:
        """The page says so."""
        place.visit.was_away = True

    def connection_lost(self, place: Place) -> None:
        """The WebSocket is gone: come back, or not."""
        self.places = [each for each in self.places if each is not place]
        place.visit.was_away = True
        if not self.places:
            self._go_away(self._rng.choice((0.5, 3.0, 10.0, 14.0, 40.0, 90.0)), place.join.model)

    def _idle_seconds(self, visit: Visit, at: float) -> float:
        """How long nothing was done by then, but for what could not be known; of a page that just came, for ever."""
        known = [each for each in visit.inputs if each <= at - HEARD_SECONDS_MAX]
        return at - max(known, default=-1e9)

    # --- changes of mind

    def _change_of_mind(self, chance: float) -> None:
        if self.world.is_healed or self._rng.random() > chance:
            return
        what = self._rng.choice((self._leave, self._reload, self._break_off, self._second_tab, self._other_model))
        place = self._place
        if place is not None:
            self._after(self._rng.expovariate(1 / 25.0), lambda: what(place))

    def _leave(self, place: Place) -> None:
        if place.is_open and place is self._place:
            self.world.note("{}: leaves", self)
            place.visit.has_left = True
            place.gateway.leave(place, "leave")
            self.places.remove(place)
            self._over()

    def _reload(self, place: Place) -> None:
        self._close(place, comes_back=True)

    def _close(self, place: Place, *, comes_back: bool) -> None:
        if not place.is_open or place is not self._place:
            return
        self.world.note("{}: closes the page", self)
        place.visit.has_closed, place.visit.closed_at = True, self.world.now
        place.gateway.leave(place, "closed")
        self.places.remove(place)
        if comes_back:
            self._go_away(self._rng.choice((0.2, 1.0, 1.8, 4.0)), place.join.model)
        else:
            self._over()

    def _break_off(self, place: Place) -> None:
        if place.is_open and place is self._place:
            self.world.note("{}: its connection breaks", self)
            place.gateway.lose(place)
            self.connection_lost(place)

    def _go_away(self, seconds: float, model: str) -> None:
        self._generation += 1
        self._is_away = True
        if self._rng.random() < 0.15 and not self.world.is_healed:
            self.is_done = True
            self.world.met.add("a person who never came back")
            return
        self._after(seconds, lambda: self._come_back(model))

    def _second_tab(self, place: Place) -> None:
        if place.is_open:
            self.world.met.add("a second tab")
            place.visit.has_moved = True
            self._join(place.join.model, self._rng.choice(("", self._key)))

    def _other_model(self, place: Place) -> None:
        others = [model for model in self._models if model != place.join.model]
        if place.is_open and others:
            self.world.met.add("a person who changed lines")
            place.visit.has_moved = True
            self._join(self._rng.choice(others), "")

    def _over(self) -> None:
        """A session is over: another one, later, or enough."""
        self._generation += 1
        others = list(self.places)
        for place in others:
            place.gateway.leave(place, "disconnected")
        self.places.clear()
        self.visit = None
        self._wants -= 1
        if self._wants > 0 and not self.world.is_healed:
            self._after(self._rng.uniform(0.1, 20.0), self.arrive)
        else:
            self.is_done = True
