"""[handlers] of scheduler.toml: what may stand there, what is wrong with the rest, and that it is shown as read."""

from __future__ import annotations

import tomllib
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.config.handler_settings import HANDLERS, Handlers
from gpufleet.config.kinds import Unreadable

EVERYTHING = """
[handlers]
"image/*" = { model = "faces", input = "image" }
"Text/Plain" = { model = "words", path = "/count?by=line" }

[handlers."audio/*"]
command = ["transcribe", "--to", "a \\"quoted\\" word", "{file}"]
cpu_command = ["transcribe-small", "{file}"]
gpus = 2
cpus = 4
memory = "16GB"
time_limit = "1h30m"
env = { LANG = "C.UTF-8" }
"""


def read(text: str) -> Handlers:
    raw: Any = tomllib.loads(text)["handlers"]
    return HANDLERS.from_toml(raw)


def test_commands_and_models_are_read_and_shown_as_they_would_be_written() -> None:
    handlers = read(EVERYTHING)
    by_pattern = dict(handlers)
    assert list(by_pattern) == ["audio/*", "image/*", "text/plain"]
    audio = by_pattern["audio/*"]
    assert (audio.gpus, audio.cpus, audio.memory_bytes, audio.time_limit) == (2, 4, 16 * 10**9, timedelta(minutes=90))
    assert (by_pattern["image/*"].model, by_pattern["image/*"].input) == ("faces", "image")
    assert HANDLERS.from_text(HANDLERS.to_toml(handlers)) == handlers
    assert HANDLERS.to_toml(()) == "{}" and HANDLERS.from_text("{}") == ()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ('"audio" = { command = ["x"] }', "this is no content type"),
        ('"a/b" = ["x"]', "this is a table"),
        ('"a/b" = {}', "say one of command"),
        ('"a/b" = { command = ["x"], model = "m" }', "say one of command"),
        ('"a/b" = { comand = ["x"] }', "there is no comand"),
        ('"a/b" = { command = "x" }', "this is a list of words"),
        ('"a/b" = { command = [] }', "this is a list of words"),
        ('"a/b" = { command = ["{file}"] }', "the first word is the program"),
        ('"a/b" = { command = ["x", "a\\u0000b"] }', "holds NUL"),
        ('"a/b" = { command = ["x"], gpus = 0 }', "must be 1 to"),
        ('"a/b" = { command = ["x"], gpus = true }', "not a whole number"),
        ('"a/b" = { command = ["x"], time_limit = "0s" }', "must be more than 0"),
        ('"a/b" = { command = ["x"], env = { "A=B" = "c" } }', "no variable"),
        ('"a/b" = { command = ["x"], path = "/" }', "path does not go with a command"),
        ('"a/b" = { model = "m", gpus = 1 }', "gpus does not go with a model"),
        ('"a/b" = { model = "m", path = "/x", input = "y" }', "say path or input"),
        ('"a/b" = { model = "m", path = "look" }', "no path such as"),
        ('"a/b" = { model = "../m" }', "no name of a model"),
        ('"a/b" = { model = "m" }\n"A/B" = { model = "n" }', "the same pattern stands twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_pattern(said: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read(f"[handlers]\n{said}\n")
