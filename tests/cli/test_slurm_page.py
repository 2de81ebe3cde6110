"""Each command of the page for people who come from Slurm does what it says there."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from cli.app import command_line
from tests.cli import cluster
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler

PAGE = (Path(__file__).resolve().parents[2] / "docs/coming-from-slurm.md").read_text()
ROWS = [re.split(r"(?<!\\)\|", line)[1:3] for line in PAGE.splitlines() if line.startswith("| `")]
COMMANDS = [found.replace("\\|", "|") for _, cell in ROWS for found in re.findall(r"`(gpuctl [^`]*)`", cell)]
STAY = {"run", "shell", "attach", "logs"}
"""What stays until a job has ended; `queue -w` does, too."""


def test_the_page_has_tables() -> None:
    assert len(COMMANDS) > 40
    assert [cell.strip() for _, cell in ROWS if "`gpuctl" not in cell] == ["nothing"] * (len(ROWS) - len(COMMANDS))
    named = {line.split()[1] for line in COMMANDS}
    assert {"submit", "run", "queue", "cancel", "job", "nodes", "logs", "explain"} <= named


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_taken(line: str, fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    Path("train.sh").write_text("#!/bin/sh\n")
    Path("train.sh").chmod(0o755)
    running = cluster.running()
    running.id = 41
    fake.jobs = {41: running}
    fake.nodes, fake.stories = cluster.nodes(), {41: []}
    _, *words = shlex.split(line)
    if words[0] in STAY or "-w" in words:
        command: Any = command_line().get_command(None, words[0])
        command.make_context(words[0], words[1:])
        return
    done = gpuctl(*words)
    assert done.code == 0, done.err


def test_the_script_of_the_page_is_submitted_as_it_says(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    script = PAGE.partition("```sh\n")[2].partition("```")[0]
    Path("train.sh").write_text(script)
    assert gpuctl("submit", "--gpus", "4", "--", "./train.sh").code == 0
    asked = fake.asked("Submit")[0].specs[0]
    assert (asked.devices[0].count, asked.name, dict(asked.labels)) == (4, "resnet", {"team": "vision"})
    assert asked.time_limit.seconds == 4 * 3600
