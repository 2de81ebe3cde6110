"""What a program counts and measures of itself, for OTLP and for Prometheus; nothing is imported where nobody asks.

`start` gives the program's `Metrics`: counters and histograms that are told as things happen, and instruments that are
read when somebody collects. Names are those of OpenTelemetry's semantic conventions where these have one (hardware,
system and process metrics as of 1.44) and begin with `gpufleet.` otherwise. docs/metrics.md lists all of them.

Labels are a bounded lot by rule: states, bands, outcomes, names of nodes and models; never a job, never a free text.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry import otlp

if TYPE_CHECKING:
    from opentelemetry.metrics import CallbackOptions, Observation
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader
    from prometheus_client import CollectorRegistry

log = logging.getLogger(__name__)

Labels = Mapping[str, str | int]
Reading = tuple[float, Labels]
Readings = Mapping[str, Iterable[Reading]]
"""The value of every instrument that is read, by its name: one for each set of labels."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Bounds of histograms of what a program does."""

WAITS = (1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 4 * 3_600.0, 24 * 3_600.0, 7 * 24 * 3_600.0)
"""Bounds of histograms of what people wait for."""

FRESH_S = 0.5
"""All instruments that are collected together are read once."""


class InstrumentKind(Enum):
    """What an instrument that is read tells: a value of now, a part of a sum that goes up and down, or a count."""

    GAUGE = "gauge"
    SUM = "sum"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One metric: its name and unit (UCUM) as OpenTelemetry writes them, and what it is, for people."""

    name: str
    unit: str
    doc: str
    kind: InstrumentKind = InstrumentKind.GAUGE


class Counter:
    """A count that only rises, kept by the SDK's counter; without one it is not kept."""

    def __init__(self, kept: Any = None) -> None:
        self._kept = kept

    def add(self, number: float = 1, **labels: str) -> None:
        """Count so many more."""
        if self._kept is not None:
            self._kept.add(number, labels)


class Histogram:
    """Values by size, kept by the SDK's histogram; without one they are not kept."""

    def __init__(self, kept: Any = None) -> None:
        self._kept = kept

    def record(self, value: float, **labels: str) -> None:
        """Take a value in."""
        if self._kept is not None:
            self._kept.record(value, labels)


class Metrics:
    """What a program measures; this one keeps nothing."""

    is_on = False

    def counter(self, name: str, unit: str, doc: str) -> Counter:
        """A count of things that happen. Safe on any thread."""
        return Counter()

    def histogram(self, name: str, unit: str, doc: str, bounds: Sequence[float]) -> Histogram:
        """The sizes of things that happen, by the upper bounds of their buckets. Safe on any thread."""
        return Histogram()

    def observe(self, instruments: Iterable[Instrument], read: Callable[[], Readings]) -> None:
        """Instruments that are read when somebody collects, together. `read` is called on a thread of the SDK."""

    def text(self) -> bytes:
        """Everything in Prometheus's text format. Blocks for as long as reading takes: for a thread."""
        raise RuntimeError("these metrics are not for Prometheus")

    def close(self) -> None:
        """Send what is left, for a bounded time: see otlp.close_in_time."""


OFF = Metrics()


def is_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the OTEL_ variables ask for metrics."""
    return otlp.is_wanted(otlp.Signal.METRICS, environment)


def start(
    program: str, environment: Mapping[str, str] = os.environ, *, instance: str = "", is_scraped: bool = False
) -> Metrics:
    """The program's metrics, as the OTEL_ variables say; off when they are silent and nobody scrapes.

    What they ask for and this installation lacks is a warning. Raises EXTRA_MISSING where `is_scraped` and Prometheus's
    library is missing: that was asked of this very program.
    """
    exporter = otlp.metric_exporter(environment) if is_wanted(environment) else None
    if exporter is None and not is_scraped:
        return OFF
    return measuring(program, exporter, instance=instance, is_scraped=is_scraped)


def measuring(
    program: str, exporter: MetricExporter | None, *, instance: str = "", is_scraped: bool = False
) -> Metrics:
    """Metrics that go to this exporter every OTEL_METRIC_EXPORT_INTERVAL, and are there to be scraped."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    readers: list[MetricReader] = []
    registry: CollectorRegistry | None = None
    if is_scraped:
        reader, registry = _for_prometheus()
        readers.append(reader)
    if exporter is not None:
        readers.append(PeriodicExportingMetricReader(exporter))
    provider = MeterProvider(readers, resource=otlp.resource_of(program, instance), shutdown_on_exit=False)
    metrics = _Measuring(provider, exporter, registry)
    metrics.observe(OF_PROCESS, read_process)
    return metrics


def _for_prometheus() -> tuple[MetricReader, CollectorRegistry]:
    try:
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from prometheus_client import CollectorRegistry
    except ImportError as problem:
        raise library_missing(problem) from None
    registry = CollectorRegistry(auto_describe=False)
    return PrometheusMetricReader(disable_target_info=True, scope_info_enabled=False, registry=registry), registry


def library_missing(problem: ImportError) -> GpufleetError:
    """What is said where something that scraping needs is not installed."""
    return GpufleetError(
        Reason.EXTRA_MISSING,
        f"to be scraped by Prometheus a program needs {problem.name}",
        next_step="Install it with: pip install 'gpufleet[telemetry]', or leave out metrics.port.",
    )


class _Measuring(Metrics):
    is_on = True

    def __init__(
        self, provider: MeterProvider, exporter: MetricExporter | None, registry: CollectorRegistry | None
    ) -> None:
        self._provider = provider
        self._exporter = exporter
        self._registry = registry
        self._meter = provider.get_meter("gpufleet")
        self._is_closing = False

    def counter(self, name: str, unit: str, doc: str) -> Counter:
        return Counter(self._meter.create_counter(name, unit, doc))

    def histogram(self, name: str, unit: str, doc: str, bounds: Sequence[float]) -> Histogram:
        return Histogram(self._meter.create_histogram(name, unit, doc, explicit_bucket_boundaries_advisory=bounds))

    def observe(self, instruments: Iterable[Instrument], read: Callable[[], Readings]) -> None:
        together = _Together(read)
        make = {
            InstrumentKind.GAUGE: self._meter.create_observable_gauge,
            InstrumentKind.SUM: self._meter.create_observable_up_down_counter,
            InstrumentKind.COUNT: self._meter.create_observable_counter,
        }
        for each in instruments:
            make[each.kind](each.name, [self._observed(each.name, together)], each.unit, each.doc)

    def _observed(self, name: str, together: _Together) -> Callable[[CallbackOptions], Iterable[Observation]]:
        from opentelemetry.metrics import Observation

        def observed(options: CallbackOptions) -> Iterable[Observation]:
            # At the end the event loop no longer answers what its program would have to be asked.
            readings = {} if self._is_closing else together.now()
            return [Observation(value, labels) for value, labels in readings.get(name, ())]

        return observed

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        if self._registry is None:
            return super().text()
        return generate_latest(self._registry)

    def close(self) -> None:
        self._is_closing = True
        give_up = self._exporter.shutdown if self._exporter is not None else lambda: None
        otlp.close_in_time(self._provider.shutdown, give_up, "metrics-close")


class _Together:
    """One reading for all instruments that are collected in the same moment. A reading that fails tells nothing."""

    def __init__(self, read: Callable[[], Readings]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._until_s = 0.0
        self._readings: Readings = {}

    def now(self) -> Readings:
        with self._lock:
            if time.monotonic() >= self._until_s:
                try:
                    self._readings = self._read()
                except Exception:
                    log.exception("metrics could not be read")
                    self._readings = {}
                self._until_s = time.monotonic() + FRESH_S
            return self._readings


OF_PROCESS = (
    Instrument(name="process.cpu.time", unit="s", doc="CPU time that the program used.", kind=InstrumentKind.COUNT),
    Instrument(
        name="process.memory.usage", unit="By", doc="Memory that the program has in RAM.", kind=InstrumentKind.SUM
    ),
    Instrument(name="process.uptime", unit="s", doc="How long the program has measured itself."),
)
_MEASURED_SINCE_S = time.monotonic()


def read_process() -> Readings:
    """What this process costs its machine."""
    used = os.times()
    readings: dict[str, list[Reading]] = {
        "process.cpu.time": [(used.user, {"cpu.mode": "user"}), (used.system, {"cpu.mode": "system"})],
        "process.uptime": [(time.monotonic() - _MEASURED_SINCE_S, {})],
    }
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return readings  # not Linux
    return readings | {"process.memory.usage": [(pages * os.sysconf("SC_PAGE_SIZE"), {})]}


_UNITS = {"By": "bytes", "Cel": "celsius", "W": "watts", "J": "joules", "s": "seconds", "Hz": "hertz"}


def prometheus_name(instrument: Instrument) -> str:
    """The metric's name in Prometheus: dots become underscores, the unit and `_total` are written behind.

    By OpenTelemetry's rules for Prometheus, as its collector and Prometheus's own OTLP receiver follow them. Python's
    exporter leaves a ratio's unit out; so what is exported by it has no ratios.
    """
    words = [instrument.name.replace(".", "_")]
    if unit := _UNITS.get(instrument.unit):
        words.append(unit)
    if instrument.unit == "1" and instrument.kind is InstrumentKind.GAUGE:
        words.append("ratio")
    if instrument.kind is InstrumentKind.COUNT:
        words.append("total")
    return "_".join(words)


def prometheus_label(name: str) -> str:
    """A label's name in Prometheus."""
    return name.replace(".", "_")


READ_S_MAX = 2.0
"""A loop that has not answered by then is busy or has ended: this collection goes without."""


def on_loop(
    loop: asyncio.AbstractEventLoop, read: Callable[[], Coroutine[Any, Any, Readings]]
) -> Callable[[], Readings]:
    """A function for other threads that runs `read` on the loop; nothing where the loop does not answer in time."""

    def reading() -> Readings:
        coroutine = read()
        try:
            answer = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            return {}
        try:
            return answer.result(READ_S_MAX)
        except (TimeoutError, concurrent.futures.CancelledError):
            answer.cancel()
            return {}

    return reading
