"""The line that submits a job again is one line, and a shell reads the same words in it."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.render.job import job_screen
from cli.render.table import Look
from gpufleet.fleet.submitting.job_spec import command_line_of, shell_line
from tests.cli.cluster import NOW, running
from tests.rings.choosing import examples

SCRIPT = "#!/bin/sh\n#gpuctl --gpus 2\nprintf '%s\\t' \"it's\"\n"

TEXTS = st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), min_size=1, max_size=20)


def read_by_a_shell(line: str) -> list[str]:
    """The words of a command line, as bash reads them."""
    done = subprocess.run(
        ["bash", "-c", f"printf '%s\\0' {line}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
    )
    return done.stdout.decode().split("\0")[:-1]


@settings(max_examples=examples(30))
@given(words=TEXTS)
def test_any_words_are_one_line_and_come_back_from_a_shell(words: list[str]) -> None:
    line = shell_line(words)
    assert line.isprintable()
    assert read_by_a_shell(line) == words


@pytest.mark.parametrize("word", ["plain", "two words", "it's", "", "½"])
def test_what_can_be_shown_is_quoted_as_ever(word: str) -> None:
    assert "$" not in shell_line([word]) and read_by_a_shell(shell_line([word])) == [word]


def test_a_script_from_standard_input_can_be_submitted_again_by_its_line() -> None:
    job = running()
    del job.spec.argv[:]
    job.spec.argv.extend(["/bin/sh", "-c", SCRIPT])
    (shown,) = (line for line in job_screen(job, NOW, Look()) if line.startswith("  gpuctl submit"))
    assert read_by_a_shell(shown)[-3:] == ["/bin/sh", "-c", SCRIPT]
    assert shown.strip() == command_line_of(job.spec)
