"""Settings merged from all layers: which value holds, where it came from, and what is wrong.

The first layer that has a key wins. A wrong value is an error even where a higher layer covers it: it would
surprise on the day that the layer goes away. A program reads its settings with `load_program` and keeps
them in `Live` (live.py); the CLI's own layers are in gpufleet/config/contexts.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

from gpufleet.config.files import file_layer
from gpufleet.config.kinds import Unreadable
from gpufleet.config.layers import Layer, Problem, config_error, flag_layer, variable_layer
from gpufleet.config.paths import program_config_file
from gpufleet.config.settings import build, settings_of, value_of

if TYPE_CHECKING:
    import argparse  # which gpuctl does without

S = TypeVar("S")

DEFAULT_ORIGIN = "default"


@runtime_checkable
class ChecksItself(Protocol):
    """Settings whose values must fit together: yields (key, why) for each that does not."""

    def conflicts(self) -> Iterator[tuple[str, str]]: ...


class Resolved(NamedTuple, Generic[S]):
    """Settings, and for each key where its value came from."""

    settings: S
    origins: Mapping[str, str]

    def rows(self) -> list[tuple[str, str, str]]:
        """Key, value and origin of every setting, as `config show --origin` prints them."""
        described = settings_of(type(self.settings))
        return [(key, each.show(value_of(self.settings, key)), self.origins[key]) for key, each in described.items()]


def load_program(
    cls: type[S],
    program: str,
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path,
    file_is_named: bool,
) -> Resolved[S]:
    """A program's settings: flag, then GPUCTL_PROGRAM_KEY, then its file, then the default.

    A file that was not named by `--config` may be missing. Raises CONFIG_INVALID that names every problem.
    """
    problems: list[Problem] = []
    layers = [flag_layer(flags), variable_layer(cls, f"GPUCTL_{program.upper()}_", environment)]
    if file_is_named or file.exists():
        layers.append(file_layer(cls, file, problems))
    resolved = resolve(cls, layers, problems)
    if resolved is None:
        raise config_error(problems)
    return resolved


def settings_reader(
    cls: type[S], program: str, given: argparse.Namespace, **flags: object
) -> Callable[[], Resolved[S]]:
    """Reads the settings of a program by its command line, now and again at a reload.

    What was `given` under a setting's key is its flag, unless `flags` say otherwise; `given.config` is the file.
    """
    said = {key: value for key, value in vars(given).items() if key in settings_of(cls)} | flags
    return lambda: load_program(
        cls,
        program,
        flags=said,
        environment=os.environ,
        file=Path(given.config) if given.config else program_config_file(program),
        file_is_named=given.config is not None,
    )


def check_file(cls: type[Any], file: Path) -> list[Problem]:
    """Everything that is wrong with a file taken alone, top down; what `config check FILE` prints."""
    problems: list[Problem] = []
    resolve(cls, [file_layer(cls, file, problems)], problems)
    return problems


def resolve(cls: type[S], layers: Sequence[Layer], problems: list[Problem]) -> Resolved[S] | None:
    """The settings that the layers make, highest first; None when there are problems, old or new."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    described = settings_of(cls)
    for layer in layers:
        for key, raw in layer.values.items():
            try:
                value = described[key].read(raw, is_text=layer.is_text)
            except Unreadable as why:
                problems.append(Problem(layer.where(key), key, str(why)))
                continue
            if key not in values:
                values[key] = layer.folder / value if isinstance(value, Path) else value
                origins[key] = layer.where(key)
    if problems:
        return None
    settings = build(cls, values)
    all_origins = {key: origins.get(key, DEFAULT_ORIGIN) for key in described}
    if isinstance(settings, ChecksItself):
        problems += [Problem(all_origins[key], key, why) for key, why in settings.conflicts()]
    return None if problems else Resolved(settings, all_origins)
