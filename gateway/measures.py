"""What the gateway counts and measures: people, frames, and how long it takes from an input to its frame shown."""

from __future__ import annotations

import time

from gpufleet.metrics import OFF, Instrument, Kind, Metrics

SHOWN = (0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)
"""Bounds of the time from an input to its frame on the screen, in seconds."""

INSTRUMENTS = (
    Instrument(name="gpufleet.people", unit="{person}", doc="People who are connected.", kind=Kind.SUM),
    Instrument(name="gpufleet.connected", unit="", doc="1 while the scheduler is heard."),
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
        self._refused = metrics.counter("gpufleet.people.refusals", "{person}", "People who were told to come later.")

    def sent(self, size_bytes: int) -> None:
        """A frame was sent."""
        if self.is_on:
            self._frames.add()
            self._bytes.add(size_bytes)

    def shown(self, seconds: float) -> None:
        """An input is on the screen."""
        self._shown.record(seconds)

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
