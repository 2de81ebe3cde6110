"""`stats`: what a job used."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..completion import complete_jobs
from ..options import Connection, Output


def stats(
    output: Output,
    connection: Connection,
    job: Annotated[
        str, Argument(metavar="[JOB]", help="An id, last, or a name.", autocompletion=complete_jobs)
    ] = "last",
    attempt: Annotated[
        int, Option("--attempt", metavar="N", min=0, help="Of this attempt; the newest by default.")
    ] = 0,
) -> None:
    """Show what a job used, or uses so far: GPUs, energy, processor, memory.

    Read once a second from the allocation of its GPUs to its end. Of a GPU that jobs share all of it is shown.
    """
    from ..settings import resolve
    from ..stats_calls import show_stats

    show_stats(resolve(connection, output), job, attempt)
