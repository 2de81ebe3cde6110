"""How typer's parameters are read and shown: without pydantic, and in a line each.

typer reads every value through an adapter of pydantic, whose import costs more than a whole `gpuctl queue` may.
The values here are strings, numbers, booleans, paths and lists of them, which need none of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args, get_origin

import typer


class QuickValue:
    """Reads the values of one parameter; takes the place of typer's own reader."""

    def __init__(self, annotation: Any) -> None:
        self._is_list = get_origin(annotation) is list
        self._kind = get_args(annotation)[0] if self._is_list else annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as its parameter's type; raises a usage error that names the parameter."""
        if self._is_list:
            return [self._read(each, param, ctx) for each in value or ()]
        return None if value is None else self._read(value, param, ctx)

    def _read(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str) or self._kind in (str, bool):
            return value
        if self._kind is Path:
            return Path(value).expanduser()
        try:
            number = self._kind(value)
        except ValueError:
            kind = "a whole number" if self._kind is int else "a number"
            raise typer.BadParameter(f'"{value}" is not {kind}', ctx=ctx, param=param) from None
        self._check_range(number, param, ctx)
        return number

    def _check_range(self, number: Any, param: Any, ctx: Any) -> None:
        low, high = getattr(param, "min", None), getattr(param, "max", None)
        if low is not None and number < low:
            raise typer.BadParameter(f"{number} is less than {low}", ctx=ctx, param=param)
        if high is not None and number > high:
            raise typer.BadParameter(f"{number} is more than {high}", ctx=ctx, param=param)


def read_quickly(parameters: Iterable[Any]) -> None:
    """Give every parameter our reader."""
    for parameter in parameters:
        described = getattr(parameter, "type_descriptor", None)
        # A typer without this descriptor reads by itself, in its own time.
        if described is not None:
            parameter._runtime_param = QuickValue(described.annotation)


def help_line(parameter: Any) -> tuple[str, str] | None:
    """What help shows of a parameter: its names with the value's, and its sentence; None when it is hidden."""
    if parameter.hidden:
        return None
    if parameter.param_type_name == "argument":
        return parameter.metavar or parameter.name.upper(), parameter.help or ""
    names = ", ".join(sorted(parameter.opts, key=len))
    if parameter.secondary_opts:
        names += " / " + ", ".join(parameter.secondary_opts)
    if not parameter.is_flag:
        names += " " + (parameter.metavar or parameter.name.upper())
    return names, parameter.help or ""
