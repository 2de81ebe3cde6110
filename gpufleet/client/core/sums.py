"""Sums of what a client did, in all and over the newest batches: shares, percentiles and warnings follow from them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .outcomes import Backend

BATCHES_MAX = 1_000
"""Over so many of the newest batches shares, means and percentiles are taken."""

WARNING_ITEMS_MIN = 20
"""Of fewer items, or batches, nothing is said: one failure of three is no share."""

WARNING_BATCHES_MIN = 5


@dataclass(frozen=True, slots=True)
class Batch:
    """Items that were settled together, or a request that ended: how many got an answer, how many an error for good.

    `duration_s` is None where nothing was sent; `is_success` says of a request whether it was answered.
    """

    answered: int
    failed: int
    backend: Backend | None = None
    fallen_back: int = 0
    duration_s: float | None = None
    size: int = 0
    is_success: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Beyond which a warning is said: shares of 1, and seconds."""

    warn_success_below: float = 0.95
    warn_batch_mean_above_s: float = 0.5
    warn_gpu_share_below: float = 0.8
    warn_fallback_above: float = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of the newest batches, BATCHES_MAX at most; None where there is nothing to tell.

    Shares are of 1: `success_rate` of the items, `request_success_rate` of the requests that got an answer, `gpu_share`
    and `fallback_share` of the items with an answer. Durations are of answered requests, a batch each, in seconds.
    `items`, `answered`, `failed`, `requests`, `retries` are totals since the client was made.
    """

    items: int = 0
    answered: int = 0
    failed: int = 0
    requests: int = 0
    retries: int = 0
    success_rate: float | None = None
    request_success_rate: float | None = None
    mean_s: float | None = None
    p50_s: float | None = None
    p95_s: float | None = None
    p99_s: float | None = None
    gpu_share: float | None = None
    fallback_share: float | None = None
    batch_size_mean: float | None = None
    batch_size_max: int = 0
    batch_sizes: Mapping[int, int] = field(default_factory=dict)
    """How many requests had up to 1, 2, 4, 8 … items."""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


class Sums:
    """Of one client, or of one of its workers. `on_batch`, where it is set, is called with each batch."""

    def __init__(self) -> None:
        self._newest: deque[Batch] = deque(maxlen=BATCHES_MAX)
        self._answered = 0
        self._failed = 0
        self._requests = 0
        self.retries = 0
        self._said: frozenset[str] = frozenset()
        self.on_batch: Callable[[Batch], None] | None = None

    def add(self, batch: Batch) -> None:
        """A request ended, or items were given up."""
        self._newest.append(batch)
        self._answered += batch.answered
        self._failed += batch.failed
        self._requests += batch.duration_s is not None
        if self.on_batch is not None:
            self.on_batch(batch)

    def figures(self) -> Figures:
        """What to tell now."""
        newest = list(self._newest)
        answered, failed = sum(each.answered for each in newest), sum(each.failed for each in newest)
        requests = [each for each in newest if each.duration_s is not None]
        durations = sorted(each.duration_s for each in requests if each.is_success and each.duration_s is not None)
        sizes = [each.size for each in requests]
        return Figures(
            items=self._answered + self._failed,
            answered=self._answered,
            failed=self._failed,
            requests=self._requests,
            retries=self.retries,
            success_rate=_share(answered, answered + failed),
            request_success_rate=_share(sum(each.is_success for each in requests), len(requests)),
            mean_s=_share(sum(durations), len(durations)),
            p50_s=percentile(durations, 0.50),
            p95_s=percentile(durations, 0.95),
            p99_s=percentile(durations, 0.99),
            gpu_share=_share(sum(each.answered for each in newest if each.backend is Backend.GPU), answered),
            fallback_share=_share(sum(each.fallen_back for each in newest), answered),
            batch_size_mean=_share(sum(sizes), len(sizes)),
            batch_size_max=max(sizes, default=0),
            batch_sizes=_by_power_of_two(sizes),
        )

    def new_warnings(self, thresholds: Thresholds, *, expects_gpu: bool) -> tuple[str, ...]:
        """What is beyond a threshold and was not when this was last asked: a warning is said once, until it passes."""
        found = dict(warnings_of(self.figures(), thresholds, expects_gpu=expects_gpu, batches=len(self._newest)))
        new = tuple(text for name, text in found.items() if name not in self._said)
        self._said = frozenset(found)
        return new


def warnings_of(
    figures: Figures, thresholds: Thresholds, *, expects_gpu: bool, batches: int
) -> Iterator[tuple[str, str]]:
    """What is beyond its threshold: the name of a figure, and a sentence."""
    if figures.items < WARNING_ITEMS_MIN and batches < WARNING_BATCHES_MIN:
        return
    low, slow = thresholds.warn_success_below, thresholds.warn_batch_mean_above_s
    if figures.success_rate is not None and figures.success_rate < low:
        yield "success_rate", f"{_percent(figures.success_rate)} of the items have an answer, less than {_percent(low)}"
    if figures.mean_s is not None and figures.mean_s > slow:
        yield "mean_s", f"a batch takes {figures.mean_s * 1e3:.0f} ms in the mean, more than {slow * 1e3:.0f} ms"
    if not expects_gpu:
        return
    low, high = thresholds.warn_gpu_share_below, thresholds.warn_fallback_above
    if figures.gpu_share is not None and figures.gpu_share < low:
        yield "gpu_share", f"GPUs answered {_percent(figures.gpu_share)} of the items, less than {_percent(low)}"
    if figures.fallback_share is not None and figures.fallback_share > high:
        text = (
            f"{_percent(figures.fallback_share)} of the items were answered by a fall-back, more than {_percent(high)}"
        )
        yield "fallback_share", text


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of the values does not exceed; None of none."""
    if not ordered:
        return None
    # Rounded first: 0.95 * 20 is a little more than 19 in binary.
    rank = -int(-round(share * len(ordered), 9) // 1)
    return ordered[max(0, min(len(ordered), rank) - 1)]


def _share(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _percent(share: float) -> str:
    return f"{share * 100:.1f} %"


def _by_power_of_two(sizes: Iterable[int]) -> dict[int, int]:
    counted = Counter(1 << max(0, size - 1).bit_length() for size in sizes)
    return dict(sorted(counted.items()))
