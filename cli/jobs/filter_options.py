"""How commands of many jobs are told which: by their names, or by what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument
from ..options import in_panel

Which = Annotated[
    list[str] | None,
    Argument(metavar="[JOB…]", help="Ids, 40-45, items 41.3-7, last, all, or names.", autocompletion=complete_jobs),
]

choose = in_panel("Choose jobs by what they are, in place of naming them")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What the jobs that are meant have in common: all that is given holds. Without any the jobs are named."""

    name: Annotated[str, choose("--name", metavar="NAME", help="All jobs of this name, however many.")] = ""
    user: Annotated[str, choose("--user", metavar="NAME", help="This person's; your own by default.")] = ""
    state: Annotated[
        list[str] | None, choose("--state", metavar="STATE,…", help="In these states: queued,running.")
    ] = None
    label: Annotated[list[str] | None, choose("--label", metavar="NAME=VALUE", help="With this label.")] = None
    array: Annotated[int | None, choose("--array", metavar="ID", min=1, help="Items of this array.")] = None

    @property
    def are_given(self) -> bool:
        """Whether any is."""
        return bool(self.name or self.user or self.state or self.label or self.array)
