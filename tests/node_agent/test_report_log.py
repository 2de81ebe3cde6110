"""What an agent's own log says in a flood of attempts."""

from __future__ import annotations

import logging

import pytest

from gpufleet.jobs.runs import RankKey
from node_agent.core.inventory import EndReport, StartReport
from node_agent.core.outcome import AttemptPhase, AttemptView
from node_agent.report_log import LINES_A_SECOND_MAX, ReportLog


def started(job_id: int) -> StartReport:
    view = AttemptView(
        key=RankKey.parse(f"{job_id}.1.0"), phase=AttemptPhase.RUNNING, keeper_id="k", directory="/spool", pid=42
    )
    return StartReport(view)


async def test_each_attempt_has_a_line_at_a_quiet_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = ReportLog()
    for job_id in range(1, LINES_A_SECOND_MAX + 1):
        log.add(started(job_id))
    log.close()
    assert caplog.messages == [f"attempt {job_id}/1 runs, pid 42" for job_id in range(1, LINES_A_SECOND_MAX + 1)]


async def test_beyond_that_a_second_has_one_line_with_their_counts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = ReportLog()
    for job_id in range(1, LINES_A_SECOND_MAX + 4):
        log.add(started(job_id))
    log.add(EndReport(started(1).view))
    assert len(caplog.messages) == LINES_A_SECOND_MAX
    log.close()
    assert caplog.messages[LINES_A_SECOND_MAX:] == [
        "and in the same second: 3 started, 1 ended; each at log level debug"
    ]
    log.add(started(99))
    assert caplog.messages[-1] == "attempt 99/1 runs, pid 42"
    log.close()


async def test_at_level_debug_each_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = ReportLog()
    for job_id in range(1, LINES_A_SECOND_MAX + 3):
        log.add(started(job_id))
    log.close()
    last = LINES_A_SECOND_MAX + 2
    assert f"attempt {last}/1 runs, pid 42" in caplog.messages
