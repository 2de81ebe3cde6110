"""Options that several commands share, as dataclasses: a command takes one as a parameter, and `spread` shows typer
its fields. A field is `name: Annotated[type, Option(…)] = default`; its option's help names the default.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Option

CONNECTION = "Connection"
FOLLOWING = "Following"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """Where the scheduler is and who asks."""

    scheduler: Annotated[
        str | None,
        Option(
            "--scheduler",
            metavar="HOST[:PORT]",
            rich_help_panel=CONNECTION,
            help="The scheduler; else GPUCTL_SCHEDULER, gpuctl.toml or the context in use.",
        ),
    ] = None
    context: Annotated[
        str | None,
        Option(
            "--context",
            metavar="NAME",
            rich_help_panel=CONNECTION,
            help="Another context than the one in use (see: gpuctl config context).",
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        Option(
            "--token-file",
            metavar="FILE",
            rich_help_panel=CONNECTION,
            help="A file of mode 0600 with the token; else GPUCTL_TOKEN or the context's.",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        Option(
            "--ca-file",
            metavar="FILE",
            rich_help_panel=CONNECTION,
            help="Certificates that vouch for the scheduler; else the system's.",
        ),
    ] = None
    insecure: Annotated[
        bool,
        Option(
            "--insecure",
            rich_help_panel=CONNECTION,
            help="Speak without TLS also beyond this machine: only in a network you trust.",
        ),
    ] = False
    connection_timeout: Annotated[
        str | None,
        Option(
            "--connection-timeout",
            metavar="TIME",
            rich_help_panel=CONNECTION,
            help="The longest wait for an answer to one call, 30s by default.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a reading command answers."""

    output: Annotated[
        str | None,
        Option(
            "-o",
            "--output",
            metavar="FORMAT",
            help="table, wide, json, jsonl or name; else GPUCTL_OUTPUT; table by default.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How long a follower stays; --connection-timeout is the fourth of them."""

    session_timeout: Annotated[
        str | None,
        Option(
            "--session-timeout",
            metavar="TIME",
            rich_help_panel=FOLLOWING,
            help="The longest attached session, 7200s by default; the job goes on after it.",
        ),
    ] = None
    max_wait_time: Annotated[
        str | None,
        Option(
            "--max-wait-time",
            metavar="TIME",
            rich_help_panel=FOLLOWING,
            help="The longest wait for new output before asking whether the job lives, 300s by default.",
        ),
    ] = None
    max_consecutive_timeouts: Annotated[
        int | None,
        Option(
            "--max-consecutive-timeouts",
            metavar="N",
            min=1,
            rich_help_panel=FOLLOWING,
            help="Unanswered questions in a row after which to give up, 30 by default; the job goes on.",
        ),
    ] = None


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
            parameters.append(parameter.replace(annotation=kind, kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def spread_command(**values: Any) -> None:
        for name, kind in groups.items():
            values[name] = kind(**{field.name: values.pop(field.name) for field in fields(kind)})
        command(**values)

    spread_command.__dict__["__signature__"] = inspect.Signature(parameters)
    spread_command.__annotations__ = {each.name: each.annotation for each in parameters}
    return spread_command


def _fields_as_parameters(group: type[Any]) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name]
        )
        for field in fields(group)
    ]
