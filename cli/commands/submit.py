"""`submit` and `run`: make a job, and leave it or stay with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Exit, Option

from ..app import JobCommand
from ..job_options import JobOptions
from ..options import Connection, Following, Output

if TYPE_CHECKING:
    from gpufleet.v1 import scheduler_pb2

    from ..settings import Settings

Command = Annotated[
    list[str] | None, Argument(metavar="COMMAND", help="The command, after --. One quoted string is run by the shell.")
]


def submit(
    job: JobOptions,
    output: Output,
    following: Following,
    connection: Connection,
    command: Command = None,
    interactive: Annotated[bool, Option("--interactive", "-i", help="Stay with the job, as gpuctl run does.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Check and explain only; change nothing.")] = False,
    request_id: Annotated[
        str | None,
        Option("--request-id", metavar="ID", help="Yours instead of a random one: the same id is never done twice."),
    ] = None,
    rerun_failed: Annotated[
        str | None,
        Option("--rerun-failed", metavar="JOB", help="Run again what failed of an array, or a job, as it was."),
    ] = None,
) -> None:
    """Submit a job and print its id.

    It waits in the queue until a node has what it asks for; then it runs there, whether you stay or not. See it with
    gpuctl queue, its output with gpuctl logs. For instance: gpuctl submit --gpus 2 --time-limit 4h -- python train.py

    A script may carry options of its own in lines that begin with #gpuctl; those of the command line win.
    """
    from ..estimating import estimated
    from ..settings import resolve
    from ..submission import request_of, rerun_of, submit_job

    settings = resolve(connection, output, following)
    if rerun_failed is not None:
        again = rerun_of(settings, rerun_failed, job, command or [], request_id=request_id, dry_run=dry_run)
        submit_job(settings, again)
        return
    job = estimated(settings, job)
    request = request_of(job, command or [], request_id=request_id, dry_run=dry_run)
    if interactive and not dry_run:
        _attach(settings, request)
    submit_job(settings, request)


def run(
    job: JobOptions,
    following: Following,
    connection: Connection,
    command: Command = None,
    request_id: Annotated[
        str | None,
        Option("--request-id", metavar="ID", help="Yours instead of a random one: the same id is never done twice."),
    ] = None,
    stdin: Annotated[
        bool,
        Option("--stdin", "-i", help="Your standard input is the job's; on a terminal it has one, too. ~. detaches."),
    ] = False,
) -> None:
    """Run a job and stay with it to its end.

    Its output and its exit code are ours. A lost connection never stops the job. The first Ctrl-C is sent to it as
    SIGINT, a second within 3 s cancels it, a third leaves. Exit codes: the job's own; 128 + n for a signal; 124 for
    its time limit; 125 when it has none, or gpuctl itself failed.
    """
    from ..estimating import estimated
    from ..settings import resolve
    from ..submission import request_of

    settings = resolve(connection, None, following)
    job = estimated(settings, job)
    request = request_of(job, command or [], request_id=request_id, dry_run=False)
    if stdin:
        from ..attaching.keyboard import input_mode

        request.specs[0].input = input_mode()
        # What was typed is gone: a second run would wait for input that does not come again.
        request.specs[0].no_requeue = True
    _attach(settings, request)


def _attach(settings: Settings, request: scheduler_pb2.SubmitRequest) -> None:
    import asyncio

    from ..attached import run_attached
    from ..submission import refuse_many

    refuse_many(request)
    raise Exit(asyncio.run(run_attached(settings, request, settings.time_outs)))


submit.__dict__["command_class"] = run.__dict__["command_class"] = JobCommand
