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

from gpufleet.telemetry import Telemetry

from .clocks import boottime_us
from .core.outcome import AttemptKey, AttemptPhase, AttemptView

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
        self._ends: OrderedDict[AttemptKey, tuple[str, int]] = OrderedDict()

    def ended(self, view: AttemptView) -> None:
        """What is known of it now; told is an end, and once."""
        if not self.telemetry.is_on or view.end is None or view.phase is AttemptPhase.FORGOTTEN:
            return
        if view.key in self._ends or (found := _TRACE.search(view.note)) is None:
            return
        key, parent = view.key, found["trace"]
        booted_ns = time.time_ns() - boottime_us() * 1_000
        ended_us = view.end.ended_us if view.end.ended_us is not None else boottime_us()
        started_us = view.started_us if view.started_us is not None else ended_us
        ended_ns = booted_ns + ended_us * 1_000
        self.telemetry.record(
            "run",
            begin_ns=booted_ns + started_us * 1_000,
            end_ns=ended_ns,
            parent=parent,
            job=key.job_id,
            attempt=key.attempt,
            rank=key.rank,
        )
        self._ends[key] = (parent, ended_ns)
        if len(self._ends) > ENDS_FOLLOWED_MAX:
            self._ends.popitem(last=False)

    def forgotten(self, key: AttemptKey) -> None:
        """The scheduler has stored all of it."""
        if (end := self._ends.pop(key, None)) is not None:
            parent, begin_ns = end
            self.telemetry.record(
                "exit",
                begin_ns=begin_ns,
                end_ns=time.time_ns(),
                parent=parent,
                job=key.job_id,
                attempt=key.attempt,
                rank=key.rank,
            )
