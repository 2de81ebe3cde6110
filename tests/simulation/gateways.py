"""A simulated gateway: all its people on one stream to the scheduler, and a stream to a worker for each turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpufleet.v1 import sessions_pb2

from tests.simulation.network import Call
from tests.simulation.session_workers import TurnStream
from tests.simulation.session_world import SessionWorld

if TYPE_CHECKING:
    from tests.simulation.people import Person, Visit

RETRY_SECONDS = (0.05, 3.0)
HEALTH_SECONDS_MAX = 2.0
SILENCE_SECONDS_MAX = 10.0
"""A person whose connection is dead is taken for lost after so long without a ping."""

Request = sessions_pb2.OpenSessionRequest
Response = sessions_pb2.OpenSessionResponse


class Place:
    """One WebSocket of a person. `is_open` as the browser sees it; `is_known` as the gateway does."""

    def __init__(self, gateway: Gateway, number: int, join: sessions_pb2.JoinLine, person: Person) -> None:
        self.gateway = gateway
        self.number = number
        self.join = join
        self.person = person
        self.visit: Visit
        self.is_open = True
        self.is_known = True
        self.grant: sessions_pb2.TurnGrant | None = None
        self.stream: TurnStream | None = None
        self.has_opened = False

    def __str__(self) -> str:
        return f"{self.person.identity} at {self.gateway.name}/{self.number}"

    # --- the stream of a turn

    def dial(self, grant: sessions_pb2.TurnGrant) -> None:
        """Open a stream with a ticket."""
        world = self.gateway.world
        worker = world.workers.get(grant.endpoint)
        name = grant.endpoint.partition(":")[0]
        is_reachable = world.network.is_reachable(name) and world.network.is_reachable(self.gateway.name)
        if worker is None or not worker.is_alive or not is_reachable:
            world.after(world.network.delay(), self._unreachable, grant)
            return
        stream = TurnStream(worker, grant.epoch, lambda why: self._stream_ended(stream, why))
        older, self.stream = self.stream, stream
        if older is not None:
            # A gateway that dials anew hangs up what it has.
            world.after(world.network.delay(), older.worker.lose, older)

        def answered(why: str) -> None:
            world.after(world.network.delay(), self._answered, stream, grant, why)

        world.after(world.network.delay(), worker.open, grant.ticket, stream, answered)

    def _answered(self, stream: TurnStream, grant: sessions_pb2.TurnGrant, why: str) -> None:
        if why:
            if self.stream is stream:
                self.stream = None
            self.person.not_opened(self, why)
        elif self.stream is stream and self.is_known:
            self.has_opened = True
            self.person.opened(self, stream)
        else:
            stream.worker.lose(stream)

    def _unreachable(self, grant: sessions_pb2.TurnGrant) -> None:
        """Its health is asked for as well; then the scheduler is told."""
        self.visit.lost_stream = True
        if self.is_known and self.grant is grant:
            self.gateway.send(Request(connection=self.number, worker_unreachable=True))

    def _stream_ended(self, stream: TurnStream, why: str) -> None:
        if self.stream is stream:
            self.stream = None
            if not why and self.is_known and stream.has_step:
                self.gateway.world.met.add("a step that was under way as its stream broke")
                broken = sessions_pb2.StepBroken(epoch=stream.epoch, has_frame=stream.has_frame)
                self.gateway.world.broken_steps[stream.session] = self.gateway.world.now
                self.gateway.send(Request(connection=self.number, step_broken=broken))
            self.person.stream_ended(self, why)

    def hang_up(self) -> None:
        """Its stream to a worker, if any, is gone with it."""
        stream, self.stream = self.stream, None
        if stream is not None:
            world = self.gateway.world
            world.after(world.network.delay(), stream.worker.lose, stream)


class Gateway:
    """One gateway process; when it dies another one of that name starts."""

    def __init__(self, world: SessionWorld, name: str) -> None:
        self.world = world
        self.name = name
        self._rng = world.rng(f"gateway {name}")
        self._numbers = 0
        self.places: dict[int, Place] = {}
        self._call: Call | None = None
        world.after(0.0, self._dial)

    @property
    def is_connected(self) -> bool:
        return self._call is not None

    def _dial(self) -> None:
        if self._call is not None:
            return
        if not self.world.network.is_reachable(self.name) or self.world.scheduler is None:
            self.world.after(self._rng.uniform(*RETRY_SECONDS), self._dial)
            return
        self._call = Call(self.world, self.name, self._take, self._ended)
        self.world.serve("OpenSession", self._call)
        for place in self.places.values():
            self.send(Request(connection=place.number, join=place.join))

    def _ended(self) -> None:
        self._call = None
        for place in list(self.places.values()):
            place.person.scheduler_is_silent(place)
        self.world.after(self._rng.uniform(*RETRY_SECONDS), self._dial)

    def send(self, request: Request) -> None:
        """Without a stream there is nobody to tell."""
        if self._call is not None:
            self._call.send(request)

    def crash(self) -> None:
        """Every WebSocket breaks, and every stream."""
        self.world.note("{}: dies", self.name)
        places, self.places = list(self.places.values()), {}
        for place in places:
            place.is_known = False
            place.hang_up()
            if place.is_open:
                place.is_open = False
                self.world.after(self._rng.uniform(0.0, 3.0), place.person.connection_lost, place)
        call, self._call = self._call, None
        if call is not None:
            call.hang_up()
        self.world.after(self._rng.uniform(0.2, 3.0), self._dial)

    # --- people

    def join(self, person: Person, model: str, key: str) -> Place:
        """A WebSocket opens and says hello."""
        self._numbers += 1
        join = sessions_pb2.JoinLine(model=model, identity=person.identity, place_key=key)
        place = Place(self, self._numbers, join, person)
        self.places[place.number] = place
        self.send(Request(connection=place.number, join=join))
        return place

    def rejoin(self, place: Place) -> None:
        """Say hello again on the same connection: a turn whose stream was lost gets another ticket."""
        self.send(Request(connection=place.number, join=place.join))

    def leave(self, place: Place, how: str) -> None:
        """A WebSocket has ended: `leave`, `closed` or `disconnected`."""
        place.is_open = False
        if not place.is_known:
            return
        if how == "leave" and place.stream is not None:
            stream = place.stream
            self.world.after(self.world.network.delay(), stream.worker.leave, stream)
        place.hang_up()
        place.is_known = False
        del self.places[place.number]
        body: dict[str, Any] = {how: True}
        self.send(Request(connection=place.number, **body))

    def lose(self, place: Place) -> None:
        """A connection breaks and nobody says so: it is missed when the pings are."""
        place.is_open = False
        seconds = self._rng.choice((0.0, SILENCE_SECONDS_MAX))
        self.world.after(seconds, self.leave, place, "disconnected")

    def _take(self, message: Response) -> None:
        place = self.places.get(message.connection)
        if place is None:
            return
        key = message.place.place_key or message.grant.place_key
        if key:
            place.join.place_key = key
        match message.WhichOneof("body"):
            case "place":
                if place.is_open:
                    place.person.told_place(place, message.place)
            case "grant":
                place.grant = message.grant
                if place.is_open:
                    place.person.granted(place, message.grant)
                else:
                    place.dial(message.grant)  # nobody knows yet that nobody is there
            case "notice" if message.notice.is_end:
                del self.places[place.number]
                place.is_known = False
                place.hang_up()
                if place.is_open:
                    place.is_open = False
                    place.person.told_end(place, message.notice)
            case "notice":
                if place.is_open:
                    place.person.told_news(place, message.notice)
            case _:
                pass
