"""The pages of docs/ that follow from tables in the code say what the tables say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpufleet.config.cli_settings import CliSettings
from gpufleet.config.program_settings import PROGRAMS, template
from gpufleet.config.settings import settings_of
from gpufleet.errors import Reason
from gpufleet.jobs.runs import StopCause
from node_agent.core.commands import NotLaunched, reason_of
from node_agent.core.expectations import Unfit
from node_agent.core.launch import REFUSES_LAUNCHES, Refusal
from node_agent.core.outcome import LaunchFailure, LossReason

DOCS = Path(__file__).parents[2] / "docs"


def rows(text: str) -> list[str]:
    """The first cells of all tables, without their backquotes."""
    return [line.split("`")[1] for line in text.splitlines() if line.startswith("| `")]


def test_every_reason_has_one_row_in_the_troubleshooting_page_and_no_row_is_stale() -> None:
    errors, _, _ = (DOCS / "troubleshooting.md").read_text().partition("## Why a job ended")
    assert sorted(rows(errors)) == sorted(Reason.__members__)


def test_every_way_that_a_job_ends_or_is_placed_again_has_a_row() -> None:
    _, _, ends = (DOCS / "troubleshooting.md").read_text().partition("## Why a job ended")
    known = {*StopCause, *LaunchFailure, *LossReason, *Unfit, *NotLaunched}
    refused = {reason_of(Refusal(reason, "")) for reason in REFUSES_LAUNCHES} - set(Reason.__members__)
    assert {str(each) for each in known} | refused <= set(rows(ends))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_configuration_page_shows_each_programs_file_as_config_init_writes_it(program: str) -> None:
    cls: type[Any] = PROGRAMS[program]
    page = (DOCS / "configuration.md").read_text()
    shown = f"```toml\n{template(cls, program)}```"
    assert shown in page, f"replace the block by what this writes: gpuctl config init {program}"


def test_the_configuration_page_has_a_row_for_every_setting_of_the_cli() -> None:
    assert rows((DOCS / "configuration.md").read_text()) == list(settings_of(CliSettings))
