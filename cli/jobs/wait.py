"""`wait`: stay until jobs have ended."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Exit
from ..following_options import PrintingAndFollowing
from .filter_options import Filters, Which, choose

SINCE = "1d"
"""How far back ended jobs count that are chosen by their name or label, where --since does not say."""


def wait(
    filters: Filters,
    options: PrintingAndFollowing,
    jobs: Which = None,
    since: Annotated[
        str | None,
        choose("--since", metavar="TIME", help="With --name, --label: count jobs that ended since then (default 1d)."),
    ] = None,
) -> None:
    """Wait until jobs have ended, and exit with their code.

    Of several jobs, and of an array's items, with the highest. 128 + n for a signal; 124 for a time limit; 125 for an
    end without a code, and when gpuctl itself fails or gives up waiting. Jobs that ended before count, too: of --array
    all items, with --name and --label those that ended in the last day. Finding no job is an error.
    """
    import asyncio

    from gpufleet.errors import invalid
    from gpufleet.fleet.client import connected
    from gpufleet.fleet.named_jobs import ids_of, read_selection

    from ..logs.request import since_moment
    from ..screen import say
    from .filtered import check_filters, find_to_wait_for
    from .waiting import wait_for

    settings = options.settings()
    check_filters("wait", filters, jobs or ())
    if since is not None and (filters.state or filters.array or not (filters.name or filters.label)):
        why = "is for jobs that are chosen by --name or --label, in any state"
        raise invalid("--since", why, next_step="Leave it out, or choose with: --name NAME --since 7d")
    selection = read_selection(jobs or ())
    if filters.are_given:
        with connected(settings) as client:
            found = find_to_wait_for(client, filters, since_moment(since or SINCE))
        say(f"waiting for {found.to_wait_for()}")
        job_ids = list(found.job_ids)
    elif selection.asks_scheduler:
        with connected(settings) as client:
            job_ids = ids_of(client, selection)
    else:
        job_ids = list(selection.job_ids)
    raise Exit(asyncio.run(wait_for(settings, job_ids)))
