"""Frames on their way to one stream: paced, encoded off the loop, sent only when they show something new.

A shot comes from the model's thread, a sign that a frame was shown from the event loop; whichever finds that a frame
may go gives it to an encoder thread. One frame of a stream is encoded at a time, so that they leave in order.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace

from gpufleet.v1 import inference_pb2

from gpufleet.telemetry.spans import OFF, Telemetry

from . import wire
from .core.pacing import Outlet, Quality
from .encoding import BadFrame, Picture, encode, is_same, picture_of
from .loading import last_line
from .measures import UNMEASURED, Measures
from .stepping import RenderedFrame, now_us

_log = logging.getLogger(__name__)

OWN_THREAD_US_MAX = 2_000
"""The frame of a shorter step is encoded on the model's own thread while it has one session only: waking another thread
costs such a model more than it wins, about a tenth of the time from input to frame."""

RATE_US_MIN = 900_000
"""Frames are counted over so long at least: of less a rate says nothing."""

Response = inference_pb2.StreamResponse


@dataclass(slots=True)
class Outbox:
    """Messages for one stream, on the event loop. It holds no more frames than the window allows."""

    is_finished: bool = False
    _messages: deque[Response] = field(default_factory=deque)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, message: Response) -> None:
        """Send it, unless the stream is finished."""
        if not self.is_finished:
            self._messages.append(message)
            self._changed.set()

    def finish(self, last: Response | None = None) -> None:
        """Nothing more after this, and after what waits already."""
        if last is not None:
            self.put(last)
        self.is_finished = True
        self._changed.set()

    async def take(self) -> Response | None:
        """The next message; None at the end."""
        while not self._messages:
            if self.is_finished:
                return None
            self._changed.clear()
            await self._changed.wait()
        return self._messages.popleft()


class FrameSender:
    """The frames of one stream. `offer` may be called on any thread, all else on the event loop."""

    def __init__(
        self,
        encoding: str,
        *,
        loop: asyncio.AbstractEventLoop,
        encoders: Executor,
        send: Callable[[Response], None],
        bad_frame: Callable[[str], None],
        traces: Telemetry = OFF,
        measures: Measures = UNMEASURED,
    ) -> None:
        self._traces = traces
        self._measures = measures
        self.encoding = encoding
        self._loop = loop
        self._encoders = encoders
        self._send = send
        self._bad_frame = bad_frame
        self._lock = threading.Lock()
        self._outlet = Outlet[RenderedFrame]()
        self._quality = Quality()
        self._shown: Picture | None = None
        self._is_closed = False
        self._rated_us, self._rated_count, self._rate = now_us(), 0, 0.0

    def offer(self, shot: RenderedFrame, *, is_alone: bool = False) -> None:
        """A new picture; it replaces the one that waits. `is_alone`: the calling thread steps no other session."""
        with self._lock:
            if self._is_closed:
                return
            if (waiting := self._outlet.waiting) is not None:
                trace = waiting.trace or shot.trace
                shot = replace(shot, coalesced=shot.coalesced + waiting.coalesced, trace=trace)
            ready = self._outlet.offer(shot, now_us())
        if ready is not None and is_alone and shot.compute_us < OWN_THREAD_US_MAX:
            self._encode_all(ready)
        else:
            self._begin(ready)

    def shown(self, number: int) -> None:
        """The client has shown this frame."""
        with self._lock:
            at_us = now_us()
            ready = self._outlet.shown(number, at_us)
            shown, replaced = self._outlet.shown_count, self._outlet.replaced_count
            self._quality.note(shown_count=shown, replaced_count=replaced, at_us=at_us)
        self._begin(ready)

    def rate(self, at_us: int) -> float:
        """Frames that were shown in a second, over the last second or the time since it was asked before."""
        with self._lock:
            passed_us, shown = at_us - self._rated_us, self._outlet.shown_count - self._rated_count
            if passed_us >= RATE_US_MIN:
                self._rate = shown * 1e6 / passed_us
                self._rated_us, self._rated_count = at_us, self._outlet.shown_count
            return self._rate

    @property
    def delay_us(self) -> int | None:
        """From sending a frame to the word that it was shown; None before the first one."""
        return self._outlet.delay_us

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            self._is_closed = True
            self._shown = None

    def _begin(self, ready: RenderedFrame | None) -> None:
        if ready is not None and not self._is_closed:
            self._encoders.submit(self._encode_all, ready)

    def _encode_all(self, ready: RenderedFrame | None) -> None:
        """On an encoder thread: this frame, and then any that has come to wait meanwhile."""
        try:
            while ready is not None and not self._is_closed:
                ready = self._encode(ready)
        except BadFrame as problem:
            self._fail(str(problem))
        except Exception as problem:
            _log.exception("a frame could not be encoded")
            self._fail(last_line(problem))

    def _encode(self, shot: RenderedFrame) -> RenderedFrame | None:
        picture = picture_of(shot.frame)
        if self._shown is not None and is_same(picture, self._shown):
            with self._lock:
                self._outlet.left_out()
                return self._outlet.next()
        begin_ns = time.time_ns() if shot.trace or self._measures.is_on else 0
        data = encode(picture, self.encoding, self._quality.value)
        if shot.trace:
            self._traces.record(
                "encode", begin_ns=begin_ns, end_ns=time.time_ns(), parent=shot.trace, encoding=self.encoding
            )
        if self._measures.is_on:
            encode_s = (time.time_ns() - begin_ns) / 1e9
            self._measures.frame(compute_us=shot.compute_us, encode_s=encode_s, size_bytes=len(data))
        with self._lock:
            if self._is_closed:
                return None
            self._shown = picture
            number = self._outlet.sent(now_us())
            ready = self._outlet.next()
        size = (picture.shape[0], picture.shape[1])
        self._on_loop(self._send, wire.frame_to_proto(shot, number, self.encoding, size, data))
        return ready

    def _fail(self, why: str) -> None:
        self._on_loop(self._bad_frame, why)

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():  # the program has ended meanwhile
                raise
