"""`files` and `cp`: what a job left, and its way here."""

from __future__ import annotations

from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument, Option
from ..jobs.job import Which
from ..options import Connection, Printing


def files(which: Which, options: Printing) -> None:
    """Show what a job left, or has in its folder while it runs.

    What it left is what its --download chooses; it is stored when an attempt has ended. Bring it here with gpuctl cp.
    Of an array it is what its items left; 41.1-3 are some of them.
    """
    from .listing import show_files

    show_files(options.settings(jobs=[which]), which)


def cp(
    source: Annotated[
        str,
        Argument(
            metavar="SOURCE",
            help="A file or folder: of a job as 41:out/model.pt, or 41: for all; or one here.",
            autocompletion=complete_jobs,
            show_default=False,
        ),
    ],
    options: Connection,
    target: Annotated[
        str, Argument(metavar="[TARGET]", help="A folder here, or another name for the file; or 41:PATH.")
    ] = ".",
    rank: Annotated[
        int | None, Option("--rank", metavar="N", min=0, help="The rank whose files these are (default all; into: 0).")
    ] = None,
) -> None:
    """Copy files of a job here, or into one that runs.

    Of a job that runs they are those of its folder, of one that has ended those that it left. Each rank of a job on
    several nodes and each item of an array (41.1-3: some of them) gets a folder: rank-0, item-1. What was cut goes on
    where it stood. A file that is there is replaced, whole and at once. For instance: gpuctl cp 41:out/model.pt .
    """
    from .copying import copy, job_in

    named = job_in(target) or job_in(source)
    copy(options.settings(jobs=[named[0] if named else source]), source, target, rank)
