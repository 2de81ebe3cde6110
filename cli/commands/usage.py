"""`usage`: who used how much, or what was used of nodes, models and bands."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ..options import Connection, Output


def usage(
    output: Output,
    connection: Connection,
    by: Annotated[
        str, Option("--by", metavar="WHAT", help="What a row stands for: user, node, model or band.")
    ] = "user",
    since: Annotated[
        str, Option("--since", metavar="TIME", help="From then on: 12h, 30d, or 2026-01-31T12:00:00+01:00.")
    ] = "7d",
    until: Annotated[
        str | None, Option("--until", metavar="TIME", help="Until then, written alike; until now by default.")
    ] = None,
    user: Annotated[str, Option("--user", metavar="NAME", help="Only what this user used; me is you.")] = "",
) -> None:
    """Show how much of the GPUs was used, by user, node, model or band.

    Counted from when a job's GPUs are given to it until it has ended, or until now; a share counts as what it is, in
    steps of five minutes. LOAD is their mean utilisation meanwhile. JOBS have ended, WAIT is how long those that
    started had waited.
    """
    from ..settings import resolve
    from ..usage_calls import show_usage

    show_usage(resolve(connection, output), by, since, until, user)
