"""Where settings come from before they are merged: flags, variables and files each make a layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gpufleet.config.settings import settings_of
from gpufleet.errors import FieldViolation, GpufleetError, Reason

_FLAG_OR_VARIABLE = re.compile(r"--[a-z-]+|[A-Z][A-Z0-9_]*")


class Problem(NamedTuple):
    """One wrong value: where it stands (`scheduler.toml:12`, `--port`, a variable), its key, and why."""

    where: str
    key: str
    why: str

    @property
    def field(self) -> str:
        """What is wrong, with the key where the place does not name it, as a flag and a variable do."""
        return f"{self.where}: {self.key}" if self.key and self.is_in_file else self.where

    @property
    def is_in_file(self) -> bool:
        """Whether it stands in a file; else it was given with a flag or in a variable."""
        return _FLAG_OR_VARIABLE.fullmatch(self.where) is None

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


@dataclass(frozen=True, slots=True)
class Layer:
    """The values of one source by key. Text (of flags and variables) is read differently from TOML."""

    values: Mapping[str, object]
    where: Callable[[str], str]
    is_text: bool
    folder: Path = field(default_factory=Path.cwd)
    """What a relative path is relative to: the file's own folder, or where the program was started."""


def config_error(problems: Sequence[Problem]) -> GpufleetError:
    """All problems as one error; the first is its message."""
    return GpufleetError(
        Reason.CONFIG_INVALID,
        str(problems[0]),
        violations=[FieldViolation(p.field, p.why) for p in problems],
        next_step="" if problems[0].is_in_file else "Give another value, or leave it out.",
    )


def flag_layer(flags: Mapping[str, object]) -> Layer:
    """Flags by key; None is a flag that was not given."""
    given = {key: _flag_text(value) for key, value in flags.items() if value is not None}
    return Layer(given, lambda key: "--" + re.sub(r"[._]", "-", key), is_text=True)


def variable_layer(cls: type[Any], prefix: str, environment: Mapping[str, str]) -> Layer:
    """Variables by key: prefix and key (`GPUCTL_SCHEDULER_LOG_LEVEL`); an empty one counts as unset."""
    names = {key: each.variable or variable_name(prefix, key) for key, each in settings_of(cls).items()}
    given = {key: environment[name] for key, name in names.items() if environment.get(name)}
    return Layer(given, lambda key: names[key], is_text=True)


def variable_name(prefix: str, key: str) -> str:
    """The variable of a key."""
    return prefix + key.upper().replace(".", "_")


def _flag_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return ",".join(str(each) for each in value)
    return str(value)
