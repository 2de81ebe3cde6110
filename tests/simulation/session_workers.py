"""A simulated worker: the shell around the worker's real turns, tickets and presence, as thin as it can be made."""

from __future__ import annotations

from collections.abc import Callable

from google.protobuf.timestamp_pb2 import Timestamp
from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.security.tickets import SECRET_BYTES, Refusal, read_ticket
from inference import wire
from inference.core.presence import Presence
from inference.core.turns import KEPT_US_MAX, NotOpened, Turns
from scheduler.state.ids import RankKey
from tests.simulation.network import Call
from tests.simulation.session_world import SessionWorld
from tests.simulation.world import Broken

LOADING, READY, DRAINING, FAILED = (
    inference_pb2.WORKER_STATE_LOADING,
    inference_pb2.WORKER_STATE_READY,
    inference_pb2.WORKER_STATE_DRAINING,
    inference_pb2.WORKER_STATE_FAILED,
)
PORT_FIRST = 8001
FINISH_SECONDS = 0.3
"""A worker that has nothing more to do takes so long to end: what it says last arrives first."""

RETRY_SECONDS = (0.1, 3.0)
WELCOME_SECONDS_MAX = 10.0
REPORT_SECONDS = 1.0
FRAME_SECONDS = 0.05
"""A model's first frame, where it comes behind the stream; of every second session it is there before."""

ENDS_KEPT_MAX = 1_000
SEAT_WAIT_S = 3.0


class TurnStream:
    """One stream of a turn, as the gateway that dialled it sees it: `on_end` is called once, with the worker's word."""

    def __init__(self, worker: Worker, epoch: int, on_end: Callable[[str], None]) -> None:
        self.worker = worker
        self.session = ""
        self.epoch = epoch
        self.is_open = True
        self.has_frame = False
        """Whether its client has a picture."""

        self.has_step = bool(epoch % 2)
        """Whether a step is under way whenever it breaks."""

        self._on_end = on_end

    def end(self, why: str) -> None:
        """It is over; the other side hears of it a little later."""
        if self.is_open:
            self.is_open = False
            world = self.worker.world
            world.after(world.network.delay(), self._on_end, why)


class Worker:
    """One start of a worker. Another one on the same machine has another id, another secret and no turns."""

    def __init__(
        self,
        world: SessionWorld,
        name: str,
        number: int,
        model: str,
        seats: int,
        *,
        job: RankKey | None = None,
        on_finished: Callable[[], None] = lambda: None,
    ) -> None:
        """`name` is its machine's. `job` is the rank that it is, of one that the fleet started."""
        self.world = world
        self.name = name
        self.endpoint = f"{name}:{PORT_FIRST + (number if job else 0)}"
        self._job = job
        self._on_finished = on_finished
        self.model = model
        self.start = f"{name}-{number}"
        self._rng = world.rng(f"worker {self.start}")
        self._secret = self._rng.randbytes(SECRET_BYTES) if job is None else world.worker_secrets.ticket_secret(job)
        self.is_alive = True
        self.state = LOADING
        self.turns = Turns(0)
        self._seats = seats
        self._presence: dict[str, Presence] = {}
        self._pictures: set[str] = set()
        """Sessions of which the model has given a frame."""

        self._opened = 0
        self._streams: dict[str, TurnStream] = {}
        self._waiting: list[Callable[[], None]] = []
        self._ends: list[sessions_pb2.TurnEnded] = []
        self._ends_count = 0
        self._ends_told = 0
        self._told_ends: list[sessions_pb2.TurnEnded] = []
        self._call: Call | None = None
        self._is_welcome = False
        self._dials = 0
        self._clock_ahead_s = 0.0
        self._is_telling = False
        world.workers[self.endpoint] = self
        world.note("{}: starts with {}", self.start, model)
        world.after(0.0, self._dial)
        world.after(self._rng.choice((0.2, 3.0, 8.0)), self._loaded)
        self._every_second()

    @property
    def is_by_hand(self) -> bool:
        """Whether a person has started it, and not the fleet."""
        return self._job is None

    def _now_us(self) -> int:
        return round(self.world.now * 1e6)

    def _loaded(self) -> None:
        if self.is_alive and self.state == LOADING:
            self.state = DRAINING if self.turns.is_draining else READY
            self.turns.seats = self._seats
            self._tell()

    def die(self) -> None:
        """Killed, as by -9."""
        self.is_alive = False
        self.world.note("{}: dies", self.start)
        for stream in list(self._streams.values()):
            stream.end("")
        self._streams.clear()
        if self._call is not None:
            self._call.hang_up()

    # --- the line to the scheduler

    def _dial(self) -> None:
        if not self.is_alive or self._call is not None:
            return
        self._dials += 1
        self._is_welcome = False
        call = Call(self.world, self.name, self._take, self._call_ended)
        call.token = "" if self._job is None else self.world.worker_secrets.token(self._job)
        self._call = call
        self.world.serve("ConnectWorker", call)
        job, attempt = (0, 0) if self._job is None else (self._job.job, self._job.attempt)
        hello = sessions_pb2.WorkerHello(
            model=self.model,
            endpoint=self.endpoint,
            ticket_secret=b"" if job else self._secret,
            worker_start=self.start,
            job_id=job,
            attempt=attempt,
        )
        call.send(sessions_pb2.ConnectWorkerRequest(hello=hello))
        self.world.after(WELCOME_SECONDS_MAX, self._give_up, self._dials)

    def _give_up(self, dial: int) -> None:
        if self.is_alive and dial == self._dials and self._call is not None and not self._is_welcome:
            self._call.hang_up()
            self._call_ended()

    def _call_ended(self) -> None:
        self._call = None
        self.world.after(self._rng.uniform(*RETRY_SECONDS), self._dial)

    def _take(self, message: sessions_pb2.ConnectWorkerResponse) -> None:
        if not self.is_alive:
            return
        match message.WhichOneof("command"):
            case "welcome":
                self._is_welcome = True
                self._take_time(message.welcome.server_time)
                self._ends_told = 0
                self._send()
            case "expect":
                expect = message.expect
                self._take_time(expect.server_time)
                self.turns.expect(expect.session, expect.epoch, expect.identity, self._now_us())
            case "end":
                self.end(message.end.session, message.end.epoch, message.end.reason)
            case "drain":
                self.drain()
            case "ends_acknowledged":
                number = message.ends_acknowledged.number
                self._ends = [each for each in self._ends if each.number > number]
            case _:
                pass

    def _take_time(self, server_time: Timestamp) -> None:
        self._clock_ahead_s = server_time.ToMicroseconds() / 1e6 - self.world.now

    def _tell(self) -> None:
        """What is new is told once all of this moment has happened."""
        if not self._is_telling:
            self._is_telling = True
            self.world.after(0.0, self._told)

    def _told(self) -> None:
        self._is_telling = False
        self._send()

    def _send(self) -> None:
        if self._call is None or not self._is_welcome or not self.is_alive:
            return
        for end in self._ends:
            if end.number > self._ends_told:
                self._call.send(sessions_pb2.ConnectWorkerRequest(ended=end))
                self._ends_told = end.number
                self._told_ends.append(end)
        live = [
            wire.live_turn(
                turn.session,
                turn.epoch,
                age_us=self._now_us() - turn.began_us,
                idle_us=self._presence[turn.session].idle_us(self._now_us()),
                is_attached=turn.detached_us is None,
            )
            for turn in self.turns.live()
        ]
        seats, message = self.turns.seats, self._message()
        self._call.send(
            wire.report(self.state, live, progress=1.0, message=message, load=0.0, seats=seats, suspects=())
        )

    def _message(self) -> str:
        return "a module is missing" if self.state == FAILED else ""

    def _every_second(self) -> None:
        if self.is_alive:
            if self.turns.live():
                self._send()
            self.world.after(REPORT_SECONDS, self._every_second)

    def say_again(self) -> None:
        """Tell of an end that was told before, as a message that was late would."""
        if self._call is not None and self._is_welcome and self._told_ends:
            self.world.met.add("an end that was told again")
            self._call.send(sessions_pb2.ConnectWorkerRequest(ended=self._rng.choice(self._told_ends)))

    def drain(self) -> None:
        """A person takes it down, or the scheduler: no new turns."""
        self.turns.is_draining = True
        if self.state == READY:
            self.state = DRAINING
        self._tell()
        self.world.after(FINISH_SECONDS, self._finish)

    def stop(self) -> None:
        """It is told to end, and its turns with it."""
        self.turns.is_draining = True
        self.state = DRAINING
        for turn in self.turns.live():
            self.end(turn.session, turn.epoch, "DRAINING")

    def cannot_load(self) -> None:
        """Its model needs what is not there."""
        self.state = FAILED
        self._tell()

    def _finish(self) -> None:
        """A worker that drains ends after its last turn."""
        if self.is_alive and self.state == DRAINING and not self.turns.live():
            self._on_finished()

    # --- streams of people

    def open(self, text: str, stream: TurnStream, answer: Callable[[str], None], until: float = 0.0) -> None:
        """A stream with a ticket comes; `answer` is told "" or why not. It waits a little for a free seat."""
        until = until or self.world.now + SEAT_WAIT_S
        if not self._waiting:
            self.world.after(SEAT_WAIT_S, self._try_again)
        if not self.is_alive or self.state not in (READY, DRAINING):
            answer("WORKER_NOT_READY")
            return
        now_s = self.world.now + self._clock_ahead_s
        ticket = read_ticket(text, self._secret, worker_start=self.start, now_s=now_s)
        if isinstance(ticket, Refusal):
            self.world.met.add(f"a ticket that was {ticket.name}")
            answer("TICKET_REFUSED")
            return
        before = {turn.session: turn.epoch for turn in self.turns.live()}.get(ticket.session, 0)
        found = self.turns.open(ticket.session, ticket.epoch, ticket.identity, self._now_us())
        if isinstance(found, NotOpened):
            self.world.met.add(f"a turn that was not opened: {found.name}")
            self.world.note("{}: {}.{} is not opened: {}", self.start, ticket.session, ticket.epoch, found.name)
            if found is not NotOpened.NO_SEAT:
                answer("TICKET_REFUSED")
            elif self.world.now >= until:
                answer("NO_FREE_SEAT")
            else:
                self._waiting.append(lambda: self.open(text, stream, answer, until))
            return
        if ticket.epoch <= before:
            raise Broken(f"{self.start} lets {ticket.session} in by epoch {ticket.epoch}, and had {before}")
        if len(self.turns.live()) > self._seats:
            raise Broken(f"{self.start} has {len(self.turns.live())} sessions and {self._seats} seats")
        self.world.note("{}: {}.{} opens", self.start, ticket.session, ticket.epoch)
        older = self._streams.pop(ticket.session, None)
        if older is not None:
            self.world.met.add("a stream that took over from another")
            older.end("MOVED")
        stream.session = ticket.session
        presence = self._presence.get(ticket.session)
        if presence is None:
            presence = self._presence[ticket.session] = Presence()
            if self._opened % 2:
                self.world.after(FRAME_SECONDS, self._first_frame, ticket.session, presence)
            else:
                self.world.met.add("a frame before its stream")
                self._first_frame(ticket.session, presence)
            self._opened += 1
        self._streams[ticket.session] = stream
        presence.attach(self._now_us())
        stream.has_frame = ticket.session in self._pictures
        self._tell()
        answer("")

    def _try_again(self) -> None:
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def _first_frame(self, session: str, presence: Presence) -> None:
        if self._presence.get(session) is not presence:
            return  # it has ended meanwhile
        presence.begin(self._now_us())
        self._pictures.add(session)
        if session in self._streams:
            self._streams[session].has_frame = True

    def resting(self) -> list[str]:
        """Sessions whose client has a picture, and whose idle time does not count."""
        return [
            each for each, stream in self._streams.items() if stream.has_frame and not self._presence[each].is_running
        ]

    def input(self, stream: TurnStream) -> None:
        """Real input arrives on a stream."""
        if stream.is_open and self._streams.get(stream.session) is stream:
            self._presence[stream.session].real(self._now_us())

    def leave(self, stream: TurnStream) -> None:
        """The person says so on the stream."""
        if self.is_alive:
            self.end(stream.session, stream.epoch, "LEFT")

    def lose(self, stream: TurnStream) -> None:
        """A stream has ended without leaving."""
        stream.end("")
        if self.is_alive and self.turns.detach(stream.session, stream.epoch, self._now_us()):
            del self._streams[stream.session]
            self._presence[stream.session].detach(self._now_us())
            self.world.after(KEPT_US_MAX / 1e6 + 0.25, self._end_overdue)
            self._tell()

    def fail(self) -> None:
        """The model raises in one of its sessions."""
        if self.is_alive and self.turns.live():
            turn = self._rng.choice(self.turns.live())
            self.world.met.add("a model that raised")
            self.end(turn.session, turn.epoch, "MODEL_FAILED")

    def _end_overdue(self) -> None:
        if self.is_alive:
            for turn in self.turns.overdue(self._now_us()):
                self.end(turn.session, turn.epoch, "DISCONNECTED")

    def end(self, session: str, epoch: int, reason: str) -> None:
        """End a turn of this epoch or an older one."""
        live = {turn.session: turn.epoch for turn in self.turns.live()}.get(session)
        turn = self.turns.end(session, epoch, self._now_us())
        if turn is None:
            return
        if live is not None and live > epoch:
            raise Broken(f"{self.start} ends {session}.{live} because of an older epoch, {epoch}")
        self.world.note("{}: {}.{} ends: {}", self.start, session, turn.epoch, reason)
        del self._presence[session]
        self._pictures.discard(session)
        stream = self._streams.pop(session, None)
        if stream is not None:
            stream.end(reason)
        self.world.after(0.0, self._try_again)
        self._ends_count += 1
        ended = sessions_pb2.TurnEnded(session=session, epoch=turn.epoch, reason=reason, number=self._ends_count)
        self._ends = [*self._ends, ended][-ENDS_KEPT_MAX:]
        self._tell()
        self.world.after(FINISH_SECONDS, self._finish)

    @property
    def is_connected(self) -> bool:
        """Whether a scheduler has answered on the stream that it has."""
        return self._call is not None and self._is_welcome

    def held(self) -> list[str]:
        """The sessions that it has."""
        return [turn.session for turn in self.turns.live()]
