"""What a worker counts and measures: its seats and sessions, and what each frame took."""

from __future__ import annotations

from gpufleet.telemetry.metrics import OFF, SECONDS, Instrument, InstrumentKind, Metrics

INSTRUMENTS = (
    Instrument(
        name="gpufleet.worker.sessions", unit="{session}", doc="Sessions that it holds.", kind=InstrumentKind.SUM
    ),
    Instrument(
        name="gpufleet.worker.seats", unit="{seat}", doc="Sessions that it has room for.", kind=InstrumentKind.SUM
    ),
    Instrument(name="gpufleet.worker.ready", unit="", doc="1 while its model is loaded and takes new turns."),
)


class Measures:
    """The worker's counters and histograms. Safe on any thread; off, a frame costs one comparison."""

    def __init__(self, metrics: Metrics = OFF, model: str = "") -> None:
        self.is_on = metrics.is_on
        self._model = model
        self._frames = metrics.counter("gpufleet.worker.frames", "{frame}", "Frames that were sent.")
        self._bytes = metrics.counter("gpufleet.worker.frames.io", "By", "What these frames had in all.")
        self._step = metrics.histogram(
            "gpufleet.worker.step.duration", "s", "How long the model computed for a frame that was sent.", SECONDS
        )
        self._encode = metrics.histogram(
            "gpufleet.worker.encode.duration", "s", "How long a frame took to be encoded.", SECONDS
        )

    def frame(self, *, compute_us: int, encode_s: float, size_bytes: int) -> None:
        """A frame was made and is on its way."""
        self._frames.add(model=self._model)
        self._bytes.add(size_bytes, model=self._model)
        self._step.record(compute_us / 1e6, model=self._model)
        self._encode.record(encode_s, model=self._model)


UNMEASURED = Measures()
