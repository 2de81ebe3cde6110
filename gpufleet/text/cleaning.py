"""Text that others wrote, as one line that a terminal may be shown."""

from __future__ import annotations


def clean(text: str) -> str:
    """The text on one line, with nothing in it that could move a cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each in "\n\t" else "�" for each in text)
