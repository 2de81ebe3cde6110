"""`queue`: jobs that wait and run, and the nodes below them."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Exit, Option
from ..options import Printing


def queue(
    options: Printing,
    everything: Annotated[bool, Option("-a", "--all", help="Jobs that have ended too, newest first.")] = False,
    watch: Annotated[bool, Option("-w", "--watch", help="Stay, and show every change; Ctrl-C leaves.")] = False,
    mine: Annotated[bool, Option("--mine", help="Only my jobs.")] = False,
    user: Annotated[str, Option("--user", metavar="NAME", help="Only this person's jobs.")] = "",
    name: Annotated[str, Option("--name", metavar="NAME", help="Only jobs of this name.")] = "",
    label: Annotated[list[str] | None, Option("--label", metavar="NAME=VALUE", help="Only jobs with it.")] = None,
    state: Annotated[
        list[str] | None, Option("--state", metavar="STATE,…", help="Only jobs in these states: queued,running.")
    ] = None,
    limit: Annotated[int, Option("--limit", metavar="N", min=1, help="Jobs to show, 1000 by default.")] = 1000,
) -> None:
    """Show the jobs in their order, and the nodes below them."""
    from .queue_view import QueueRequest, show_queue

    settings = options.settings()
    wanted = QueueRequest(
        user=user,
        is_mine=mine,
        name=name,
        labels=tuple(label or ()),
        states=tuple(state or ()),
        with_finished=everything,
        limit=limit,
    )
    if watch:
        import asyncio

        from ..queue_watch.program import watch_queue

        raise Exit(asyncio.run(watch_queue(settings, wanted)))
    show_queue(settings, wanted)
