"""Commands as typer wants them: one parameter for each thing that can be typed, each with typer's own option."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

from gpufleet.fleet.submitting.typed_options import TypedOption, hints_of

from .declaring import Argument, Option


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer wants it: each parameter that is a dataclass is replaced by one parameter a field."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, type] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        kind = hints[name]
        if isinstance(kind, type) and is_dataclass(kind):
            groups[name] = kind
            parameters += _fields_as_parameters(kind)
        else:
            as_typer_has_it = _as_typer_has_it(kind)
            parameters.append(parameter.replace(annotation=as_typer_has_it, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def spread_command(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    spread_command.__dict__["__signature__"] = inspect.Signature(parameters)
    spread_command.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread_command


@functools.cache
def _fields_as_parameters(group: Any) -> tuple[inspect.Parameter, ...]:
    """Once for each group, which many commands have: to work out its annotations takes milliseconds."""
    hints = hints_of(group)
    return tuple(
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=_as_typer_has_it(hints[field.name]),
        )
        for field in fields(group)
    )


def _as_typer_has_it(hint: Any) -> Any:
    """The type with typer's option, where it was declared without."""
    declared, *_ = getattr(hint, "__metadata__", (None,))
    match declared:
        case Option():
            return Annotated[hint.__origin__, typer.Option(*declared.flags, **declared.how)]
        case Argument():
            return Annotated[hint.__origin__, typer.Argument(**declared.how)]
        case TypedOption(flags, panel, said, metavar, least):
            option = typer.Option(*flags, metavar=metavar, help=said, min=least, rich_help_panel=panel)
            return Annotated[hint.__origin__, option]
        case _:
            return hint
