"""`submit` and `run`: make a job, and leave it or stay with it; `check`, `estimate`: whether there is room for one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from gpufleet.fleet.submitting.job_options import JobOptions

from ..declaring import ENDS_IN_COMMAND, Argument, Exit, Option, of_class
from ..following_options import Following, PrintingAndFollowing
from ..options import Printing

if TYPE_CHECKING:
    from gpufleet.v1 import scheduler_pb2

    from gpufleet.fleet.folders.preparing import Prepared
    from gpufleet.fleet.settings import Settings

SharedRoot = Annotated[
    Path | None,
    Option(
        "--shared-root",
        metavar="DIR",
        help="A folder that nodes see, too: files in it are read there, and not uploaded; else GPUCTL_SHARED_ROOT.",
    ),
]
Command = Annotated[
    list[str] | None, Argument(metavar="COMMAND", help="The command, after --. One quoted string is run by the shell.")
]


@of_class(ENDS_IN_COMMAND)
def submit(
    job: JobOptions,
    options: PrintingAndFollowing,
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
    shared_root: SharedRoot = None,
) -> None:
    """Submit a job and print its id.

    It waits in the queue until a node has what it asks for; then it runs there, whether you stay or not. See it with
    gpuctl queue, its output with gpuctl logs. For instance: gpuctl submit --gpus 2 --time-limit 4h -- python train.py

    A script may carry options of its own in lines that begin with #gpuctl; those of the command line win. It is the
    command itself, what an interpreter is given (bash job.sh), or, with - in its place, standard input.
    """
    from gpufleet.fleet.submitting.input_folder import described
    from gpufleet.fleet.submitting.requests import request_of

    from .submission import rerun_of, submit_job

    settings = options.settings()
    if rerun_failed is not None:
        again = rerun_of(settings, rerun_failed, job, command or [], request_id=request_id, dry_run=dry_run)
        submit_job(settings, again)
        return
    job, folder = described(settings, _estimated(settings, job))
    request = request_of(job, command or [], request_id=request_id, dry_run=dry_run)
    if not dry_run:
        _upload(settings, job.file, folder, request, shared_root)
    elif folder is not None:
        from gpufleet.fleet.folders.sending import say_what_is_in

        from ..screen import NOTICES

        say_what_is_in(folder, NOTICES)
    if interactive and not dry_run:
        _attach(settings, request)
    submit_job(settings, request)


@of_class(ENDS_IN_COMMAND)
def run(
    job: JobOptions,
    options: Following,
    command: Command = None,
    request_id: Annotated[
        str | None,
        Option("--request-id", metavar="ID", help="Yours instead of a random one: the same id is never done twice."),
    ] = None,
    stdin: Annotated[
        bool,
        Option("--stdin", "-i", help="Your standard input is the job's; on a terminal it has one, too. ~. detaches."),
    ] = False,
    shared_root: SharedRoot = None,
    forward: Annotated[
        list[str] | None,
        Option("--forward", metavar="PORT[:LOCAL]", help="A port of the job at 127.0.0.1 here meanwhile; repeatable."),
    ] = None,
) -> None:
    """Run a job and stay with it to its end.

    Its output and its exit code are ours. A lost connection never stops the job. The first Ctrl-C is sent to it as
    SIGINT, a second within 3 s cancels it, a third leaves. Exit codes: the job's own; 128 + n for a signal; 124 for
    its time limit; 125 when it has none, or gpuctl itself failed.
    """
    from gpufleet.fleet.submitting.input_folder import described
    from gpufleet.fleet.submitting.requests import request_of

    settings = options.settings()
    job, folder = described(settings, _estimated(settings, job))
    request = request_of(job, command or [], request_id=request_id, dry_run=False)
    _upload(settings, job.file, folder, request, shared_root)
    if stdin:
        from ..attaching.keyboard import input_mode

        request.specs[0].input = input_mode()
        # What was typed is gone: a second run would wait for input that does not come again.
        request.specs[0].no_requeue = True
    _attach(settings, request, forward or ())


def _estimated(settings: Settings, job: JobOptions) -> JobOptions:
    if job.config is None:
        return job
    from .estimating import filled

    return filled(settings, job)


def _upload(
    settings: Settings,
    files: list[str] | None,
    folder: Prepared | None,
    request: scheduler_pb2.SubmitRequest,
    shared_root: Path | None,
) -> None:
    if files or folder is not None:
        from gpufleet.fleet.submitting.uploading import upload_what_goes_along

        from ..screen import NOTICES

        root = shared_root or settings.config.settings.shared_root
        upload_what_goes_along(settings, files or (), folder, request.specs[0], NOTICES, root)


def _attach(settings: Settings, request: scheduler_pb2.SubmitRequest, forward: Sequence[str] = ()) -> None:
    from .staying import stay
    from .submission import refuse_many

    refuse_many(request)
    if not forward:
        raise Exit(stay(settings, request))
    from gpufleet.fleet.inside.ports import listening

    from .forwarded_ports import forwarded_pairs

    with listening(forwarded_pairs(settings, forward)) as ports:
        raise Exit(stay(settings, request, ports))


@of_class("app.CheckCommand")
def check(
    job: JobOptions,
    options: Printing,
    wait: Annotated[
        str | None,
        Option("--wait", metavar="[TIME]", help="Wait until there is room: 5m, which is also what --wait alone means."),
    ] = None,
    every: Annotated[
        str | None,
        Option("--every", metavar="TIME", help="With --wait: repeat what is missing on stderr so often, 30s."),
    ] = None,
) -> None:
    """Say whether a job would start now, and submit nothing.

    Takes what gpuctl submit takes. Exit code 0 when it would, 1 when not; what no node could ever hold is refused (4).
    For instance: gpuctl check --gpus 4 --min-memory 10GB --wait 5m
    """
    from .availability import check_capacity

    raise Exit(check_capacity(options.settings(), job, wait, every))


Degree = str | None


def estimate(
    options: Printing,
    config: Annotated[
        str | None, Argument(metavar="[CONFIG.json]", help="The model's configuration; - reads standard input.")
    ] = None,
    model: Annotated[str | None, Option("--model", metavar="NAME", help="In its place: the model's name.")] = None,
    tp: Annotated[Degree, Option("--tp", metavar="N,…", help="Tensor parallel; of a grid the largest counts.")] = None,
    pp: Annotated[Degree, Option("--pp", metavar="N,…", help="Pipeline parallel.")] = None,
    dp: Annotated[Degree, Option("--dp", metavar="N,…", help="Data parallel.")] = None,
    cp: Annotated[Degree, Option("--cp", metavar="N,…", help="Context parallel.")] = None,
    dcp: Annotated[Degree, Option("--dcp", metavar="N,…", help="Decode context parallel.")] = None,
) -> None:
    """Say how many GPUs a model needs, and how much memory on each.

    A rule of thumb: tp × pp × max(dp, dcp, cp) GPUs, and memory by the size in the model's name. What submit --config
    asks for. For instance: gpuctl estimate --model llama-3-70b --tp 4
    """
    from .estimating import config_of, show_estimate

    degrees = {"tp": tp, "pp": pp, "dp": dp, "cp": cp, "dcp": dcp}
    show_estimate(options.settings(), *config_of(config, model, degrees))
