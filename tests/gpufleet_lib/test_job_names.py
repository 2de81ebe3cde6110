"""What a job is called that was given no name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.names import LINE_CHARS_MAX, name_of_command


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["python", "train.py"], "python"),
        (["/opt/env/bin/python", "train.py"], "python"),
        (["./train.sh"], "train.sh"),
        (["/bin/sh", "-c", "python train.py | tee log"], "python"),
        (["bash", "-c", "/opt/bin/train --lr 0.1"], "train"),
        (["/bin/sh", "-c", "CUDA_LAUNCH_BLOCKING=1 A='b c' ./train"], "train"),
        (["/bin/sh", "-c", "(cd runs; train)"], "cd"),
        (["/bin/sh", "-c", "{ train; }"], "train"),
        (["/bin/sh", "-c", "'my train' --fast"], "my train"),
        (["/bin/sh", "-c", "# a remark\ntrain"], "train"),
        (["/bin/sh", "-c", "echo 'open"], "echo"),
        (["/bin/sh", "-c", "'open"], "sh"),
        (["/bin/sh", "-c", ""], "sh"),
        (["/bin/sh", "-c", "A=1"], "sh"),
        (["/bin/sh", "-c", "runs/"], "sh"),
        (["/bin/sh", "-c", "train", "sh", "more"], "train"),
        (["/bin/sh", "-c"], "sh"),
        (["/bin/sh", "script"], "sh"),
        (["python", "-c", "import torch"], "python"),
        ([], ""),
    ],
)
def test_it_is_the_program_or_the_first_word_of_the_shells_line(argv: list[str], name: str) -> None:
    assert name_of_command(argv) == name


@given(st.text())
def test_any_line_has_a_name_that_is_a_part_of_it_or_the_shells(line: str) -> None:
    name = name_of_command(["/bin/sh", "-c", line])
    assert name and len(name) <= max(len(line), 2) and "/" not in name


def test_only_the_beginning_of_a_long_line_is_looked_at() -> None:
    assert name_of_command(["/bin/sh", "-c", "x" * 10 * LINE_CHARS_MAX]) == "x" * LINE_CHARS_MAX
