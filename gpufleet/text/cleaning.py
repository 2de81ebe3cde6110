"""Text that others wrote: whether it is UTF-8, and as one line that a terminal may be shown."""

from __future__ import annotations


def clean(text: str) -> str:
    """The text on one line, with nothing in it that could move a cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each in "\n\t" else "�" for each in text)


def is_utf8(text: str) -> bool:
    """Whether the text can be encoded; bytes of names and of variables that are not UTF-8 are surrogates in it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
