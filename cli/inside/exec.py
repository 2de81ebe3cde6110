"""`exec`: another command in the world of a running job."""

from __future__ import annotations

from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument, Exit, Option
from ..options import Connection


def exec(
    options: Connection,
    job: Annotated[str, Argument(metavar="JOB", help="An id, last, or a name.", autocompletion=complete_jobs)],
    command: Annotated[list[str], Argument(metavar="COMMAND…", help="The command and its words, after --.")],
    stdin: Annotated[bool, Option("-i", "--stdin", help="Pass standard input on. On a terminal it always is.")] = False,
    tty: Annotated[
        bool | None,
        Option("--tty/--no-tty", "-t/-T", help="Give it a terminal; by default where this is one.", show_default=False),
    ] = None,
    rank: Annotated[
        int, Option("--rank", metavar="N", min=0, help="Of a job on several nodes, the rank in whose world it runs, 0.")
    ] = 0,
) -> None:
    """Run another command in a running job.

    It runs on the job's node as the job does: as its user, in its folder, with its environment and GPUs, within its
    limits. It ends with the job, and when you leave; the job goes on. What it exits with is what this exits with, and
    125 where it could not be run. On a terminal ~. at the beginning of a line leaves.
    For instance: gpuctl exec 41 -- nvidia-smi
    """
    import asyncio

    from gpufleet.fleet.client import connected
    from gpufleet.fleet.named_jobs import only_id, read_selection

    from ..attaching.keyboard import STDIN, STDOUT
    from ..attaching.terminal import has_terminal
    from .executing import Wanted, run_in_job

    settings = options.settings()
    is_terminal = has_terminal(STDIN, STDOUT)
    has_tty = is_terminal if tty is None else tty
    has_input = stdin or has_tty or (tty is None and is_terminal)
    wanted = Wanted(argv=command, rank=rank, has_terminal=has_tty, has_input=has_input)
    with connected(settings) as client:
        job_id = only_id(client, read_selection([job]))
    raise Exit(asyncio.run(run_in_job(settings, job_id, wanted)))
