"""What takes files that come by ingest, in a settings file: a command or a model for each pattern of content types.

[handlers]
"audio/*" = { command = ["transcribe", "{file}"], cpu_command = ["transcribe-small", "{file}"], gpus = 1 }
"image/*" = { model = "faces", input = "image" }
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from gpufleet.config.kinds import DURATION, INTEGER, SIZE, TEXT, Kind, Unreadable, key, quoted, table_of
from gpufleet.config.routing_settings import PATTERNS_MAX, pattern_of
from gpufleet.text.spelling import did_you_mean

FILE_WORD = "{file}"
"""What stands in a command for the file's path."""

WORDS_MAX, WORD_BYTES_MAX = 1_000, 4_096
"""Words of a handler's command, and the bytes of one."""

ENV_MAX = 100
"""Variables that a handler's command is given."""

CPUS_MAX, GPUS_MAX = 100_000, 10_000
MEMORY_BYTES_MAX = 2**50

_EXAMPLE = '{ "audio/*" = { command = ["transcribe", "{file}"] } }'
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PATH = re.compile(r"/[!-~]{0,1023}")
_INPUT = re.compile(r"[A-Za-z0-9_.-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerSettings:
    """What is done with a file: a command runs as a job, or a served model is asked.

    Of a command: `cpu_command` runs in its place without a GPU, empty: the same one; with one it asks for `gpus`, for
    `cpus` and `memory_bytes`, and may run for `time_limit`, None: as long as it takes. Of a model: the file is posted
    to `path` of the served program, or, where `input` is named, is that input of a request of the Open Inference
    Protocol.
    """

    command: tuple[str, ...] = ()
    cpu_command: tuple[str, ...] = ()
    gpus: int = 1
    cpus: int = 1
    memory_bytes: int = 0
    time_limit: timedelta | None = None
    env: tuple[tuple[str, str], ...] = ()
    model: str = ""
    path: str = "/"
    input: str = ""


Handlers = tuple[tuple[str, HandlerSettings], ...]
"""By pattern of content types, in the order of the patterns."""

_DEFAULTS = HandlerSettings()
_NAMES = {each.name.removesuffix("_bytes"): each.name for each in fields(HandlerSettings)}
"""What an entry says, and the field that it is."""

_OF_COMMAND = ("command", "cpu_command", "gpus", "cpus", "memory", "time_limit", "env")
_OF_MODEL = ("model", "path", "input")


def _from_toml(raw: Any) -> Handlers:
    if not isinstance(raw, dict):
        raise Unreadable(f"this is a table such as {_EXAMPLE}")
    if len(raw) > PATTERNS_MAX:
        raise Unreadable(f"{len(raw):,} patterns are more than the {PATTERNS_MAX:,} that are taken")
    found: dict[str, HandlerSettings] = {}
    for name, table in raw.items():
        pattern = pattern_of(name)
        if pattern in found:
            raise Unreadable(f"{quoted(name)}: the same pattern stands twice")
        found[pattern] = _handler(name, table)
    return tuple(sorted(found.items()))


def _handler(pattern: str, table: Any) -> HandlerSettings:
    if not isinstance(table, dict):
        raise Unreadable(f'{quoted(pattern)}: this is a table with a command = […] or a model = "NAME"')
    values: dict[str, Any] = {}
    for name, raw in table.items():
        field = _NAMES.get(name)
        if field is None:
            raise Unreadable(f"{quoted(pattern)}: there is no {name}{did_you_mean(name, tuple(_NAMES))}")
        try:
            values[field] = _READ[name](raw)
        except Unreadable as why:
            raise Unreadable(f"{quoted(pattern)}: {name}: {why}") from None
    if bool(values.get("command")) is bool(values.get("model")):
        raise Unreadable(f'{quoted(pattern)}: say one of command = […] and model = "NAME"')
    kind, others = ("command", _OF_MODEL) if values.get("command") else ("model", _OF_COMMAND)
    for name in others:
        if name in table:
            raise Unreadable(f"{quoted(pattern)}: {name} does not go with a {kind}")
    if "path" in table and "input" in table:
        raise Unreadable(f"{quoted(pattern)}: say path or input, not both: an input has a path of its own")
    return HandlerSettings(**values)


def _command(raw: Any) -> tuple[str, ...]:
    if not isinstance(raw, list) or not raw or not all(isinstance(each, str) for each in raw):
        raise Unreadable(f'this is a list of words, such as ["transcribe", "{FILE_WORD}"]')
    if len(raw) > WORDS_MAX:
        raise Unreadable(f"{len(raw):,} words are more than the {WORDS_MAX:,} that are taken")
    for word in raw:
        if "\0" in word or len(word.encode(errors="surrogatepass")) > WORD_BYTES_MAX:
            raise Unreadable(f"a word holds NUL, or more than {WORD_BYTES_MAX:,} bytes")
    if not raw[0] or FILE_WORD in raw[0]:
        raise Unreadable("the first word is the program")
    return tuple(raw)


def _environment(raw: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, dict) or not all(isinstance(each, str) for each in raw.values()):
        raise Unreadable('this is a table of strings, such as { LANG = "C.UTF-8" }')
    if len(raw) > ENV_MAX:
        raise Unreadable(f"{len(raw):,} variables are more than the {ENV_MAX:,} that are taken")
    for name, value in raw.items():
        if not _VARIABLE.fullmatch(name) or "\0" in value:
            raise Unreadable(f"{quoted(name)} is no variable that a program can have")
    return tuple(sorted(raw.items()))


def _number(kind: Kind[int], low: int, high: int) -> Any:
    def read(raw: Any) -> int:
        value = kind.from_toml(raw)
        if not low <= value <= high:
            raise Unreadable(f"must be {kind.to_toml(low)} to {kind.to_toml(high)}")
        return value

    return read


def _text(pattern: re.Pattern[str], what: str) -> Any:
    def read(raw: Any) -> str:
        text = TEXT.from_toml(raw)
        if not pattern.fullmatch(text):
            raise Unreadable(f"{quoted(text)} is no {what}")
        return text

    return read


def _time_limit(raw: Any) -> timedelta:
    value = DURATION.from_toml(raw)
    if not timedelta(0) < value <= timedelta(days=3_650):
        raise Unreadable("must be more than 0, and at most ten years")
    return value


_READ: Mapping[str, Any] = {
    "command": _command,
    "cpu_command": _command,
    "gpus": _number(INTEGER, 1, GPUS_MAX),
    "cpus": _number(INTEGER, 1, CPUS_MAX),
    "memory": _number(SIZE, 0, MEMORY_BYTES_MAX),
    "time_limit": _time_limit,
    "env": _environment,
    "model": _text(_MODEL_NAME, "name of a model"),
    "path": _text(_PATH, "path such as /transcribe"),
    "input": _text(_INPUT, "name of an input"),
}


def _list(words: tuple[str, ...]) -> str:
    return f"[{', '.join(map(quoted, words))}]"


_SHOW: Mapping[str, Any] = {
    "command": _list,
    "cpu_command": _list,
    "gpus": INTEGER.to_toml,
    "cpus": INTEGER.to_toml,
    "memory": SIZE.to_toml,
    "time_limit": DURATION.to_toml,
    "env": lambda pairs: f"{{ {', '.join(f'{key(name)} = {quoted(value)}' for name, value in pairs)} }}",
    "model": TEXT.to_toml,
    "path": TEXT.to_toml,
    "input": TEXT.to_toml,
}


def _to_toml(handlers: Handlers) -> str:
    if not handlers:
        return "{}"
    return f"{{ {', '.join(f'{quoted(pattern)} = {_shown(each)}' for pattern, each in handlers)} }}"


def _shown(handler: HandlerSettings) -> str:
    said = [
        f"{name} = {_SHOW[name](getattr(handler, field))}"
        for name, field in _NAMES.items()
        if getattr(handler, field) != getattr(_DEFAULTS, field)
    ]
    return f"{{ {', '.join(said)} }}"


HANDLERS: Kind[Handlers] = Kind(
    "a table of commands and models by content type",
    _from_toml,
    lambda text: _from_toml(table_of(text, _EXAMPLE)),
    _to_toml,
)
