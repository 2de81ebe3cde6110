"""`shell` and `attach`: a job with a terminal, and coming back to it."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option

from ..app import ShellCommand
from ..completion import complete_jobs
from ..job_options import JobOptions
from ..options import Connection, Following

TAIL_LINES = 24
"""What is shown again to who comes back: a screenful."""


def shell(
    job: JobOptions,
    following: Following,
    connection: Connection,
    command: Annotated[
        list[str] | None,
        Argument(metavar="COMMAND", help="What to run on the terminal, after --; without it bash, or sh."),
    ] = None,
) -> None:
    """Open a shell on a node, with GPUs if you ask for them.

    It waits for its turn like any job. ~. at the beginning of a line detaches: the shell goes on, holding its GPUs,
    and gpuctl attach comes back to it. Exit codes as for gpuctl run; 0 when you detach.
    """
    import asyncio

    from ..attached import run_attached
    from ..estimating import estimated
    from ..settings import resolve
    from ..shell_job import shell_request

    settings = resolve(connection, None, following)
    request = shell_request(estimated(settings, job), command or [])
    raise Exit(asyncio.run(run_attached(settings, request, settings.time_outs)))


def attach(
    following: Following,
    connection: Connection,
    job: Annotated[
        str, Argument(metavar="[JOB]", help="An id, last, or a name.", autocompletion=complete_jobs)
    ] = "last",
    tail: Annotated[
        int, Option("--tail", metavar="N", min=0, help=f"Show the newest N lines again, {TAIL_LINES} by default.")
    ] = TAIL_LINES,
    take_over: Annotated[
        bool, Option("--take-over", help="Type in place of another session that does; it is told.")
    ] = False,
) -> None:
    """Come back to a job of gpuctl shell or run -i.

    One session types at a time; gpuctl logs -f looks on. ~. at the beginning of a line detaches. Exit codes as for
    gpuctl run; 0 when you detach.
    """
    import asyncio

    from ..attached import attach_again
    from ..chosen import only_id
    from ..client import connected
    from ..selectors import read_selection
    from ..settings import resolve

    settings = resolve(connection, None, following)
    selection = read_selection([job])
    with connected(settings) as client:
        job_id = only_id(client, selection)
    work = attach_again(settings, job_id, settings.time_outs, tail_lines=tail, take_over=take_over)
    raise Exit(asyncio.run(work))


shell.__dict__["command_class"] = ShellCommand
