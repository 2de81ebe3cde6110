"""The training example that `make demo` submits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "train.py"
RUN_SECONDS = 250


def test_it_prints_its_loss_line_by_line_and_succeeds_when_it_fell() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("training on ")
    steps = [re.fullmatch(r"step (\d+)/200 loss (\d+\.\d{4})", line) for line in lines[1:-1]]
    assert [int(step.group(1)) for step in steps if step] == [1, *range(20, 201, 20)]
    losses = [float(step.group(2)) for step in steps if step]
    assert losses[-1] < losses[0] / 10
    assert lines[-1].startswith("done: loss ")


@pytest.mark.nightly
def test_on_a_cpu_it_has_one_thread_so_that_a_busy_machine_makes_it_no_slower_than_busy() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "2"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    assert done.stdout.startswith("training on cpu (CPU, threads: 1)"), done.stderr


@pytest.mark.nightly
def test_it_fails_when_there_were_too_few_steps_for_the_loss_to_fall() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--steps", "2"], capture_output=True, text=True, timeout=RUN_SECONDS, check=False
    )
    assert done.returncode == 1
    assert "the loss did not fall enough" in done.stderr
