"""`wait`: stay until jobs have ended."""

from __future__ import annotations

from ..declaring import Exit
from ..following_options import PrintingAndFollowing
from .filter_options import Filters, Which


def wait(
    filters: Filters,
    options: PrintingAndFollowing,
    jobs: Which = None,
) -> None:
    """Wait until jobs have ended, and exit with their code.

    Of several jobs, and of an array's items, with the highest. 128 + n for a signal; 124 for a time limit; 125 for an
    end without a code, and when gpuctl itself fails or gives up waiting.
    """
    import asyncio

    from gpufleet.fleet.client import connected
    from gpufleet.fleet.named_jobs import ids_of, read_selection

    from .filtered import check_filters, find, ids_to_wait_for
    from .waiting import wait_for

    settings = options.settings()
    check_filters("wait", filters, jobs or ())
    selection = read_selection(jobs or ())
    if filters.are_given:
        with connected(settings) as client:
            job_ids = ids_to_wait_for(find(client, filters))
    elif selection.asks_scheduler:
        with connected(settings) as client:
            job_ids = ids_of(client, selection)
    else:
        job_ids = list(selection.job_ids)
    raise Exit(asyncio.run(wait_for(settings, job_ids)))
