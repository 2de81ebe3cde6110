"""Options that several commands share, as dataclasses: a command takes one as a parameter, and has all its fields as
options. A field is `name: Annotated[type, Option(…)] = default`; its option's help names the default.

Each is made of another by inheritance, so that a command takes one parameter: `Connection` alone, with how it
prints (`Printing`); with how long it stays, see `following_options.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from .declaring import Option

if TYPE_CHECKING:
    from gpufleet.fleet.settings import Settings

CONNECTION = "Connection"


def in_panel(title: str) -> Callable[..., Any]:
    """What declares an option as typer's `Option` does, under this title of the help."""
    return functools.partial(Option, rich_help_panel=title)


connection = in_panel(CONNECTION)


@dataclass(frozen=True, kw_only=True)
class Connection:
    """Where the scheduler is and who asks."""

    scheduler: Annotated[
        str | None,
        connection(
            "--scheduler",
            metavar="HOST:PORT,…",
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
