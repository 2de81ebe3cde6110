"""A program in a container: how its end is told by the file that who carries it has written."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from inference.http_service.child import Exit
from inference.http_service.contained import ContainerOfProgram

CARRIED = Exit(9, "as the process said")


def told(state: Path, text: str) -> Exit:
    state.write_text(text)
    return ContainerOfProgram(Namespace(program_state=state, container_port=80)).end(CARRIED)


@pytest.mark.parametrize(
    ("exit_code", "detail", "is_out_of_memory", "end"),
    [
        (0, "", False, Exit(0, "the program ended with exit code 0")),
        (3, "", False, Exit(3, "the program ended with exit code 3")),
        (137, "", False, Exit(137, "the program was ended by SIGKILL")),
        (137, "", True, Exit(137, "the program was ended for want of memory")),
        (255, "", False, Exit(255, "the program ended with exit code 255")),
        (127, "the image has no such program: x", False, Exit(127, "the image has no such program: x")),
        (None, "", False, CARRIED),
    ],
)
def test_an_end_is_that_of_the_program(
    tmp_path: Path, exit_code: int | None, detail: str, is_out_of_memory: bool, end: Exit
) -> None:
    text = json.dumps({"exit_code": exit_code, "detail": detail, "is_out_of_memory": is_out_of_memory})
    assert told(tmp_path / "state", text) == end


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "not json", '{"exit_code": "3", "detail": "", "is_out_of_memory": 0}']
)
def test_what_cannot_be_read_says_nothing(tmp_path: Path, text: str) -> None:
    assert told(tmp_path / "state", text) == CARRIED
    (tmp_path / "state").unlink()
    assert ContainerOfProgram(Namespace(program_state=tmp_path / "state", container_port=0)).end(CARRIED) == CARRIED
