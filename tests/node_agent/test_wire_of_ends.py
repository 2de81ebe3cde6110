"""What the scheduler is told of the start of a rank by its end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, JobId, RankKey
from node_agent import wire
from node_agent.core.outcome import AttemptEnd, AttemptPhase, AttemptView, LaunchFailure, Offsets
from node_agent.keeper import records
from node_agent.keeper.records import Record
from node_agent.keeper.state_dir import StateDir

KEY = RankKey(JobId(1), 1, 0)
END = AttemptEnd(status=ExitCode(code=0), output_ends=Offsets())
VIEW = AttemptView(key=KEY, phase=AttemptPhase.ENDED, keeper_id="k", directory="/d", started_us=3_000_000, end=END)


def test_an_end_carries_its_start_unless_its_command_never_ran() -> None:
    told = wire.exited_to_proto(VIEW, 10_000_000)
    assert told.started_ago.ToMicroseconds() == 7_000_000
    failed = replace(VIEW, end=replace(END, failure=LaunchFailure.COMMAND_NOT_FOUND))
    for view in (failed, replace(VIEW, started_us=None)):
        assert not wire.exited_to_proto(view, 10_000_000).HasField("started_ago")


def test_a_record_of_another_boot_started_at_the_zero_of_this_ones_clock_at_the_latest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "boot_id", lambda: "now")
    record = Record(key=KEY, keeper_id="k", boot_id="now", note="", started_us=3_000_000, end=END)
    for boot, started_us in (("now", 3_000_000), ("before", 0)):
        view = records.view_of(replace(record, boot_id=boot), AttemptPhase.ENDED, StateDir(tmp_path))
        assert view.started_us == started_us
