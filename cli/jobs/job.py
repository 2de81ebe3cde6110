"""`job`, `story`, `explain`, `stats`: one job, what happened to it, why it waits, and what it used."""

from __future__ import annotations

from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument, Option
from ..options import Printing

Which = Annotated[
    str,
    Argument(
        metavar="JOB", help="An id, an item 41.3, last, or a name.", autocompletion=complete_jobs, show_default=False
    ),
]


def job(which: Which, options: Printing) -> None:
    """Show all that is known of a job.

    With the command that would submit it again.
    """
    from .one_job import show_job

    show_job(options.settings(jobs=[which]), which)


def story(which: Which, options: Printing) -> None:
    """Tell what happened to a job, oldest first."""
    from .one_job import show_story

    show_story(options.settings(jobs=[which]), which)


def explain(which: Which, options: Printing) -> None:
    """Say why a job waits, node by node, and when it may start."""
    from .one_job import explain_job

    explain_job(options.settings(jobs=[which]), which)


def stats(
    options: Printing,
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
    from .one_job import show_stats

    show_stats(options.settings(jobs=[job]), job, attempt)
