"""What a mistyped word was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

WORD_CHARS_MAX = 200
"""What is longer is like nothing: to compare it would take seconds for each million characters."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is most like this one, None when nothing is alike."""
    if len(word) > WORD_CHARS_MAX:
        return None
    import difflib  # only a mistake pays for it

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?` to put at the end of an error, empty when nothing is alike."""
    found = nearest(word, known)
    return f'; did you mean "{found}"?' if found else ""
