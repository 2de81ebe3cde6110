"""Options of commands that stay: how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from .options import Connection, Printing, in_panel

FOLLOWING = "Following"

following = in_panel(FOLLOWING)


@dataclass(frozen=True, kw_only=True)
class Following(Connection):
    """How long a follower stays; --connection-timeout is the fourth of them."""

    session_timeout: Annotated[
        str | None,
        following(
            "--session-timeout",
            metavar="TIME",
            help="The longest attached session, 7200s by default; the job goes on after it.",
        ),
    ] = None
    max_wait_time: Annotated[
        str | None,
        following(
            "--max-wait-time",
            metavar="TIME",
            help="The longest wait for new output before asking whether the job lives, 300s by default.",
        ),
    ] = None
    max_consecutive_timeouts: Annotated[
        int | None,
        following(
            "--max-consecutive-timeouts",
            metavar="N",
            min=1,
            help="Unanswered questions in a row after which to give up, 30 by default; the job goes on.",
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class PrintingAndFollowing(Printing, Following):
    """Of a command that stays and prints."""
