"""The agent's part of each attempt's trace, below the scheduler's "launch".

launch                    until the keeper says that it runs; the job's own TRACEPARENT is this
├─ spawn                  the keeper's part of it
├─ run                    from the start of the process until its end was seen
└─ exit                   until the scheduler says that end and output are stored
"""

from __future__ import annotations

import re
import time
from collections import OrderedDict

from gpufleet.jobs.runs import RankKey
from gpufleet.telemetry.spans import Telemetry

from .core.outcome import AttemptPhase, AttemptView
from .keeper.linux import boottime_us

ENDS_FOLLOWED_MAX = 10_000
"""Attempts that have ended and are not forgotten; the exits of more are not told."""

_TRACE = re.compile(r" trace=(?P<trace>[0-9a-f-]+)")


def noted(traceparent: str) -> str:
    """What a launch notes of its trace, for the agent that sees its end, which may be a later start."""
    return f" trace={traceparent}"


class AttemptTraces:
    """Tells what became of attempts. Without telemetry each call is one comparison."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.telemetry = telemetry
        self._ends: OrderedDict[RankKey, tuple[str, int]] = OrderedDict()

    def ended(self, view: AttemptView) -> None:
        """What is known of it now; told is an end, and once."""
        if not self.telemetry.is_on or view.end is None or view.phase is AttemptPhase.FORGOTTEN:
            return
        if view.key in self._ends or (found := _TRACE.search(view.note)) is None:
            return
        parent = found["trace"]
        booted_ns = time.time_ns() - boottime_us() * 1_000
        ended_us = view.end.ended_us if view.end.ended_us is not None else boottime_us()
        started_us = view.started_us if view.started_us is not None else ended_us
        ended_ns = booted_ns + ended_us * 1_000
        self._record("run", view.key, parent, booted_ns + started_us * 1_000, ended_ns)
        self._ends[view.key] = (parent, ended_ns)
        if len(self._ends) > ENDS_FOLLOWED_MAX:
            self._ends.popitem(last=False)

    def forgotten(self, key: RankKey) -> None:
        """The scheduler has stored all of it."""
        if (end := self._ends.pop(key, None)) is not None:
            self._record("exit", key, *end, time.time_ns())

    def _record(self, step: str, key: RankKey, parent: str, begin_ns: int, end_ns: int) -> None:
        names = {"job": key.job, "attempt": key.attempt, "rank": key.rank}
        self.telemetry.record(step, begin_ns=begin_ns, end_ns=end_ns, parent=parent, **names)
