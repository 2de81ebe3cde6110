"""What the agent's own log says of its attempts: each at a quiet time, a line a second in a flood.

A line costs more than all else that the agent does for a job of /bin/true; the stories of the jobs have it all anyway.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import assert_never

from . import wire
from .core.inventory import AttemptReport, EndReport, Prepared, SpoolReport, StartReport

LINES_A_SECOND_MAX = 20
"""Lines of single attempts within a second; what comes beyond them is counted, and each is told at level debug."""

_log = logging.getLogger(__name__)


class ReportLog:
    """Takes reports in the running loop."""

    def __init__(self) -> None:
        self._lines = 0
        self._counted: Counter[str] = Counter()
        self._second: asyncio.TimerHandle | None = None

    def add(self, report: AttemptReport | Prepared) -> None:
        """Tell of one, now or in the line of its second."""
        if self._second is None:
            self._second = asyncio.get_running_loop().call_later(1.0, self._end_second)
        if self._lines < LINES_A_SECOND_MAX:
            self._lines += 1
            _log.info("%s", sentence_of(report))
            return
        self._counted[_kind_of(report)] += 1
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s", sentence_of(report))

    def close(self) -> None:
        """Tell what was counted until now."""
        if self._second is not None:
            self._second.cancel()
            self._end_second()

    def _end_second(self) -> None:
        if self._counted:
            counts = ", ".join(f"{count:,} {kind}" for kind, count in self._counted.items())
            _log.info("and in the same second: %s; each at log level debug", counts)
        self._second, self._lines = None, 0
        self._counted.clear()


def sentence_of(report: AttemptReport | Prepared) -> str:
    """A report for the agent's own log."""
    match report:
        case StartReport(view=view):
            return f"attempt {view.key} runs, pid {view.pid}"
        case EndReport(view=view):
            return f"attempt {view.key} ended: {wire.sentence_of_end(view.end) if view.end else 'unknown'}"
        case SpoolReport(view=view):
            return f"the output of attempt {view.key} " + (f"waits: {view.full}" if view.full else "goes on")
        case Prepared(key=key):
            return f"attempt {key} is prepared"
        case _:
            assert_never(report)


def _kind_of(report: AttemptReport | Prepared) -> str:
    match report:
        case StartReport():
            return "started"
        case EndReport():
            return "ended"
        case SpoolReport():
            return "changes of outputs that wait"
        case Prepared():
            return "prepared"
        case _:
            assert_never(report)
