"""`logs`: the output of jobs, or the log of a program."""

from __future__ import annotations

from ..declaring import Exit
from ..following_options import Following
from ..jobs.filter_options import Which
from .log_options import LogOptions


def logs(
    options: Following,
    wanted: LogOptions,
    jobs: Which = None,
) -> None:
    """Show what jobs wrote, or a program's own log.

    A job's stdout comes on stdout and its stderr on stderr. The output of several jobs has the job's id before
    each line; that of an array is that of its items, in the order of their indices. Without a job, the newest one is
    meant. With --tail and --since both hold. Workers that come later are followed, too. A job that was queued again, or
    tried again, has an output of each attempt: without --attempt the newest is shown, and with -f those before it, too.
    """
    import asyncio

    from .gateway_log import is_gateway, show_gateway_log
    from .jobs import show_logs
    from .request import requests_of

    if is_gateway(wanted.program):
        raise Exit(asyncio.run(show_gateway_log(wanted, jobs or [])))
    settings = options.settings(jobs=jobs or [])
    requests, workers = requests_of(settings, jobs or [], wanted)
    if requests or workers is not None:
        raise Exit(asyncio.run(show_logs(settings, requests, is_raw=wanted.raw, workers=workers)))
