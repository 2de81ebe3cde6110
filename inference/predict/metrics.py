"""What a replica computed, as a page for Prometheus: items by status, batches by size and duration, waits, and where.

Written by hand in the text format 0.0.4, since a replica has neither port nor library for it besides its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gpufleet.runtimes.facts import RuntimeFacts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

SIZES = tuple(1 << power for power in range(13))
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class Spread:
    """How many values lie at each bound or below, and their sum."""

    bounds: Sequence[float]
    counts: Counter[int] = field(default_factory=Counter)
    total: float = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """A value that came so often."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times


@dataclass(slots=True)
class Times:
    """How often something was, and how long it took in all."""

    count: int = 0
    total_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Once more, and how long it took."""
        self.count += 1
        self.total_s += seconds


@dataclass(slots=True)
class Counts:
    """What was computed since the start: items by the status they were settled with, batches by their size, how long
    the model took for each, and how long items waited until a batch with them began. Requests have `succeeded` where
    at least one of their items has a result; `last_s` is when the last batch ended, in seconds since 1970."""

    items: Counter[int] = field(default_factory=Counter)
    batches: dict[int, Times] = field(default_factory=dict)
    compute_s: Spread = field(default_factory=lambda: Spread(SECONDS))
    waits_s: Spread = field(default_factory=lambda: Spread(SECONDS))
    succeeded: Times = field(default_factory=Times)
    failed: Times = field(default_factory=Times)
    last_s: float = 0.0

    def batch(self, size: int, seconds: float, now_s: float) -> None:
        """A batch of so many items was computed."""
        self.batches.setdefault(size, Times()).add(seconds)
        self.compute_s.add(seconds)
        self.last_s = now_s


def page(counts: Counts, waiting: int, *, is_ready: bool, runtimes: Sequence[RuntimeFacts] = ()) -> str:
    """The page. Its labels are statuses of HTTP, bounds, and what libraries say of themselves and of their devices
    (at most RUNTIMES_MAX of them); nothing that anybody typed."""
    sizes = Spread(SIZES)
    for size, times in counts.batches.items():
        sizes.add(size, times.count)
    lines = [
        *_head("gpufleet_predict_items_total", "counter", "Items, by the status with which they were settled."),
        *(
            f'gpufleet_predict_items_total{{status="{status}"}} {count}'
            for status, count in sorted(counts.items.items())
        ),
        *_spread("gpufleet_predict_batch_size", "Items of a batch that was computed.", sizes),
        *_spread("gpufleet_predict_batch_duration_seconds", "How long the model took for a batch.", counts.compute_s),
        *_spread("gpufleet_predict_wait_seconds", "How long an item waited until its batch began.", counts.waits_s),
        *_head("gpufleet_predict_waiting", "gauge", "Items that wait now."),
        f"gpufleet_predict_waiting {waiting}",
        *_head("gpufleet_predict_ready", "gauge", "Whether the model takes requests."),
        f"gpufleet_predict_ready {int(is_ready)}",
        *_runtimes(runtimes),
    ]
    return "\n".join(lines) + "\n"


def _runtimes(runtimes: Sequence[RuntimeFacts]) -> Iterator[str]:
    """Nothing where it is not known what the class computes with."""
    if not runtimes:
        return
    yield from _head("gpufleet_predict_runtime_info", "gauge", "1 for each library that the model computes with.")
    seen: dict[str, None] = {}  # two sessions may differ in what is no label, such as their limit of memory
    for each in runtimes:
        labels = {
            "device": each.device,
            "backend": "cpu" if each.device == "cpu" else "gpu",
            "runtime": each.name,
            "provider": each.provider,
            "device_name": each.device_name,
        }
        inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
        seen[f"gpufleet_predict_runtime_info{{{inside}}} 1"] = None
    yield from seen


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _head(name: str, kind: str, what: str) -> Iterator[str]:
    yield f"# HELP {name} {what}"
    yield f"# TYPE {name} {kind}"


def _spread(name: str, what: str, spread: Spread) -> Iterator[str]:
    yield from _head(name, "histogram", what)
    passed = 0
    for place, bound in enumerate(spread.bounds):
        passed += spread.counts[place]
        yield f'{name}_bucket{{le="{bound:g}"}} {passed}'
    every = passed + spread.counts[len(spread.bounds)]
    yield f'{name}_bucket{{le="+Inf"}} {every}'
    yield f"{name}_sum {spread.total!r}"
    yield f"{name}_count {every}"
