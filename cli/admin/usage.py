"""`usage`: who used how much, who came to the models, and who asked programs."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Option
from ..options import Printing


def usage(
    options: Printing,
    by: Annotated[
        str | None,
        Option("--by", metavar="WHAT", help="What a row is: user, node, model, band or group.", show_default="user"),
    ] = None,
    since: Annotated[
        str, Option("--since", metavar="TIME", help="From then on: 12h, 30d, or 2026-01-31T12:00:00+01:00.")
    ] = "7d",
    until: Annotated[
        str | None, Option("--until", metavar="TIME", help="Until then, written alike; until now by default.")
    ] = None,
    user: Annotated[str, Option("--user", metavar="NAME", help="Only what this user used; me is you.")] = "",
    sessions: Annotated[
        bool, Option("--sessions", help="Who came to the served models instead: people, turns, waits, give-ups by day.")
    ] = False,
    requests: Annotated[
        bool, Option("--requests", help="Requests to served programs instead, and their tokens, by user and program.")
    ] = False,
    model: Annotated[
        str, Option("--model", metavar="NAME", help="With --sessions or --requests: only this served model.")
    ] = "",
) -> None:
    """Show how much of the GPUs was used, and by whom; or who came to the served models.

    Counted from when a job's GPUs are given to it until it has ended, or until now; a share counts as what it is, in
    steps of five minutes. LOAD is their mean utilisation meanwhile. JOBS have ended, WAIT is how long those that
    started had waited.

    With --sessions: people, turns, and those who gave up before they had one, by model and by the day on which they
    joined the line. P50 and P95 are what half, and 19 of 20, of those who had a turn waited for it at most.

    With --requests: requests to served programs that have ended, and the tokens that the programs' answers say. UNKNOWN
    are requests of OpenAI's API whose answers said none.
    """
    from .usage_calls import refuse_usage_options, show_request_usage, show_session_usage, show_usage

    refuse_usage_options(sessions=sessions, requests=requests, by=by, user=user, model=model)
    settings = options.settings()
    if requests:
        show_request_usage(settings, since, until, user, model)
    elif sessions:
        show_session_usage(settings, since, until, model)
    else:
        show_usage(settings, by or "user", since, until, user)
