"""When the next request is sent: a closed loop holds so many under way, an open one sends at a rate, come what may.

An open loop's requests are due at times that no answer changes, and their latency counts from then: a server that
stands still for a second makes all that were due in it late, and cannot hide that by answering few (coordinated
omission). So many are under way at most; what is due beyond that waits here, and its wait is part of its latency.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

UNDER_WAY_MAX = 1_000
"""Requests that an open loop has under way at most: each holds a connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What one row asks for: `concurrency` of a closed loop, or `rate` a second of an open one; not both.

    It ends after `duration_s`, or `requests` of them. Answers are waited for; what an open loop could not send
    `overrun_s` after its last request was due is given up.
    """

    concurrency: int = 0
    rate: float = 0.0
    duration_s: float = 0.0
    requests: int = 0
    overrun_s: float = 60.0

    def planned(self) -> int:
        """Requests of an open loop."""
        return self.requests or max(1, int(round(self.rate * self.duration_s, 9)))


@dataclass(frozen=True, slots=True)
class Send:
    """Send a request now; it was due at `due_s`."""

    due_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be sent until this time, or None: until a request ends."""

    until_s: float | None


@dataclass(frozen=True, slots=True)
class RowEnd:
    """Nothing is sent any more, and nothing is under way. `unsent`: what was due and had no room in time."""

    unsent: int


Step: TypeAlias = Send | Wait | RowEnd


class Pacer:
    """The requests of one row, from `start_s` on. Times are in seconds, on any clock that only goes forward."""

    def __init__(self, shape: Shape, start_s: float) -> None:
        self._shape = shape
        self._start_s = start_s
        self._sent = 0
        self._under_way = 0

    def step(self, now_s: float) -> Step:
        """What is to be done now. One that is to be sent counts as sent."""
        return self._open(now_s) if self._shape.rate else self._closed(now_s)

    def ended(self) -> None:
        """A request has ended."""
        self._under_way -= 1

    def _closed(self, now_s: float) -> Step:
        shape = self._shape
        is_over = self._sent >= shape.requests if shape.requests else now_s >= self._start_s + shape.duration_s
        if is_over:
            return Wait(None) if self._under_way else RowEnd(0)
        if self._under_way >= shape.concurrency:
            return Wait(None)
        return self._send(now_s)

    def _open(self, now_s: float) -> Step:
        planned = self._shape.planned()
        given_up_s = self._due_s(planned - 1) + self._shape.overrun_s
        if self._sent == planned or now_s >= given_up_s:
            return Wait(None) if self._under_way else RowEnd(planned - self._sent)
        due_s = self._due_s(self._sent)
        if now_s < due_s:
            return Wait(due_s)
        return Wait(given_up_s) if self._under_way >= UNDER_WAY_MAX else self._send(due_s)

    def _due_s(self, number: int) -> float:
        return self._start_s + number / self._shape.rate

    def _send(self, due_s: float) -> Send:
        self._sent += 1
        self._under_way += 1
        return Send(due_s)
