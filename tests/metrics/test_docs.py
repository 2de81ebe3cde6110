"""docs/metrics.md names every metric that there is, and none that there is not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from gateway import measures as gateway
from gpufleet.client import meter
from gpufleet.telemetry import device_metrics, metrics
from inference import measures as worker
from node_agent.machine import OF_HOST
from scheduler.leading import shown as leading
from scheduler.metrics import fleet, measures, rendering

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text()


class Noting(metrics.Metrics):
    """Notes what is made of it."""

    is_on = True

    def __init__(self) -> None:
        self.names: set[str] = set()

    def counter(self, name: str, unit: str, doc: str) -> metrics.Counter:
        self.names.add(name)
        return metrics.Counter()

    def histogram(self, name: str, unit: str, doc: str, bounds: Sequence[float]) -> metrics.Histogram:
        self.names.add(name)
        return metrics.Histogram()


def there_are() -> Iterator[str]:
    noted = Noting()
    for made in (measures.EngineMeasures, gateway.Measures, worker.Measures):
        made(noted)
    yield from noted.names
    read = (*device_metrics.INSTRUMENTS, *fleet.INSTRUMENTS, *gateway.INSTRUMENTS, *worker.INSTRUMENTS)
    read += (*leading.INSTRUMENTS, *OF_HOST, *metrics.OF_PROCESS, rendering.AGE, rendering.HELD, rendering.LEFT_OUT)
    yield from (each.name for each in read)
    yield from (each.name for each in meter.NAMES)


def test_the_page_names_each_metric() -> None:
    tables = PAGE.partition("## What there is")[2].partition("## Bounds")[0]
    rows = [line.split("|")[1] for line in tables.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`([a-z_.]+)`", row)}
    assert named == set(there_are())
