"""`files` and `cp`: what a job left, and its way here."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..completion import complete_jobs
from ..jobs.job import Which
from ..options import Connection, Printing


def files(which: Which, options: Printing) -> None:
    """Show what a job left.

    Of the folder of its files that is what its --download chooses; it is stored when an attempt has ended. Bring it
    here with gpuctl cp.
    """
    from .listing import show_files

    show_files(options.settings(jobs=[which]), which)


def cp(
    source: Annotated[
        str,
        Argument(
            metavar="JOB:[PATH]",
            help="A job and the path of a file or folder that it left, as 41:out/model.pt; without a path, all.",
            autocompletion=complete_jobs,
            show_default=False,
        ),
    ],
    options: Connection,
    target: Annotated[str, Argument(metavar="[TARGET]", help="A folder here, or another name for the file.")] = ".",
    rank: Annotated[int, Option("--rank", metavar="N", min=0, help="What this rank left.")] = 0,
) -> None:
    """Bring files here that a job left.

    What was cut goes on where it stood when the same line is typed again. A file that is here is replaced, whole and at
    once. For instance: gpuctl cp 41:out/model.pt .
    """
    from .copying import copy

    copy(options.settings(jobs=[source.partition(":")[0]]), source, target, rank)
