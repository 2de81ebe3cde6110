"""Durations in bounded memory: buckets whose bounds grow by a ratio, so that a percentile has a relative error."""

from __future__ import annotations

import math
from collections import Counter

RELATIVE_ERROR = 0.005
"""A percentile differs from that of all durations by 0.5 % of itself at most; mean, least and most are exact."""

SHORTEST_S = 1e-6
LONGEST_S = 1e6
"""What is shorter or longer counts as these for percentiles."""

_GAMMA = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_LOG_GAMMA = math.log(_GAMMA)


class Histogram:
    """Of durations in seconds. It has 2,800 buckets at most, whatever is added."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self._sum_s = 0.0
        self.max_s: float | None = None

    def add(self, duration_s: float) -> None:
        """One duration; below 0 it counts as 0."""
        duration_s = max(0.0, duration_s)
        bounded_s = min(LONGEST_S, max(SHORTEST_S, duration_s))
        # A duration just on a bound may fall to either side of it: both middles are within the error.
        self._buckets[math.ceil(math.log(bounded_s / SHORTEST_S) / _LOG_GAMMA)] += 1
        self.count += 1
        self._sum_s += duration_s
        self.max_s = duration_s if self.max_s is None else max(self.max_s, duration_s)

    @property
    def mean_s(self) -> float | None:
        """The mean; None of none."""
        return self._sum_s / self.count if self.count else None

    def percentile(self, share: float) -> float | None:
        """The smallest duration that at least this share of them does not exceed, within RELATIVE_ERROR."""
        if self.max_s is None:
            return None
        # Rounded first: 0.95 * 20 is a little more than 19 in binary.
        rank = max(1, math.ceil(round(share * self.count, 9)))
        passed = 0
        for bucket in sorted(self._buckets):
            passed += self._buckets[bucket]
            if passed >= rank:
                return min(self.max_s, SHORTEST_S * _GAMMA**bucket * 2 / (_GAMMA + 1))
        raise AssertionError("fewer durations in the buckets than were counted")
