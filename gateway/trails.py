"""Traces of inputs: now and then one of a person's is followed, from here to the frame that shows it.

input to frame shown
├─ step      (worker) from when it came until the model had computed
├─ encode    (worker)
├─ sent      from when the frame came until the browser had room for it
└─ shown     until the browser said that it is on the screen
"""

from __future__ import annotations

import time

from gpufleet.telemetry import Span, Telemetry

TRACED_EVERY_S = 1.0
"""At most one input a person in this time is followed, and never two at once."""


class Trail:
    """What is followed of one person. Without telemetry each call is one comparison."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._next_s = 0.0 if telemetry.is_on else float("inf")
        self._span: Span | None = None
        self._sequence = 0
        self._frame = 0
        self._sent_ns = 0

    def begin(self, sequence: int, kind: str, session: str) -> str:
        """An input goes to the worker; answers its trace context, empty for one that is not followed."""
        if self._next_s == float("inf") or self._span is not None or time.monotonic() < self._next_s:
            return ""
        self._next_s = time.monotonic() + TRACED_EVERY_S
        self._span = self._telemetry.begin("input to frame shown", kind=kind, session=session, input=sequence)
        self._sequence, self._frame = sequence, 0
        return self._span.traceparent

    def is_shown_by(self, newest: int) -> bool:
        """Whether a frame that has just come is the first to show the input."""
        return self._span is not None and not self._frame and newest >= self._sequence

    def sent(self, frame: int, came_ns: int, size_bytes: int) -> None:
        """The first frame that shows it was sent."""
        assert self._span is not None
        self._frame, self._sent_ns = frame, time.time_ns()
        self._telemetry.record(
            "sent", begin_ns=came_ns, end_ns=self._sent_ns, parent=self._span.traceparent, bytes=size_bytes
        )

    def shown(self, frame: int) -> None:
        """The browser has shown this frame, and every one before."""
        if self._span is None or not self._frame or frame < self._frame:
            return
        parent = self._span.traceparent
        self._telemetry.record("shown", begin_ns=self._sent_ns, end_ns=time.time_ns(), parent=parent, frame=frame)
        self._end()

    def drop(self) -> None:
        """The stream is another one now, or none: no frame of it will show the input."""
        if self._span is not None:
            self._span.set(is_shown=False)
            self._end()

    def _end(self) -> None:
        assert self._span is not None
        self._span.end()
        self._span = None
