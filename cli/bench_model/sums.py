"""What came of the requests of one row, and its figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .histogram import Histogram

SENTENCE_CHARACTERS_MAX = 200
UNSENT = "unsent"
"""The kind of error of what an open loop could not send in time."""


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """A request that ended. `errors` is how many of its `items` failed, by the kind of error; `sentence` tells of one.

    `is_answered`: it got an answer, be it that items of it have errors of their own; its latency counts.
    """

    due_s: float
    sent_s: float
    end_s: float
    items: int
    errors: Mapping[str, int]
    is_answered: bool
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """In milliseconds, of the requests that were answered: from when they were due until their last byte."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None

    def as_dict(self) -> dict[str, float | None]:
        """As JSON."""
        return {"mean": self.mean, "p50": self.p50, "p95": self.p95, "p99": self.p99, "max": self.max}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one row. `seconds` is from when the first request was sent until the last one ended.

    `requests_per_s` counts those that were answered, `items_per_s` items with an answer; `success_rate` is their share
    of all items, 0 to 1, None of none. `late_ms_max` is the longest that a request of an open loop was sent late.
    """

    requests: int
    answered: int
    items: int
    items_answered: int
    seconds: float
    requests_per_s: float | None
    items_per_s: float | None
    success_rate: float | None
    latency_ms: Latency
    late_ms_max: float
    errors: Mapping[str, int]
    error_sentence: str

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "requests": self.requests,
            "answered": self.answered,
            "items": self.items,
            "items_answered": self.items_answered,
            "seconds": self.seconds,
            "requests_per_s": self.requests_per_s,
            "items_per_s": self.items_per_s,
            "success_rate": self.success_rate,
            "latency_ms": self.latency_ms.as_dict(),
            "late_ms_max": self.late_ms_max,
            "errors": dict(self.errors),
            "error_sentence": self.error_sentence,
        }


class RowSums:
    """Sums of one row, in bounded memory."""

    def __init__(self) -> None:
        self._latencies = Histogram()
        self._requests = self._answered = self._items = self._failed = 0
        self._first_s: float | None = None
        self._last_s = 0.0
        self._late_s_max = 0.0
        self._errors: Counter[str] = Counter()
        self._sentence = ""

    def add(self, ended: EndedRequest) -> None:
        """A request has ended."""
        self._requests += 1
        self._items += ended.items
        self._first_s = ended.sent_s if self._first_s is None else min(self._first_s, ended.sent_s)
        self._last_s = max(self._last_s, ended.end_s)
        self._late_s_max = max(self._late_s_max, ended.sent_s - ended.due_s)
        if ended.is_answered:
            self._answered += 1
            self._latencies.add(ended.end_s - ended.due_s)
        self._note(ended.errors, ended.sentence)

    def add_unsent(self, requests: int, items: int) -> None:
        """So many were due and could not be sent, with so many items in each."""
        self._requests += requests
        self._items += requests * items
        if requests:
            self._note({UNSENT: requests * items}, "they were due, and the server had taken no more by then")

    def _note(self, errors: Mapping[str, int], sentence: str) -> None:
        self._failed += sum(errors.values())
        self._errors.update(errors)
        self._sentence = self._sentence or (sentence[:SENTENCE_CHARACTERS_MAX] if errors else "")

    def figures(self) -> Figures:
        """What to tell."""
        seconds = self._last_s - self._first_s if self._first_s is not None else 0.0
        answered = self._items - self._failed
        return Figures(
            requests=self._requests,
            answered=self._answered,
            items=self._items,
            items_answered=answered,
            seconds=seconds,
            requests_per_s=self._answered / seconds if seconds else None,
            items_per_s=answered / seconds if seconds else None,
            success_rate=answered / self._items if self._items else None,
            latency_ms=Latency(
                mean=_ms(self._latencies.mean_s),
                p50=_ms(self._latencies.percentile(0.50)),
                p95=_ms(self._latencies.percentile(0.95)),
                p99=_ms(self._latencies.percentile(0.99)),
                max=_ms(self._latencies.max_s),
            ),
            late_ms_max=self._late_s_max * 1e3,
            errors=dict(self._errors),
            error_sentence=self._sentence,
        )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
