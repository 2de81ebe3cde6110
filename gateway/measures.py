"""What the gateway counts and measures: people, frames, and how long it takes from an input to its frame shown."""

from __future__ import annotations

import time

from gpufleet.telemetry.metrics import OFF, Instrument, InstrumentKind, Metrics
from gpufleet.telemetry.spans import Span, Telemetry

SHOWN = (0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""Bounds of the time from an input to its frame on the screen, in seconds."""

MODELS_MAX, OTHERS = 100, "(others)"
"""Programs with metrics of their own, the first ones that were asked; the others are told together."""

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "WEBSOCKET"})
OTHER_METHODS = "_OTHER"
"""Methods that are told apart, and as what others are told."""

REQUESTS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
"""Bounds of how long requests to programs take and wait, in seconds."""

INSTRUMENTS = (
    Instrument(name="gpufleet.people", unit="{person}", doc="People who are connected.", kind=InstrumentKind.SUM),
    Instrument(name="gpufleet.connected", unit="", doc="1 while the scheduler is heard."),
    Instrument(
        name="gpufleet.program.underway",
        unit="{request}",
        doc="Requests that replicas of programs work on.",
        kind=InstrumentKind.SUM,
    ),
    Instrument(
        name="gpufleet.program.waiting",
        unit="{request}",
        doc="Requests that wait for a replica.",
        kind=InstrumentKind.SUM,
    ),
)


class Measures:
    """The gateway's counters and histograms. Off, each call is next to nothing."""

    def __init__(self, metrics: Metrics = OFF) -> None:
        self.is_on = metrics.is_on
        self._frames = metrics.counter("gpufleet.frames", "{frame}", "Frames that were sent to browsers.")
        self._bytes = metrics.counter("gpufleet.frames.io", "By", "What these frames had in all.")
        self._shown = metrics.histogram(
            "gpufleet.input.shown", "s", "From an input until a frame with it is on the screen.", SHOWN
        )
        self._requests = metrics.counter("gpufleet.program.requests", "{request}", "Requests to programs that ended.")
        self._tokens = metrics.counter("gpufleet.program.tokens", "{token}", "Tokens, as answers of programs say.")
        self._lasted = metrics.histogram(
            "gpufleet.program.request.duration", "s", "From when a replica takes a request until its end.", REQUESTS
        )
        self._waited = metrics.histogram(
            "gpufleet.program.request.wait", "s", "Until a replica takes a request, or none does in time.", REQUESTS
        )
        self._retries = metrics.counter(
            "gpufleet.program.retries", "{request}", "Requests that went to another replica after one had failed."
        )
        self._refusals = metrics.counter(
            "gpufleet.program.refusals", "{request}", "Requests for which there was no replica."
        )
        self._fallbacks = metrics.counter(
            "gpufleet.program.fallbacks", "{request}", "Requests that went to a program's CPU model in its place."
        )
        self._models: set[str] = set()
        self._refused = metrics.counter("gpufleet.people.refusals", "{person}", "People who were told to come later.")

    def sent(self, size_bytes: int) -> None:
        """A frame was sent."""
        if self.is_on:
            self._frames.add()
            self._bytes.add(size_bytes)

    def shown(self, seconds: float) -> None:
        """An input is on the screen."""
        self._shown.record(seconds)

    def answered(
        self, model: str, method: str, status: int, lasted_s: float, prompt_tokens: int, completion_tokens: int
    ) -> None:
        """A request to a program has ended, so long after a replica took it; without an answer its status is 0."""
        if not self.is_on:
            return
        model = self.label_of(model)
        kind = method if method in METHODS else OTHER_METHODS
        self._requests.add(1, model=model, method=kind, status=f"{status // 100}xx" if status else "none")
        self._lasted.record(lasted_s, model=model)
        for side, tokens in (("prompt", prompt_tokens), ("completion", completion_tokens)):
            if tokens:
                self._tokens.add(tokens, model=model, kind=side)

    def waited(self, model: str, seconds: float) -> None:
        """A request has waited for a replica of a program for so long, whether it got one or not."""
        if self.is_on:
            self._waited.record(seconds, model=self.label_of(model))

    def tried_again(self, model: str) -> None:
        """A request goes to another replica of a program, since one has failed."""
        if self.is_on:
            self._retries.add(1, model=self.label_of(model))

    def turned_away(self, model: str, reason: str) -> None:
        """A request was refused for want of a replica, with this reason of errors.py."""
        if self.is_on:
            self._refusals.add(1, model=self.label_of(model), reason=reason)

    def fell_back(self, model: str, reason: str) -> None:
        """A request that prefers a GPU goes to the CPU model, for this reason of core/gpu_choice.py."""
        if self.is_on:
            self._fallbacks.add(1, model=self.label_of(model), reason=reason)

    def label_of(self, model: str) -> str:
        """As what a program is told: its name, or as one of the others, once there are too many."""
        if model not in self._models and len(self._models) >= MODELS_MAX:
            return OTHERS
        self._models.add(model)
        return model

    def refused(self) -> None:
        """There was no room for somebody."""
        self._refused.add()


UNMEASURED = Measures()


class InputTimer:
    """Times a person's inputs, one at a time: from when it comes until the frame that shows it is on the screen."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._sequence = 0
        self._began_s = 0.0
        self._frame = 0

    def begin(self, sequence: int) -> None:
        """An input goes to the worker."""
        if self._measures.is_on and not self._sequence:
            self._sequence, self._began_s, self._frame = sequence, time.monotonic(), 0

    def sent(self, frame: int, newest: int) -> None:
        """A frame that shows inputs up to the newest was sent."""
        if self._sequence and not self._frame and newest >= self._sequence:
            self._frame = frame

    def shown(self, frame: int) -> None:
        """The browser has shown this frame, and every one before."""
        if self._frame and frame >= self._frame:
            self._measures.shown(time.monotonic() - self._began_s)
            self.drop()

    def drop(self) -> None:
        """The stream is another one now, or none."""
        self._sequence = self._frame = 0


TRACED_EVERY_S = 1.0
"""At most one input a person in this time is followed, and never two at once."""


class InputTrace:
    """Follows now and then one of a person's inputs, to the frame that shows it. Off, each call is one comparison.

    input to frame shown
    ├─ step      (worker) from when it came until the model had computed
    ├─ encode    (worker)
    ├─ sent      from when the frame came until the browser had room for it
    └─ shown     until the browser said that it is on the screen
    """

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
