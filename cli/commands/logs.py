"""`logs`: the output of jobs, or the log of a program."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option

from ..completion import complete_jobs
from ..options import Connection, Following


def logs(
    following: Following,
    connection: Connection,
    jobs: Annotated[
        list[str] | None,
        Argument(metavar="[JOB…]", help="Ids, 40-45, items 41.3-7, last, all, or names.", autocompletion=complete_jobs),
    ] = None,
    follow: Annotated[bool, Option("-f", "--follow", help="Stay until the job ends; Ctrl-C leaves.")] = False,
    tail: Annotated[
        int | None, Option("--tail", metavar="N", min=0, help="Only the newest N lines, and what follows.")
    ] = None,
    since: Annotated[
        str | None,
        Option("--since", metavar="TIME", help="Only what is newer: 10m, or 2026-01-31T12:00:00+01:00."),
    ] = None,
    rank: Annotated[int | None, Option("--rank", metavar="N", min=0, help="Only this rank of the job.")] = None,
    stdout: Annotated[bool, Option("--stdout", help="Only standard output.")] = False,
    stderr: Annotated[bool, Option("--stderr", help="Only standard error.")] = False,
    raw: Annotated[bool, Option("--raw", help="The job's bytes and nothing else: no prefix, no remark.")] = False,
    model: Annotated[str, Option("--model", metavar="NAME", help="The output of a model's workers.")] = "",
    all_workers: Annotated[bool, Option("--all-workers", help="The output of the workers of all models.")] = False,
    program: Annotated[
        str,
        Option(
            "--program",
            metavar="PROGRAM",
            help="The log of a program: scheduler, agent:NODE, or gateway, on its own machine.",
        ),
    ] = "",
) -> None:
    """Show what jobs wrote, or a program's own log.

    A job's stdout comes on stdout and its stderr on stderr. The output of several jobs has the job's id before
    each line; that of an array is that of its items, in the order of their indices. Without a job, the newest one is
    meant. With --tail and --since both hold. Workers that come later are followed, too.
    """
    import asyncio

    from ..gateway_log import is_gateway, show_gateway_log
    from ..log_request import wanted_of
    from ..logs import show_logs
    from ..settings import resolve

    if is_gateway(program):
        raise Exit(asyncio.run(show_gateway_log(program, jobs or [], follow=follow, tail=tail, since=since)))
    settings = resolve(connection, None, following)
    wanted, workers = wanted_of(
        settings,
        jobs or [],
        program=program,
        model=model,
        all_workers=all_workers,
        follow=follow,
        tail=tail,
        since=since,
        rank=rank,
        stdout=stdout,
        stderr=stderr,
    )
    if wanted or workers is not None:
        raise Exit(asyncio.run(show_logs(settings, wanted, is_raw=raw, workers=workers)))
