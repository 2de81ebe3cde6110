"""Options that several commands share, as dataclasses: a command takes one as a parameter, and `spread` shows typer
its fields. A field is `name: Annotated[type, Option(…)] = default`; its option's help names the default.

Each is made of another by inheritance, so that a command takes one parameter: `Connection` alone, with how it
prints (`Printing`), with how long it stays (`Following`), or with both.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from typer import Option

from gpufleet.fleet.submitting.job_options import TypedOption

if TYPE_CHECKING:
    from gpufleet.fleet.settings import Settings

CONNECTION = "Connection"
FOLLOWING = "Following"


def in_panel(title: str) -> Callable[..., Any]:
    """What declares an option as typer's `Option` does, under this title of the help."""
    return functools.partial(Option, rich_help_panel=title)


connection, following = in_panel(CONNECTION), in_panel(FOLLOWING)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Where the scheduler is and who asks."""

    scheduler: Annotated[
        str | None,
        connection(
            "--scheduler",
            metavar="HOST[:PORT]",
            help="The scheduler; else GPUCTL_SCHEDULER, gpuctl.toml or the context in use.",
        ),
    ] = None
    context: Annotated[
        str | None,
        connection(
            "--context", metavar="NAME", help="Another context than the one in use (see: gpuctl config context)."
        ),
    ] = None
    token_file: Annotated[
        Path | None,
        connection(
            "--token-file",
            metavar="FILE",
            help="A file of mode 0600 with the token; else GPUCTL_TOKEN or the context's.",
        ),
    ] = None
    ca_file: Annotated[
        Path | None,
        connection("--ca-file", metavar="FILE", help="Certificates that vouch for the scheduler; else the system's."),
    ] = None
    client_cert_file: Annotated[
        Path | None,
        connection(
            "--client-cert-file",
            metavar="FILE",
            help="Your certificate with its key, where the scheduler asks for one.",
        ),
    ] = None
    insecure: Annotated[
        bool,
        connection("--insecure", help="Speak without TLS also beyond this machine: only in a network you trust."),
    ] = False
    connection_timeout: Annotated[
        str | None,
        connection(
            "--connection-timeout", metavar="TIME", help="The longest wait for an answer to one call, 30s by default."
        ),
    ] = None

    def settings(self, *, jobs: Sequence[str] = ()) -> Settings:
        """What holds for this command; see `settings.resolve`."""
        from gpufleet.fleet.settings import resolve  # help needs none of it

        return resolve(self, jobs=jobs)


@dataclass(frozen=True, kw_only=True)
class Printing(Connection):
    """How a command prints its answer."""

    output: Annotated[
        str | None,
        Option(
            "-o",
            "--output",
            metavar="FORMAT",
            help="table, wide, json, jsonl or name; else GPUCTL_OUTPUT; table by default.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class Following(Connection):
    """How long a follower stays; --connection-timeout is the fourth of them."""

    session_timeout: Annotated[
        str | None,
        following(
            "--session-timeout",
            metavar="TIME",
            help="The longest attached session, 7200s by default; the job goes on after it.",
        ),
    ] = None
    max_wait_time: Annotated[
        str | None,
        following(
            "--max-wait-time",
            metavar="TIME",
            help="The longest wait for new output before asking whether the job lives, 300s by default.",
        ),
    ] = None
    max_consecutive_timeouts: Annotated[
        int | None,
        following(
            "--max-consecutive-timeouts",
            metavar="N",
            min=1,
            help="Unanswered questions in a row after which to give up, 30 by default; the job goes on.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PrintingAndFollowing(Printing, Following):
    """Of a command that stays and prints."""


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


@functools.cache
def _fields_as_parameters(group: type[Any]) -> tuple[inspect.Parameter, ...]:
    """Once for each group, which many commands have: to work out its annotations takes milliseconds."""
    hints = get_type_hints(group, include_extras=True)
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
    """The type with typer's option, for an option of a job, which the library describes in its own words."""
    typed, *_ = getattr(hint, "__metadata__", (None,))
    if not isinstance(typed, TypedOption):
        return hint
    option = Option(*typed.flags, metavar=typed.metavar, help=typed.help, min=typed.min, rich_help_panel=typed.panel)
    return Annotated[hint.__origin__, option]
