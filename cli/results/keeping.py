"""`keep`: store what a running job keeps for its next attempt."""

from __future__ import annotations

import os
from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument, Option
from ..options import Connection


def keep(
    options: Connection,
    job: Annotated[
        str,
        Argument(
            metavar="[JOB]",
            help="The job's id, or last (default: the job in which it is typed).",
            autocompletion=complete_jobs,
            show_default=False,
        ),
    ] = "",
    rank: Annotated[
        int | None,
        Option(
            "--rank", metavar="N", min=0, help="The rank whose files these are (default: its own in a job, else 0)."
        ),
    ] = None,
) -> None:
    """Store now what a running job keeps for its next attempt (--keep).

    It returns when all of it is stored. Unless a newer copy follows, the next attempt of the job finds it, also after
    the node is lost. For instance, in a job, behind each checkpoint: gpuctl keep
    """
    from .kept import keep_files

    in_job = os.environ.get("GPUFLEET_JOB_ID", "")
    which = job or in_job
    if rank is None:
        own = os.environ.get("NODE_RANK", "") if which == in_job else ""
        rank = int(own) if own.isdecimal() else 0
    keep_files(options.settings(jobs=[which] if which else []), which, rank)
