"""Lines as a .gitignore has them, matched in bounded time: a line may come from a stranger, and so may the names.

pathspec makes a regular expression of a line, in which each * and ** may stand for a piece of any length. Tried one
within another, twenty of them take years over one name, and no other thread of the process runs meanwhile. What
comes before a further * or ** need only be tried at the first place where it fits, so the expression is made to keep
to that; what a line matches stays the same. But for one thing: [!a] and [+-9] match no slash, as with git.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from typing import Any, AnyStr, cast

from pathspec import GitIgnoreSpec
from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_STAR, _ONE = "[^/]*", "[^/]"
_ABOVE, _BETWEEN = "^(?:.+/)?", "(?:/.+)?"
"""What pathspec writes for *, ? and ** in front and in the middle; no slash comes into an expression otherwise, but
between names."""
_CLASS = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
"""What is escaped, and [...] as it stands in an expression of pathspec."""


class BoundedPattern(GitIgnoreSpecPattern):
    """A line; one that has no meaning, such as `[z-a]`, matches nothing, as with git."""

    __slots__ = ()

    @classmethod
    def pattern_to_regex(cls, pattern: AnyStr) -> tuple[AnyStr | None, bool | None]:
        regex, include = super().pattern_to_regex(pattern)
        if not isinstance(regex, str):
            return regex, include
        try:
            re.compile(regex)
        except re.error:
            return None, None
        return cast("Any", _bounded(_CLASS.sub(_without_slash, regex))), include


def spec_of(lines: Iterable[str]) -> GitIgnoreSpec:
    """What the lines match. Errors: ValueError for one that is no pattern."""
    with warnings.catch_warnings():
        # What later versions of `re` may read otherwise, such as [[a], is for nobody who writes a .gitignore.
        warnings.simplefilter("ignore", FutureWarning)
        return GitIgnoreSpec.from_lines(lines, BoundedPattern, backend="simple")


def means_nothing(line: str) -> bool:
    """Whether the line matches nothing, whatever the names are. Errors: ValueError as of `spec_of`."""
    return all(each.include is None for each in spec_of([line]).patterns)


def _without_slash(found: re.Match[str]) -> str:
    text = found[0]
    return text if text.startswith("\\") or text == _ONE else rf"(?!\x2f){text}"


def _bounded(regex: str) -> str:
    first, *others = map(_stars_bounded, regex.split(_BETWEEN))
    if not others:
        return first
    if first.startswith(_ABOVE):
        first = f"^(?>(?:.+?/)??{first.removeprefix(_ABOVE)}(?=/))"
    *middle, last = others
    return "".join((first, *(f"(?>(?:/.+?)??{each}(?=/))" for each in middle), _BETWEEN, last))


def _stars_bounded(regex: str) -> str:
    """The same, where of several stars in a name each but the last stands for as little as it can."""
    first, *others = regex.split(_STAR)
    bounded = [first]
    for number, each in enumerate(others, 1):
        is_last_of_name = number == len(others) or "/" in each.replace(_ONE, "")
        bounded.append(f"{_STAR}{each}" if is_last_of_name else f"(?>{_STAR}?{each})")
    return "".join(bounded)
