"""Tables: columns as wide as they must be, cut where they may be, 80 columns in all unless told otherwise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

GAP = "  "
ELLIPSIS = "…"
WIDTH = 80
"""Where there is no terminal to ask."""


class Colour(Enum):
    """Colour is used for states only."""

    GOOD = "32"
    WARNING = "33"
    BAD = "31"


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw: how wide, with colour or not, and all columns or only the usual ones."""

    width: int | None = WIDTH
    has_colour: bool = False
    is_wide: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    """A text with a colour."""

    text: str
    colour: Colour | None = None


@dataclass(frozen=True, slots=True)
class Column:
    """A column. Without `least` it is never cut; with it, it may shrink to that many characters.

    What is beyond `most` goes first where room is short. A last column that `wraps` goes on below instead of being cut.
    """

    title: str
    is_right: bool = False
    least: int | None = None
    most: int | None = None
    wraps: bool = False


Row = Sequence[Cell | str]


def draw(columns: Sequence[Column], rows: Iterable[Row], look: Look) -> list[str]:
    """The lines of the table, its title first."""
    cells = [[_cell(each) for each in row] for row in rows]
    widths = [
        max([shown_width(column.title), *(shown_width(row[number].text) for row in cells)])
        for number, column in enumerate(columns)
    ]
    if look.width is not None:
        _shrink(widths, [column.most for column in columns], look.width)
        _shrink(widths, [column.least for column in columns], look.width)
    lines = [_line([Cell(column.title) for column in columns], columns, widths, look)]
    for row in cells:
        pieces = wrapped(row[-1].text, widths[-1]) if columns[-1].wraps else [row[-1].text]
        lines.append(_line([*row[:-1], Cell(pieces[0], row[-1].colour)], columns, widths, look))
        below = " " * (sum(widths[:-1]) + len(GAP) * (len(widths) - 1))
        lines += [below + piece for piece in pieces[1:]]
    return lines


def clean(text: str) -> str:
    """The text on one line, with nothing in it that could move a cursor."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else " " if each in "\n\t" else "�" for each in text)


def shown_width(text: str) -> int:
    """Columns that the text takes on a terminal."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def cut(text: str, width: int) -> str:
    """The text in at most this many columns; what was cut off shows as an ellipsis."""
    if shown_width(text) <= width:
        return text
    kept, used = [], 0
    for character in text:
        used += _width(character)
        if used > width - 1:
            break
        kept.append(character)
    return "".join(kept).rstrip() + ELLIPSIS


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most this many columns, broken between words, and inside a word that is longer."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if shown_width(longer) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        while shown_width(word) > width:
            head = _as_much_as_fits(word, width)
            lines[-1] = head
            lines.append("")
            word = word[len(head) :]
        lines[-1] = word
    return lines


def _as_much_as_fits(word: str, width: int) -> str:
    used = 0
    for number, character in enumerate(word):
        used += _width(character)
        if used > width and number:
            after_slash = word.rfind("/", 0, number) + 1  # paths break between their parts
            return word[: after_slash if after_slash > number // 2 else number]
    return word


def painted(text: str, colour: Colour | None, look: Look) -> str:
    """The text in its colour, where there are colours."""
    return f"\x1b[{colour.value}m{text}\x1b[0m" if colour and look.has_colour else text


def _cell(value: Cell | str) -> Cell:
    if isinstance(value, str):
        return Cell(clean(value))
    return Cell(clean(value.text), value.colour)


def _width(character: str) -> int:
    import unicodedata  # most names are ASCII, and need none of its tables

    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _shrink(widths: list[int], floors: Sequence[int | None], width: int) -> None:
    """Take what is too much from the columns that have a floor, always from the one with most above it."""
    excess = sum(widths) + len(GAP) * (len(widths) - 1) - width
    while excess > 0:
        spare = [
            (widths[number] - floor, number)
            for number, floor in enumerate(floors)
            if floor is not None and widths[number] > floor
        ]
        if not spare:
            return
        widths[max(spare)[1]] -= 1
        excess -= 1


def _line(row: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], look: Look) -> str:
    parts = []
    for cell, column, width in zip(row, columns, widths, strict=True):
        text = cut(cell.text, width)
        padding = " " * (width - shown_width(text))
        text = painted(text, cell.colour, look)
        parts.append(padding + text if column.is_right else text + padding)
    return GAP.join(parts).rstrip()
