"""The turns of a worker, with all that belongs to them: seat, presence, stream. On the event loop.

`core/turns.py` decides; this carries out, and tells the scheduler's link of what has ended.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from enum import StrEnum, unique

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.model import Event, Key, Pointer, Session, Size
from gpufleet.security.tickets import TurnTicket
from gpufleet.telemetry.logs import fields
from gpufleet.telemetry.spans import OFF, Telemetry

from . import wire
from .core.inputs import Kind
from .core.presence import MOVE_MIN, Presence
from .core.turns import NotOpened, Turn, Turns
from .encoding import chosen
from .measures import UNMEASURED, Measures
from .sending import FrameSender, Outbox, Response
from .stepping import ModelThread, RenderedFrame, Seat, now_us

_log = logging.getLogger(__name__)

ENDS_KEPT_MAX = 1_000
"""Ends that the scheduler has not acknowledged; beyond it the oldest is known from the list of live turns alone."""

IDLE_US_TOLD = 2_000_000
"""Real input after so long a time without is told at once: somebody may be asked whether anybody is there."""

SEAT_WAIT_S = 3.0
"""How long a stream waits for its seat."""


@unique
class End(StrEnum):
    """Why a turn ends by the worker's word."""

    LEFT = "LEFT"
    MOVED = "MOVED"
    DISCONNECTED = "DISCONNECTED"
    MODEL_FAILED = "MODEL_FAILED"
    WORKER_LOST = "WORKER_LOST"
    DRAINING = "DRAINING"


_SENTENCES = {
    End.LEFT: "You have left.",
    End.MOVED: "Your turn goes on in another tab or window.",
    End.DISCONNECTED: "Your connection was lost for too long.",
    End.WORKER_LOST: "The model does not answer any more.",
    End.DRAINING: "This worker is being stopped.",
}


_REFUSED_AS = {NotOpened.NO_SEAT: Reason.NO_FREE_SEAT, NotOpened.DRAINING: Reason.WORKER_NOT_READY}


@dataclass(slots=True, eq=False)
class TurnStream:
    """One open stream of a turn."""

    epoch: int
    sender: FrameSender
    outbox: Outbox


@dataclass(slots=True, eq=False)
class Held:
    """A session on this worker."""

    seat: Seat
    presence: Presence = field(default_factory=Presence)
    stream: TurnStream | None = None
    followed: tuple[int, str, int] | None = None
    """An input whose way is traced: its number, its trace context, and when it came, in nanoseconds since 1970."""

    room: asyncio.Event = field(default_factory=asyncio.Event)


class Turning:
    """Opens, feeds and ends turns. `changed` is called when a report would say something new."""

    def __init__(
        self,
        model: ModelThread,
        encoders: Executor,
        *,
        changed: Callable[[], None],
        ended: Callable[[], None],
        traces: Telemetry = OFF,
        measures: Measures = UNMEASURED,
    ) -> None:
        self._traces = traces
        self._measures = measures
        self._model = model
        self._encoders = encoders
        self._changed = changed
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self.turns = Turns(0)
        self.held: dict[str, Held] = {}
        self.ends: list[sessions_pb2.TurnEnded] = []
        self._ends_count = 0
        self.is_step_late = False
        self.early_count = 0
        """Streams that wait for their seat."""
        self._freed = asyncio.Event()

    # --- opening

    def open(self, ticket: TurnTicket, wanted: inference_pb2.OpenTurn) -> TurnStream:
        """A stream with a good ticket. Raises TICKET_REFUSED, NO_FREE_SEAT or WORKER_NOT_READY."""
        found = self.turns.open(ticket.session, ticket.epoch, ticket.identity, now_us())
        if isinstance(found, NotOpened):
            raise GpufleetError(_REFUSED_AS.get(found, Reason.TICKET_REFUSED), found.value)
        held = self.held.get(ticket.session)
        if held is None:
            size = wire.size_from_proto(wanted)
            session = Session(id=ticket.session, width=size.width, height=size.height, density=size.density)
            held = self._seat(session, size)
        else:
            if held.stream is not None:
                self._finish(held.stream, wire.notice(End.MOVED, _SENTENCES[End.MOVED], is_end=True))
            self.resize(held, wanted)
        held.stream = self._stream(held, found.turn, chosen(wanted.encodings), is_resumed=found.is_resumed)
        _log.info("turn opened", extra=fields(session=ticket.session, epoch=ticket.epoch))
        held.presence.attach(now_us())
        if wanted.is_deliberate:
            held.presence.real(now_us())
        self._changed()
        return held.stream

    async def open_soon(self, ticket: TurnTicket, wanted: inference_pb2.OpenTurn) -> TurnStream:
        """As `open`, and where no seat is free it waits a little for one.

        The next person is told by a way of their own, and may be here before the word that the one before is to go.
        """
        until = self._loop.time() + SEAT_WAIT_S
        while True:
            self._freed.clear()
            try:
                return self.open(ticket, wanted)
            except GpufleetError as error:
                left_s = until - self._loop.time()
                if error.reason is not Reason.NO_FREE_SEAT or left_s <= 0:
                    raise
            self.early_count += 1
            try:
                async with asyncio.timeout(left_s):
                    await self._freed.wait()
            except TimeoutError:
                pass
            finally:
                self.early_count -= 1

    def _seat(self, session: Session, size: Size) -> Held:
        held = Held(seat=Seat(session=session, deliver=lambda _: None, size=size))
        held.presence.set_step_late(self.is_step_late, now_us())
        self.held[session.id] = held
        self._model.open(held.seat)
        return held

    def _stream(self, held: Held, turn: Turn, encoding: str, *, is_resumed: bool) -> TurnStream:
        outbox = Outbox()

        def bad_frame(why: str) -> None:
            self._failed(held, why)

        sender = FrameSender(
            encoding,
            loop=self._loop,
            encoders=self._encoders,
            send=outbox.put,
            bad_frame=bad_frame,
            traces=self._traces,
            measures=self._measures,
        )
        opened = inference_pb2.TurnOpened(
            session=turn.session, epoch=turn.epoch, encoding=encoding, is_resumed=is_resumed, move_min=MOVE_MIN
        )
        outbox.put(Response(opened=opened))

        def deliver(shot: RenderedFrame) -> None:
            if held.followed is not None:
                shot = self._trace_step(held, held.followed, shot)
            sender.offer(shot, is_alone=len(self.held) == 1)

        self._model.begin_stream(held.seat, deliver, sender.offer)
        return TurnStream(turn.epoch, sender, outbox)

    def _trace_step(self, held: Held, followed: tuple[int, str, int], shot: RenderedFrame) -> RenderedFrame:
        """On the model's thread: note the step behind a traced input."""
        number, trace, came_ns = followed
        if shot.newest < number:
            return shot
        held.followed = None
        waited_us = max(0, (time.time_ns() - came_ns) // 1_000 - shot.compute_us)
        self._traces.record(
            "step",
            begin_ns=came_ns,
            end_ns=time.time_ns(),
            parent=trace,
            waited_us=waited_us,
            compute_us=shot.compute_us,
            coalesced=shot.coalesced,
        )
        return replace(shot, trace=trace)

    # --- while it lasts

    def begun(self, seat: Seat) -> None:
        """The model has answered the session for the first time; a stream may have it already, or not yet."""
        held = self.held.get(seat.session.id)
        if held is not None and held.seat is seat:
            held.presence.begin(now_us())

    def held_by(self, session: str, stream: TurnStream) -> Held | None:
        """The session, while this very stream has it."""
        held = self.held.get(session)
        return held if held is not None and held.stream is stream else None

    def add(self, held: Held, message: inference_pb2.Input) -> None:
        """An input of the stream that has the turn. Raises INVALID_ARGUMENT."""
        kind, event = wire.input_from_proto(message)
        if message.trace_context and self._traces.is_on:
            held.followed = (message.sequence, message.trace_context, time.time_ns())
        if not self._model.add(held.seat, message.sequence, kind, event):
            raise GpufleetError(Reason.INVALID_ARGUMENT, f"input {message.sequence} does not follow the one before")
        at_us = now_us()
        idle_us = held.presence.idle_us(at_us)
        is_real = held.presence.moved(event.x, event.y, at_us) if isinstance(event, Pointer) else _is_real(event)
        if is_real or kind is Kind.BUTTON:
            self._real(held, idle_us, at_us)

    def resize(self, held: Held, wanted: inference_pb2.OpenTurn | inference_pb2.ViewSize) -> None:
        """The client's room for the picture; one that does not say it leaves it as it was."""
        size = wire.size_from_proto(wanted)
        if size != Size():
            self._model.resize(held.seat, size)

    async def wait_for_room(self, held: Held) -> None:
        """Return once a step has taken some of the inputs."""
        while held.seat.inputs.is_full and not held.seat.has_ended:
            held.room.clear()
            if held.seat.inputs.is_full:
                await held.room.wait()

    def room_made(self, seat: Seat) -> None:
        """A step has taken inputs of a session that could hold no more."""
        if (held := self.held.get(seat.session.id)) is not None:
            held.room.set()

    def still_here(self, held: Held) -> None:
        """The person says so."""
        at_us = now_us()
        self._real(held, held.presence.idle_us(at_us), at_us)

    def _real(self, held: Held, idle_us: int, at_us: int) -> None:
        held.presence.real(at_us)
        if idle_us >= IDLE_US_TOLD:
            self._changed()

    def set_step_late(self, is_late: bool) -> None:
        """Whether a step takes too long: nobody's idle time counts meanwhile."""
        if is_late == self.is_step_late:
            return
        self.is_step_late = is_late
        for held in self.held.values():
            held.presence.set_step_late(is_late, now_us())

    def live(self) -> list[sessions_pb2.LiveTurn]:
        """Every turn, for a report."""
        return [self._live(turn, self.held[turn.session], now_us()) for turn in self.turns.live()]

    def _live(self, turn: Turn, held: Held, at_us: int) -> sessions_pb2.LiveTurn:
        stream = held.stream
        return wire.live_turn(
            turn.session,
            turn.epoch,
            age_us=at_us - turn.began_us,
            idle_us=held.presence.idle_us(at_us),
            is_attached=turn.detached_us is None,
            frames_per_second=0.0 if stream is None else stream.sender.rate(at_us),
            delay_us=None if stream is None else stream.sender.delay_us,
        )

    # --- ends

    def detach(self, session: str, stream: TurnStream) -> None:
        """A stream has ended without leaving: the turn waits for the next one."""
        stream.sender.close()
        if not self.turns.detach(session, stream.epoch, now_us()):
            return
        held = self.held[session]
        held.stream = None
        held.presence.detach(now_us())
        self._model.release(held.seat)
        _log.info("turn lost its stream", extra=fields(session=session, epoch=stream.epoch))
        self._changed()

    def end(self, session: str, epoch: int, reason: str, message: str = "") -> bool:
        """End a turn of this epoch or an older one; False where a newer one has it, or none was there."""
        turn = self.turns.end(session, epoch, now_us())
        if turn is None:
            return False
        held = self.held.pop(session)
        self._model.close(held.seat)
        held.room.set()
        message = message or (_SENTENCES.get(End(reason), "") if reason in End.__members__ else "")
        if held.stream is not None:
            self._finish(held.stream, wire.notice(reason, message, is_end=True))
        _log.info("turn ended", extra=fields(session=session, epoch=turn.epoch, reason=reason))
        self._ends_count += 1
        self.ends = self.ends[-ENDS_KEPT_MAX + 1 :]
        self.ends.append(
            sessions_pb2.TurnEnded(
                session=session, epoch=turn.epoch, reason=reason, message=message, number=self._ends_count
            )
        )
        self._freed.set()
        self._changed()
        self._ended()
        return True

    def end_all(self, reason: str) -> None:
        """End every turn."""
        for turn in self.turns.live():
            self.end(turn.session, turn.epoch, reason)

    def end_overdue(self) -> None:
        """End the turns that were without a stream for too long."""
        for turn in self.turns.overdue(now_us()):
            self.end(turn.session, turn.epoch, End.DISCONNECTED)

    def acknowledged(self, number: int) -> None:
        """The scheduler has stored the ends up to this one."""
        self.ends = [each for each in self.ends if each.number > number]

    def seat_failed(self, seat: Seat, why: str) -> None:
        """The model raised in this session."""
        held = self.held.get(seat.session.id)
        if held is not None and held.seat is seat:
            self._failed(held, why)

    def _failed(self, held: Held, why: str) -> None:
        session = held.seat.session.id
        if self.held.get(session) is held:
            epoch = next(turn.epoch for turn in self.turns.live() if turn.session == session)
            self.end(session, epoch, End.MODEL_FAILED, why)

    def _finish(self, stream: TurnStream, last: Response) -> None:
        stream.sender.close()
        stream.outbox.finish(last)


def _is_real(event: Event) -> bool:
    return event.is_down and not event.is_repeat if isinstance(event, Key) else True
