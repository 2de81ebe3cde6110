"""`install` and `uninstall`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from ..declaring import Argument, Exit, Option

Program = Annotated[str, Argument(metavar="PROGRAM", help="scheduler, agent or gateway.")]
OfUser = Annotated[
    bool, Option("--user", help="A service of your account, without root; loginctl enable-linger keeps it running.")
]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be written and typed, and do nothing.")]


def install(
    program: Program,
    options: Annotated[
        list[str] | None, Argument(metavar="OPTION…", help="What the program is started with, after --.")
    ] = None,
    config: Annotated[
        Path | None,
        Option("--config", metavar="FILE", help="Its settings; /etc/gpufleet/PROGRAM.toml where that is there."),
    ] = None,
    account: Annotated[
        str,
        Option(
            "--account",
            metavar="NAME",
            help="The account it runs as: by default one of systemd's making; the agent is root.",
        ),
    ] = "",
    of_user: OfUser = False,
    no_start: Annotated[bool, Option("--no-start", help="Have it started with the machine, and not now.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Install a program as a systemd service: it starts with the machine, and again when it fails.

    Checks its settings, writes its unit, starts it, and says what it did. What is as it should be is left alone. For
    instance: gpuctl install agent -- --scheduler head:50051 --token-file agent.token --ca-file ca.pem
    """
    from .installing import WantedService, install_service

    wanted = WantedService(
        program=program,
        options=tuple(options or ()),
        config=config,
        account=account,
        is_of_user=of_user,
        starts=not no_start,
        only_shows=dry_run,
    )
    raise Exit(install_service(wanted))


def uninstall(program: Program, of_user: OfUser = False, dry_run: DryRun = False) -> None:
    """Stop a service and remove its unit. Its data stays, and what an agent runs goes on."""
    from .installing import uninstall_service

    raise Exit(uninstall_service(program, is_of_user=of_user, only_shows=dry_run))
