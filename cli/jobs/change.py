"""`cancel`, `signal`, `hold`, `release`, `band`, `requeue`, `update`: change jobs that were submitted."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Argument, Option
from ..options import Printing
from .filter_options import Filters, Which

Reason = Annotated[str, Option("--reason", metavar="TEXT", help="Why, for the job's story.")]
Yes = Annotated[bool, Option("--yes", "-y", help="Do not ask before changing many.")]


def cancel(
    filters: Filters,
    options: Printing,
    jobs: Which = None,
    reason: Reason = "",
    abandon: Annotated[
        bool, Option("--abandon", help="End the record now, also where the node cannot be reached.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop jobs: SIGTERM, then SIGKILL when their grace is over."""
    from .bulk import cancelling, change_jobs

    change_jobs(options, jobs, filters, cancelling(reason, abandon=abandon), is_sure=yes)


def signal(
    number: Annotated[str, Argument(metavar="SIGNAL", help="A name such as USR1 or SIGINT, or a number.")],
    filters: Filters,
    options: Printing,
    jobs: Which = None,
    yes: Yes = False,
) -> None:
    """Send a signal to every process of running jobs."""
    from .bulk import change_jobs, signalling

    change_jobs(options, jobs, filters, signalling(number, jobs or ()), is_sure=yes)


def hold(filters: Filters, options: Printing, jobs: Which = None, yes: Yes = False) -> None:
    """Keep waiting jobs from starting until they are released."""
    from .bulk import change_jobs, holding

    change_jobs(options, jobs, filters, holding("hold", is_held=True), is_sure=yes)


def release(
    filters: Filters,
    options: Printing,
    jobs: Which = None,
    restored: Annotated[
        bool,
        Option("--restored", help="All jobs that wait since the database was put back, of everybody; for admins."),
    ] = False,
    yes: Yes = False,
) -> None:
    """Let held jobs start."""
    from .bulk import change_jobs, holding
    from .restored import release_restored

    if restored:
        release_restored(options, filters, jobs or (), is_sure=yes)
        return
    change_jobs(options, jobs, filters, holding("release", is_held=False), is_sure=yes)


def band(
    word: Annotated[str, Argument(metavar="BAND", help="low, normal, high or urgent.")],
    filters: Filters,
    options: Printing,
    jobs: Which = None,
    yes: Yes = False,
) -> None:
    """Move jobs to another band: a higher one goes before a lower one."""
    from .bulk import change_jobs, moving

    change_jobs(options, jobs, filters, moving(word, jobs or ()), is_sure=yes)


def requeue(
    filters: Filters,
    options: Printing,
    jobs: Which = None,
    reason: Reason = "",
    yes: Yes = False,
) -> None:
    """Take jobs off their nodes and queue them again.

    They keep their submit time, and so their place.
    """
    from .bulk import change_jobs, requeueing

    change_jobs(options, jobs, filters, requeueing(reason), is_sure=yes)


def update(
    options: Printing,
    jobs: Which = None,
    time_limit: Annotated[
        str | None,
        Option("--time-limit", metavar="DURATION", help="The longest it may run, from its start: 90m, 2d; or none."),
    ] = None,
    name: Annotated[str | None, Option("--name", metavar="NAME", help="Another name.")] = None,
    band: Annotated[str | None, Option("--band", metavar="BAND", help="low, normal, high or urgent.")] = None,
    yes: Yes = False,
) -> None:
    """Give jobs that wait or run another time limit, name or band.

    Owners may shorten a time limit; admins may let a job run for longer.
    """
    from .bulk import change_jobs, updating

    change_jobs(options, jobs, Filters(), updating(time_limit, name, band), is_sure=yes)
