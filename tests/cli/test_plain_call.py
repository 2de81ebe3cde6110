"""What is read without typer is what typer reads, for every command; and what is more than that is left to it."""

from __future__ import annotations

import functools
import importlib
import random
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from cli.app import command_line
from cli.declaring import ENDS_IN_COMMAND
from cli.menu import MODULES
from cli.plain_call import command_of, plain_call
from tests.cli.conftest import Gpuctl

PLAIN = sorted(
    name
    for name in MODULES
    if isinstance(command_of(name), FunctionType)
    and getattr(command_of(name), "command_class", "") in ("", ENDS_IN_COMMAND)
)
LINES = 60
VALUES = ("7", "0", "-3", "x", "", "a=b", "table", "2h", "12", "last", "é", "=", "1,2", "99999", "-", "%j.log", "1_0")

Values = dict[str, Any]
Reads = Callable[[list[str]], Values | None]


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[Reads, Reads, list[str], list[str]]]:
    """For a command: how it is read plainly, how typer reads it (None: not at all), its flags, and what it needs."""

    def of(name: str) -> tuple[Reads, Reads, list[str], list[str]]:
        called: list[Values] = []
        found = command_of(name)

        @functools.wraps(found)
        def noted(**values: Any) -> None:
            called.append(values)

        monkeypatch.setattr(importlib.import_module(f"cli.{MODULES[name]}"), name.replace("-", "_"), noted)
        by_typer = command_line().get_command(None, name)

        def plainly(words: list[str]) -> Values | None:
            called.clear()
            call = plain_call([name, *words])
            if call is None:
                return None
            call()
            return called[0]

        def with_typer(words: list[str]) -> Values | None:
            called.clear()
            try:
                by_typer.main(args=list(words), prog_name=f"gpuctl {name}", standalone_mode=False)
            except Exception:
                return None
            return called[0] if called else None

        options = [each for each in by_typer.params if each.param_type_name == "option"]
        flags = [flag for each in options for flag in (*each.opts, *each.secondary_opts)]
        needed = [word for each in options if each.required for word in (each.opts[0], "7")]
        arguments = [each for each in by_typer.params if each not in options and each.required]
        return plainly, with_typer, flags, [*needed, *("7" for _ in arguments)]

    return of


def typed(chance: random.Random, flags: list[str]) -> list[str]:
    """A command line as somebody may type it, rightly or wrongly."""
    words: list[str] = []
    for _ in range(chance.randrange(5)):
        flag = chance.choice(flags)
        match chance.randrange(6):
            case 0:
                words.append(flag)
            case 1 | 2:
                words += [flag, chance.choice(VALUES)]
            case 3:
                words.append(f"{flag}={chance.choice(VALUES)}")
            case 4:
                words.append(chance.choice(VALUES))
            case _:
                words.append(chance.choice(["--", f"{flag}x", flag[:-1] or "-", "--help"]))
    return words + [chance.choice(VALUES) for _ in range(chance.randrange(3))]


@pytest.mark.parametrize("name", PLAIN)
def test_a_command_line_that_is_read_plainly_means_what_it_means_to_typer(
    name: str, reading: Callable[[str], tuple[Reads, Reads, list[str], list[str]]]
) -> None:
    plainly, with_typer, flags, needed = reading(name)
    chance = random.Random(name)
    lines = [[], ["--", "7"], ["7"], ["7", "8"], *(typed(chance, flags) for _ in range(LINES))]
    lines += [[flag, value, *more] for flag in flags for value in ("7", "x") for more in ([], ["7"])]
    lines += [[flag, *more] for flag in flags for more in ([], ["7"], ["x", "y"])]
    lines += [[*line, *needed] for line in lines] if needed else []
    read = {index: values for index, line in enumerate(lines) if (values := plainly(line)) is not None}
    assert len(read) > len(flags) / 2
    for index, values in read.items():
        assert values == with_typer(lines[index]), lines[index]


def test_most_commands_are_read_plainly() -> None:
    assert {"run", "submit", "queue", "logs", "job", "cancel", "wait", "top", "history"} <= set(PLAIN)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "sumbit -- true",
        "--scheduler head queue",
        "queue --help",
        "queue -h",
        "queue --limit many",
        "queue --limit 0",
        f"queue --limit {'9' * 5_000}",
        "queue -ojson",
        "queue --all=yes",
        "queue --al",
        "queue more",
        "queue --user",
        "submit",
        "submit -- -",
        "submit --output train-%j.log -- true",
        "logs --tail=-3",
        "nodes",
        "scheduler --port 0",
        "check --wait -- true",
    ],
)
def test_what_is_more_than_plain_words_is_left_to_typer(line: str) -> None:
    assert plain_call(line.split()) is None


def test_while_a_word_is_completed_nothing_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plain_call(["queue"]) is not None
    monkeypatch.setenv("_GPUCTL_COMPLETE", "complete_bash")
    assert plain_call(["queue"]) is None


@pytest.mark.parametrize("file", ["script", "project"])
def test_a_job_to_which_a_file_adds_options_is_left_to_typer(gpuctl: Gpuctl, file: str) -> None:
    script = Path("job.sh")
    script.write_text("#!/bin/sh\ntrue\n")
    assert plain_call(["submit", "--", "true"]) is not None
    if file == "script":
        script.write_text("#!/bin/sh\n#gpuctl --gpus 2\ntrue\n")
    else:
        Path("gpufleet.toml").write_text("gpus = 2\n")
    assert plain_call(["submit", "--", "./job.sh"]) is None
