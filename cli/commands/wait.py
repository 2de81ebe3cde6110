"""`wait`: stay until jobs have ended."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit

from ..completion import complete_jobs
from ..options import Connection, Following, Output


def wait(
    jobs: Annotated[
        list[str],
        Argument(metavar="JOB…", help="Ids, 40-45, items 41.3-7, last, all, or names.", autocompletion=complete_jobs),
    ],
    output: Output,
    following: Following,
    connection: Connection,
) -> None:
    """Wait until jobs have ended, and exit with their code.

    Of several jobs, and of an array's items, with the highest. 128 + n for a signal; 124 for a time limit; 125 for an
    end without a code, and when gpuctl itself fails or gives up waiting.
    """
    import asyncio

    from ..chosen import ids_of
    from ..client import connected
    from ..selectors import read_selection
    from ..settings import resolve
    from ..waiting import wait_for

    settings = resolve(connection, output, following)
    selection = read_selection(jobs)
    if selection.asks_scheduler:
        with connected(settings) as client:
            job_ids = ids_of(client, selection)
    else:
        job_ids = list(selection.job_ids)
    raise Exit(asyncio.run(wait_for(settings, job_ids)))
