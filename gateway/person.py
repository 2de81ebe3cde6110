"""One person in a browser: a place in a line, then a turn, on one WebSocket."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from gpufleet.v1 import inference_pb2, sessions_pb2
from starlette.websockets import WebSocket, WebSocketDisconnect

from gpufleet.errors import GpufleetError, invalid
from gpufleet.net.local_stream import Lost
from gpufleet.telemetry.spans import OFF, Telemetry

from . import protocol
from .carriers import Unreachable
from .lines import Lines, Place, Response
from .measures import UNMEASURED, InputTimer, InputTrace, Measures
from .turn import Turn
from .workers import Workers

log = logging.getLogger(__name__)

HELLO_S_MAX = 10.0
"""How long a browser may take to say hello."""

SILENT_S_MAX = 10.0
"""A connection that says nothing for so long is lost: browsers ping every 5 s (docs/rules/sessions.md 1.5)."""

HELD_UP_S = 0.1
"""So long sockets are looked at once more before somebody counts as silent: either event loop has read them then."""

NEWS_WAITING = 1_000
"""Texts that may wait for a browser that does not read."""

READ_AT_ONCE = 64
"""After so many messages of one browser that came together, it is the others' turn, and that of the answers."""

SEND_S_MAX = 10.0
"""A browser that has no room for a message for so long is left."""

TRIES_MAX = 8
TRY_AGAIN_S = 0.25
"""A stream that is lost is opened again so often, after a pause that grows by this; a frame begins the count anew."""

STOP_S_MAX = 1.0
"""How long the stream of a person who has gone may take to end."""

CLEAN_CODES = (1000, 1001)
"""Codes of a page that was closed or loaded anew."""

CLOSED_BY_US, MESSAGE_REFUSED, SILENT, TOO_FAST = 1000, 4400, 4408, 4429


class Person:
    """Made for each WebSocket; `serve` lasts as long as it."""

    def __init__(
        self,
        socket: WebSocket,
        identity: str,
        lines: Lines,
        workers: Workers,
        messages_per_second_max: float,
        telemetry: Telemetry = OFF,
        measures: Measures = UNMEASURED,
        address: str = "",
        login_token: str = "",
    ) -> None:
        self._socket = socket
        self._login_token = login_token
        self._address = address
        self._identity = identity
        self._lines = lines
        self._workers = workers
        self._trail = InputTrace(telemetry)
        self._measures = measures
        self._timer = InputTimer(measures)
        self._messages_max = float(messages_per_second_max)
        self._place: Place | None = None
        self._turn: Turn | None = None
        self._turning: asyncio.Task[None] | None = None
        self._news: asyncio.Queue[str | None] = asyncio.Queue()
        self._telling: asyncio.Task[None] | None = None
        self._frame = 0
        self._stream_base = 0
        self._newest = 0
        self._tries = 0
        self._key = ""
        self._worker = ""

    async def serve(self) -> None:
        """Until the browser leaves or the session ends."""
        hello = await self._hello()
        if hello is None:
            return
        join = sessions_pb2.JoinLine(
            model=hello.model,
            identity=self._identity,
            place_key=hello.place_key,
            keeps_other=hello.keeps_other,
            address=self._address,
            pass_phrase=hello.pass_phrase,
            login_token=self._login_token,
        )
        self._hello_said = hello
        self._place = self._lines.join(join, self)
        telling = self._telling = asyncio.create_task(self._tell(), name="person-news")
        reading = asyncio.create_task(self._read(), name="person-reader")
        how: dict[str, bool] = {"disconnected": True}
        try:
            done, _ = await asyncio.wait({telling, reading}, return_when=asyncio.FIRST_COMPLETED)
            if reading in done:
                how = reading.result()
        finally:
            for task in (telling, reading):
                task.cancel()
            await asyncio.gather(telling, reading, return_exceptions=True)
            self._lines.leave(self._place, **how)
            await self._end_turn()

    async def _hello(self) -> protocol.Hello | None:
        try:
            return protocol.read_hello(await self._text_within(HELLO_S_MAX))
        except TimeoutError:
            await self._close(SILENT)
        except WebSocketDisconnect:
            pass
        except GpufleetError as error:
            await self._refuse(error)
        return None

    async def _text_within(self, seconds: float) -> str:
        """The next text; raises TimeoutError when nobody has said any for so long.

        What has come while this program was held up counts: the time is over then before any socket is looked at.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await self._text()
        async with asyncio.timeout(HELD_UP_S):
            return await self._text()

    async def _text(self) -> str:
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        text = message.get("text")
        if text is None:
            raise invalid("message", "must be a text")
        return str(text)

    async def _refuse(self, error: GpufleetError, code: int = MESSAGE_REFUSED) -> None:
        await self._close(code, protocol.error_text(error.message, error.next_step))

    async def _close(self, code: int, last: str = "") -> None:
        """Close with these last words, if the browser takes them."""
        # It may have gone meanwhile, or the scheduler's news have closed the connection.
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(SEND_S_MAX):
                if last:
                    await self._socket.send_text(last)
                await self._socket.close(code)

    # --- what the browser says

    async def _read(self) -> dict[str, bool]:
        """Take the browser's messages; answers how it left."""
        allowed, since, read = self._messages_max, time.monotonic(), 0
        while True:
            try:
                text = await self._text_within(SILENT_S_MAX)
                read += 1
                if read % READ_AT_ONCE == 0:
                    await asyncio.sleep(0)
                now = time.monotonic()
                allowed = min(self._messages_max, allowed + (now - since) * self._messages_max) - 1
                since = now
                if allowed < 0:
                    await self._refuse(invalid("message", "comes too fast"), TOO_FAST)
                    return {"disconnected": True}
                said = protocol.read(text)
            except TimeoutError:
                await self._close(SILENT)
                return {"disconnected": True}
            except WebSocketDisconnect as left:
                return {"closed": True} if left.code in CLEAN_CODES else {"disconnected": True}
            except GpufleetError as error:
                await self._refuse(error)
                return {"disconnected": True}
            match said:
                case protocol.Leave():
                    if self._turn is not None:
                        self._turn.put(inference_pb2.StreamRequest(leave=True))
                    await self._close(CLOSED_BY_US, protocol.end_text("LEFT", "You have left."))
                    return {"leave": True}
                case protocol.Ping(number=number):
                    self._say(protocol.pong_text(number))
                case protocol.Shown(frame=frame):
                    self._shown(frame)
                case protocol.Resized(width=width, height=height, density=density):
                    self._resized(width, height, density)
                case protocol.StillHere():
                    if self._turn is not None:
                        self._turn.put(inference_pb2.StreamRequest(still_here=True))
                case inference_pb2.Input() if said.sequence <= self._newest:
                    await self._refuse(invalid("seq", f"must be higher than that of the input before, {self._newest}"))
                    return {"disconnected": True}
                case inference_pb2.Input():
                    self._newest = said.sequence
                    if self._turn is not None:
                        self._timer.begin(said.sequence)
                        kind = said.WhichOneof("kind") or ""
                        if followed := self._trail.begin(said.sequence, kind, self._turn.grant.session):
                            said.trace_context = followed
                        await self._turn.put_input(said)

    def _resized(self, width: int, height: int, density: float) -> None:
        """For the turn that is open, and for the streams to come."""
        self._hello_said = replace(self._hello_said, width=width, height=height, density=density)
        if self._turn is not None:
            size = inference_pb2.ViewSize(width=width, height=height, density=density)
            self._turn.put(inference_pb2.StreamRequest(resized=size))

    def _shown(self, frame: int) -> None:
        """Frames are numbered on through a person's streams; each stream counts its own from 1."""
        self._trail.shown(frame)
        self._timer.shown(frame)
        own = frame - self._stream_base
        if self._turn is not None and own > 0:
            self._turn.put_shown(own)

    # --- what the scheduler says

    def on_told(self, message: Response) -> None:
        """A place, a seat, or news; called by the line."""
        match message.WhichOneof("body"):
            case "place":
                self._stop_turn()  # the seat is lost, and the place is in the line
                self._key = message.place.place_key or self._key
                self._say(protocol.place_text(message.place))
            case "grant":
                self._key = message.grant.place_key or self._key
                self._begin_turn(message.grant)
            case "notice" if message.notice.is_end:
                assert self._place is not None
                self._lines.forget(self._place)
                self._say(protocol.end_text(message.notice.reason, message.notice.message))
                self._news.put_nowait(None)
            case "notice":
                notice = message.notice
                remaining_s = notice.remaining.ToMilliseconds() / 1e3 if notice.HasField("remaining") else None
                self._say(protocol.notice_text(notice.reason, notice.message, remaining_s))
            case _:
                pass

    def on_silence(self) -> None:
        """The scheduler is away."""
        message = "the scheduler is not heard just now; your place or turn is kept"
        self._say(protocol.notice_text("SCHEDULER_AWAY", message))

    def _say(self, text: str) -> None:
        """Have a text sent; a browser that takes none any more is left."""
        self._news.put_nowait(text)
        if self._news.qsize() > NEWS_WAITING and self._telling is not None:
            self._telling.cancel()

    async def _tell(self) -> None:
        """Send news in order; ends behind the end of the session."""
        while (text := await self._news.get()) is not None:
            async with asyncio.timeout(SEND_S_MAX):
                await self._socket.send_text(text)
            self._news.task_done()
        await self._socket.close(CLOSED_BY_US)

    # --- the turn

    def _begin_turn(self, grant: sessions_pb2.TurnGrant) -> None:
        """Open a stream; it takes over from an older one of the same session, which the worker ends."""
        self._stop_turn()
        self._worker = grant.worker
        self._trail.drop()
        self._timer.drop()
        self._turn = Turn(grant, self._hello_said, self._workers)
        # A stream that is opened once more for this page is opened by itself.
        self._hello_said = replace(self._hello_said, is_deliberate=False)
        self._stream_base = self._frame
        self._turning = asyncio.create_task(self._run_turn(self._turn), name=f"turn-{grant.session}")

    def _stop_turn(self) -> None:
        """The seat is another one, or none: what was under way on it is told first."""
        if self._turn is not None:
            self._tell_break(self._turn)
            self._turn.stop()

    def _tell_break(self, turn: Turn) -> None:
        broken = turn.broken(self._key)
        if broken is not None and self._place is not None:
            self._lines.step_broke(self._place, broken)

    async def _run_turn(self, turn: Turn) -> None:
        try:
            await turn.run(partial(self._on_worker_said, turn))
        except TimeoutError:
            log.info("session %s ends: its browser takes no frame", turn.grant.session)
            if self._telling is not None:
                self._telling.cancel()
        except (Unreachable, GpufleetError) as problem:
            log.warning("worker %s of session %s: %s", turn.grant.endpoint, turn.grant.session, problem)
            if self._place is not None:
                self._lines.worker_is_unreachable(self._place)
        except Lost as problem:
            log.info("the stream of session %s ended: %s", turn.grant.session, problem)
            self._tell_break(turn)
            await self._open_again(turn)
        else:
            self._tell_break(turn)
            await self._open_again(turn)
        finally:
            if self._turn is turn:
                self._turn = None
                self._trail.drop()
                self._timer.drop()

    async def _open_again(self, turn: Turn) -> None:
        """The stream is lost, or was refused while the worker still ends another turn: ask for a new ticket.

        Where the worker is lost, too, the scheduler says so meanwhile, and this turn is none any more.
        """
        if turn.has_ended or self._tries >= TRIES_MAX:
            return
        self._tries += 1
        await asyncio.sleep(TRY_AGAIN_S * self._tries)
        if self._turn is turn and not turn.has_ended and self._place is not None:
            log.info("session %s is opened again", turn.grant.session)
            self._lines.join_again(self._place)

    async def _end_turn(self) -> None:
        """The person has gone: end the stream, also where a frame waits for a browser that does not take it."""
        if self._turn is not None:
            self._turn.stop()
        if self._turning is not None:
            await asyncio.wait({self._turning}, timeout=STOP_S_MAX)
            self._turning.cancel()
            await asyncio.gather(self._turning, return_exceptions=True)

    async def _on_worker_said(self, turn: Turn, message: Any) -> None:
        if turn is not self._turn:
            return  # another stream has taken over
        match message.WhichOneof("body"):
            case "frame":
                self._frame = self._stream_base + message.frame.sequence
                self._tries = 0
                is_followed = self._trail.is_shown_by(message.frame.input_sequence)
                came_ns = time.time_ns() if is_followed else 0
                self._timer.sent(self._frame, message.frame.input_sequence)
                async with asyncio.timeout(SEND_S_MAX):
                    await self._socket.send_bytes(protocol.frame_bytes(message.frame, self._frame))
                self._measures.sent(len(message.frame.data))
                if is_followed:
                    self._trail.sent(self._frame, came_ns, len(message.frame.data))
            case "opened":
                # Behind the news that wait: a place that came after its turn would be taken for the newer of the two.
                self._say(protocol.turn_text(message.opened, self._key, self._worker))
                async with asyncio.timeout(SEND_S_MAX):
                    await self._news.join()
            case _:
                pass  # why a turn ended is the scheduler's to say
