"""`check`: whether there is room for a job now, or within a time."""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option

from ..app import CheckCommand
from ..job_options import JobOptions
from ..options import Connection, Output


def check(
    job: JobOptions,
    output: Output,
    connection: Connection,
    wait: Annotated[
        str | None,
        Option("--wait", metavar="[TIME]", help="Wait until there is room: 5m, which is also what --wait alone means."),
    ] = None,
    every: Annotated[
        str | None,
        Option("--every", metavar="TIME", help="With --wait: repeat what is missing on stderr so often, 30s."),
    ] = None,
) -> None:
    """Say whether a job would start now, and submit nothing.

    Takes what gpuctl submit takes. Exit code 0 when it would, 1 when not; what no node could ever hold is refused (4).
    For instance: gpuctl check --gpus 4 --min-memory 10GB --wait 5m
    """
    from ..checking import check_capacity
    from ..settings import resolve

    raise Exit(check_capacity(resolve(connection, output), job, wait, every))


check.__dict__["command_class"] = CheckCommand
