"""What `history` is to show, as it was typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..declaring import Option


@dataclass(frozen=True, kw_only=True)
class HistoryOptions:
    """What has ended that is wanted, as it was typed, and how it is shown."""

    since: Annotated[
        str, Option("--since", metavar="TIME", help="What ended from then on: 12h, 30d, or 2026-01-31T12:00:00+01:00.")
    ] = "7d"
    until: Annotated[
        str | None, Option("--until", metavar="TIME", help="Until then, written alike; until now by default.")
    ] = None
    user: Annotated[str, Option("--user", metavar="NAME", help="Only this person's jobs; me is you.")] = ""
    mine: Annotated[bool, Option("--mine", help="Only my jobs.")] = False
    name: Annotated[str, Option("--name", metavar="NAME", help="Only jobs of this name.")] = ""
    state: Annotated[
        list[str] | None,
        Option("--state", metavar="STATE,…", help="Only these ends: succeeded, failed, cancelled, timed-out."),
    ] = None
    node: Annotated[str, Option("--node", metavar="NODE", help="Only jobs that were on this node.")] = ""
    items: Annotated[bool, Option("--items", help="Also items of arrays, each by itself.")] = False
    columns: Annotated[
        list[str] | None,
        Option("--columns", metavar="NAME,…", help="These columns in this order; `--columns all` are all of them."),
    ] = None
    sort: Annotated[
        str, Option("--sort", metavar="COLUMN", help="By a column, `--sort=-elapsed` from the largest on.")
    ] = ""
    limit: Annotated[
        int | None, Option("--limit", metavar="N", min=1, help="So many rows at most; all by default.")
    ] = None
    csv: Annotated[bool, Option("--csv", help="Comma-separated values: seconds, bytes, percent and UTC times.")] = False
