"""The way to a worker: one stream a turn, whatever carries it. Frames pass unread."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

from gpufleet.v1 import inference_pb2, sessions_pb2

from gpufleet.net.local_stream import Lost

from .carriers import Carrier, Down, GrpcCarrier, Up, local_carrier
from .protocol import Hello, is_mere_move
from .workers import Workers

INPUTS_WAITING = 1_000
"""Inputs that may wait for a worker that does not take them; the browser is not read from meanwhile."""

MOVE_INTERVAL_S = 1 / 120
"""A mere move of the pointer follows another one no sooner, whatever a browser sends: two in a frame at 60 Hz."""

SHOWN_HELD_S = 0.001
"""How long the word that a frame was shown waits for an input to go with: pages say both once a screen refresh."""


class Turn:
    """One stream of one turn. `put` takes what goes up; `run` hands what comes down to `take`, one at a time.

    It is ended by `stop`: grpc.aio loses 10 kB for each read that is cancelled while it waits, and none where the call
    is cancelled instead.
    """

    def __init__(self, grant: sessions_pb2.TurnGrant, hello: Hello, workers: Workers) -> None:
        self.grant = grant
        self._hello = hello
        self._workers = workers
        self._waiting: deque[Up] = deque()
        self._wakeup = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._move: inference_pb2.Input | None = None
        """The newest mere move, until it is due."""
        self._move_due_s = 0.0
        self._moving: asyncio.TimerHandle | None = None
        self._shown = 0
        self._holding: asyncio.TimerHandle | None = None
        self.has_ended = False
        """Whether the worker said that this was the end of it; else the stream was lost, and another one may open."""

        self._under_way = UnderWay()
        self._has_told_break = False
        self._carrier: Carrier | None = None
        self._is_stopped = False
        self._is_over = False

    def stop(self) -> None:
        """Let `run` return, as soon as `take` does."""
        self._is_stopped = self.has_ended = True
        self._no_more()
        if self._carrier is not None:
            self._carrier.cancel()

    def broken(self, place_key: str) -> sessions_pb2.StepBroken | None:
        """What was under way on a stream that has broken; None where nothing was, it was ended, or this was asked."""
        if self.has_ended or self._has_told_break:
            return None
        self._has_told_break = True
        return self._under_way.broken(self.grant.epoch, place_key, asyncio.get_running_loop().time())

    async def put_input(self, said: inference_pb2.Input) -> None:
        """Send an input, waiting for room. A mere move waits until it is due, and gives way to the next one."""
        if is_mere_move(said):
            if self._move is not None:
                said.trace_context = said.trace_context or self._move.trace_context
            self._move = said
            if self._moving is None:
                loop = asyncio.get_running_loop()
                if self._move_due_s <= loop.time():
                    self._move_on()
                else:
                    self._moving = loop.call_at(self._move_due_s, self._move_on)
            return
        await self._room.wait()
        self._put_move()
        self._put(said)

    def _move_on(self) -> None:
        self._moving = None
        self._move_due_s = asyncio.get_running_loop().time() + MOVE_INTERVAL_S
        self._put_move()

    def _put_move(self) -> None:
        """Send the move that waits; where the worker has not taken the one before, in its place."""
        said, self._move = self._move, None
        newest = self._waiting[-1] if self._waiting else None
        if said is None:
            return
        if newest is not None and newest.HasField("input") and is_mere_move(newest.input):
            said.trace_context = said.trace_context or newest.input.trace_context
            newest.input.CopyFrom(said)
        else:
            self._put(said)

    def _put(self, said: inference_pb2.Input) -> None:
        self._under_way.sent(said, asyncio.get_running_loop().time())
        self.put(Up(input=said))

    def put(self, message: Up) -> None:
        """Send what is no input. What comes behind the end of the stream is lost with it."""
        if self._is_over:
            return
        self._waiting.append(message)
        if len(self._waiting) >= INPUTS_WAITING:
            self._room.clear()
        self._wakeup.set()

    def put_shown(self, frame: int) -> None:
        """Send that a frame, and every one before, is on the screen: with the next message, or alone a little later."""
        self._shown = frame
        if self._holding is None:
            self._holding = asyncio.get_running_loop().call_later(SHOWN_HELD_S, self._wakeup.set)

    async def run(self, take: Callable[[Down], Awaitable[None]]) -> None:
        """Until the turn ends or this stream does. Errors: Unreachable, Lost."""
        try:
            if (carrier := await local_carrier(self.grant)) is not None:
                await self._run(carrier, take)
            else:
                async with self._workers.reached(self.grant) as channel:
                    await self._run(GrpcCarrier(channel, self.grant), take)
        except Lost:
            if not self._is_stopped:
                raise
        except asyncio.CancelledError:
            current = asyncio.current_task()
            # A call that is cancelled raises this, too.
            if not self._is_stopped or (current is not None and current.cancelling()):
                raise
        finally:
            self._no_more()

    def _no_more(self) -> None:
        """Nothing goes up any more: who waits for room, would wait for ever, and read nothing of the browser."""
        self._is_over = True
        self._waiting.clear()
        self._room.set()

    async def _run(self, carrier: Carrier, take: Callable[[Down], Awaitable[None]]) -> None:
        self._carrier = carrier
        if self._is_stopped:
            carrier.cancel()
        opening = inference_pb2.OpenTurn(
            ticket=self.grant.ticket,
            width=self._hello.width,
            height=self._hello.height,
            encodings=self._hello.encodings,
            density=self._hello.density,
            is_deliberate=self._hello.is_deliberate,
        )
        try:
            try:
                with suppress(Lost):  # why, the reading tells
                    await carrier.write(Up(open=opening))
                first = await carrier.read()
            except Lost:
                first = None
            if first is None:
                await carrier.explain()
            else:
                await self._talk(carrier, first, take)
        finally:
            carrier.cancel()

    async def _talk(self, carrier: Carrier, first: Down, take: Callable[[Down], Awaitable[None]]) -> None:
        writing = asyncio.create_task(self._write(carrier), name="turn-writer")
        try:
            message: Down | None = first
            while message is not None:
                self.has_ended = self.has_ended or (message.HasField("notice") and message.notice.is_end)
                if message.HasField("frame"):
                    self._under_way.shown(message.frame.input_sequence)
                elif message.HasField("opened"):
                    self._under_way.opened_s = asyncio.get_running_loop().time()
                await take(message)
                message = await carrier.read()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _write(self, carrier: Carrier) -> None:
        while True:
            while (message := self._next()) is not None:
                await carrier.write(message)
            self._wakeup.clear()
            await self._wakeup.wait()

    def _next(self) -> Up | None:
        shown, self._shown = self._shown, 0
        if self._holding is not None:
            self._holding.cancel()
            self._holding = None
        if not self._waiting:
            return Up(shown=inference_pb2.FrameShown(frame=shown)) if shown else None
        message = self._waiting.popleft()
        message.shown_frame = shown
        if len(self._waiting) < INPUTS_WAITING // 2:
            self._room.set()
        return message


STEP_S_MAX = 10.0
"""A call into a model that takes longer costs the worker: what was sent before that is in no step any more, though no
frame shows it where nothing has changed by it."""

INPUTS_MAX = 1_000
"""Of more inputs without a frame the oldest are forgotten."""


@dataclass(slots=True)
class UnderWay:
    """The inputs of one stream that are under way: sent to the worker, and in no frame yet. Times are of one clock.

    Where a worker goes down in the middle of a step, this is all that anybody still knows of it.
    """

    opened_s: float | None = None
    """When the worker opened it; None as long as it has not."""

    has_frame: bool = False
    _inputs: deque[tuple[int, float, inference_pb2.Input]] = field(
        default_factory=lambda: deque[tuple[int, float, inference_pb2.Input]](maxlen=INPUTS_MAX)
    )

    def sent(self, said: inference_pb2.Input, at_s: float) -> None:
        """An input goes to the worker."""
        self._inputs.append((said.sequence, at_s, said))

    def shown(self, sequence: int) -> None:
        """A frame has come; it shows every input up to this one."""
        self.has_frame = True
        while self._inputs and self._inputs[0][0] <= sequence:
            self._inputs.popleft()

    def broken(self, epoch: int, key: str, at_s: float) -> sessions_pb2.StepBroken | None:
        """What to say of a stream that breaks now; None where no step was under way. `key` is the place's."""
        inputs = [said for _, sent_s, said in self._inputs if at_s - sent_s <= STEP_S_MAX]
        is_beginning = self.opened_s is not None and not self.has_frame and at_s - self.opened_s <= STEP_S_MAX
        if not inputs and not is_beginning:
            return None
        done = next((said for said in inputs if not is_mere_move(said)), None)
        digest = "" if done is None or not key else _digest(done, key)
        return sessions_pb2.StepBroken(epoch=epoch, input_digest=digest, has_frame=self.has_frame)


def _digest(said: inference_pb2.Input, key: str) -> str:
    """16 hexadecimal digits that are the same for the same input of one place, and tell nobody what it was."""
    alike = inference_pb2.Input()
    alike.CopyFrom(said)
    alike.sequence, alike.trace_context = 0, ""
    content = alike.SerializeToString(deterministic=True)
    return hmac.new(key.encode(), content, hashlib.sha256).hexdigest()[:16]
