"""How an option is typed and what its help says, apart from the options themselves: a command that has none of a job's
reads its own by this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, get_type_hints


class TypedOption(NamedTuple):
    """How an option is typed, and its help, under the title of a panel."""

    flags: tuple[str, ...]
    panel: str
    help: str
    metavar: str | None = None
    min: int | None = None


def in_panel(title: str) -> Callable[..., TypedOption]:
    """What declares an option under this title of the help, as typer's `Option` does."""

    def option(*flags: str, help: str, **more: Any) -> TypedOption:
        return TypedOption(flags, title, help, **more)

    return option


@functools.cache
def hints_of(options: type) -> Mapping[str, Any]:
    """The types of a dataclass of options, with how each is typed; worked out once, which takes milliseconds."""
    return get_type_hints(options, include_extras=True)
