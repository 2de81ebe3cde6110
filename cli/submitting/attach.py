"""`shell` and `attach`: a job with a terminal, and coming back to it."""

from __future__ import annotations

from typing import Annotated

from gpufleet.fleet.submitting.job_options import JobOptions

from ..completion import complete_jobs
from ..declaring import Argument, Exit, Option, of_class
from ..following_options import Following

TAIL_LINES = 24
"""What is shown again to who comes back: a screenful."""


@of_class("submitting.job_command.ShellCommand")
def shell(
    job: JobOptions,
    options: Following,
    command: Annotated[
        list[str] | None,
        Argument(metavar="COMMAND", help="What to run on the terminal, after --; without it bash, or sh."),
    ] = None,
) -> None:
    """Open a shell on a node, with GPUs if you ask for them.

    It waits for its turn like any job. ~. at the beginning of a line detaches: the shell goes on, holding its GPUs,
    and gpuctl attach comes back to it. Exit codes as for gpuctl run; 0 when you detach.
    """
    from gpufleet.fleet.submitting.input_folder import described
    from gpufleet.fleet.submitting.uploading import upload_what_goes_along

    from ..screen import NOTICES
    from .estimating import filled
    from .shell_job import shell_request
    from .staying import stay

    settings = options.settings()
    job, folder = described(settings, filled(settings, job))
    request = shell_request(job, command or [])
    upload_what_goes_along(settings, job.file or (), folder, request.specs[0], NOTICES)
    raise Exit(stay(settings, request))


def attach(
    options: Following,
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

    from gpufleet.fleet.client import connected
    from gpufleet.fleet.named_jobs import only_id, read_selection

    from .attached import attach_again

    settings = options.settings()
    selection = read_selection([job])
    with connected(settings) as client:
        job_id = only_id(client, selection)
    work = attach_again(settings, job_id, settings.time_outs, tail_lines=tail, take_over=take_over)
    raise Exit(asyncio.run(work))
