"""Tables: columns as wide as they must be, cut where they may be, 80 columns in all unless told otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeVar

from gpufleet.text.cleaning import clean

GAP = "  "
ELLIPSIS = "…"
INDENT = "    "
CLAUSE = " · "
WIDTH = 80
"""Where there is no terminal to ask."""

ABSENT = "–"
"""What nobody told."""

T = TypeVar("T")


class Colour(Enum):
    """Colour is used for states only."""

    GOOD = "32"
    WARNING = "33"
    BAD = "31"


@dataclass(frozen=True, slots=True)
class Look:
    """How to draw: how wide, with colour or not, and all columns or only the usual ones.

    `terminal_width` is that of the terminal that shows it, also where `width` sets no limit; None without one.
    """

    width: int | None = WIDTH
    has_colour: bool = False
    is_wide: bool = False
    terminal_width: int | None = None


class Cell(NamedTuple):
    """A text with a colour."""

    text: str
    colour: Colour | None = None


class Column(NamedTuple, Generic[T]):
    """A column, and what it shows of the thing that a row stands for.

    Without `least` it is never cut; with it, it may shrink to that many characters.

    What is beyond `most` goes first where room is short. A column with a `rank` is left out, the highest rank first,
    where the others would have to be cut below `most` for it. A last column that `wraps` goes on below instead of being
    cut, and one that `goes_below` has lines of its own where the row is too long for the terminal. Of a cell
    `of_clauses`, separated by CLAUSE, the last ones are left out before the first two are cut, and these between words.
    """

    title: str
    show: Callable[[T], Cell | str]
    is_right: bool = False
    least: int | None = None
    most: int | None = None
    wraps: bool = False
    rank: int = 0
    goes_below: bool = False
    of_clauses: bool = False


def draw(columns: Sequence[Column[T]], items: Iterable[T], look: Look) -> list[str]:
    """The lines of the table, its title first, then a row for each item."""
    return _drawn(columns, [[_cell(column.show(item)) for column in columns] for item in items], look)


def _drawn(columns: Sequence[Column[Any]], cells: Sequence[Sequence[Cell]], look: Look) -> list[str]:
    widths = [
        max([shown_width(column.title), *(shown_width(row[number].text) for row in cells)])
        for number, column in enumerate(columns)
    ]
    if look.width is not None:
        kept = _kept(columns, widths, look.width)
        columns, widths = [columns[number] for number in kept], [widths[number] for number in kept]
        cells = [[row[number] for number in kept] for row in cells]
    room = look.width or look.terminal_width
    floors = [column.least for column in columns]
    if columns[-1].wraps:  # words are never broken
        words = (word for row in cells for word in row[-1].text.split(" "))
        floors[-1] = max([columns[-1].least or 0, *map(shown_width, words)])
    if columns[-1].goes_below and room is not None and _width_of(widths, floors) > room:
        return _draw_with_lines_below(columns, cells, replace(look, width=look.width and room), room)
    if look.width is not None:
        _shrink(widths, [column.most for column in columns], look.width)
        _shrink(widths, floors, look.width)
    lines = [_line([Cell(column.title) for column in columns], columns, widths, look)]
    for row in cells:
        pieces = wrapped(row[-1].text, widths[-1]) if columns[-1].wraps else [row[-1].text]
        lines.append(_line([*row[:-1], Cell(pieces[0], row[-1].colour)], columns, widths, look))
        below = " " * (sum(widths[:-1]) + len(GAP) * (len(widths) - 1))
        lines += [below + piece for piece in pieces[1:]]
    return lines


def _kept(columns: Sequence[Column[Any]], widths: Sequence[int], width: int) -> list[int]:
    """The columns for which there is room: those of the lowest ranks."""
    kept = list(range(len(columns)))
    for number in sorted(kept, key=lambda each: -columns[each].rank):
        wanted = sum(min(widths[each], columns[each].most or widths[each]) for each in kept)
        if not columns[number].rank or wanted + len(GAP) * (len(kept) - 1) <= width:
            break
        kept.remove(number)
    return kept


def _width_of(widths: Sequence[int], floors: Sequence[int | None]) -> int:
    """How wide a table is at least."""
    least = (min(width, width if floor is None else floor) for width, floor in zip(widths, floors, strict=True))
    return sum(least) + len(GAP) * (len(widths) - 1)


def _draw_with_lines_below(
    columns: Sequence[Column[Any]], rows: Sequence[Sequence[Cell]], look: Look, room: int
) -> list[str]:
    """The table without its last column, of which each cell stands in lines of its own below its row."""
    title, *lines = _drawn(columns[:-1], [row[:-1] for row in rows], look)
    drawn = [title]
    for line, row in zip(lines, rows, strict=True):
        below = wrapped(row[-1].text, room - len(INDENT))
        drawn += [line, *(INDENT + painted(piece, row[-1].colour, look) for piece in below if piece)]
    return drawn


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


def cut_between(text: str, width: int) -> str:
    """The text in at most this many columns: without the clauses behind its second, and else without its last words."""
    while shown_width(text) > width and text.count(CLAUSE) > 1:
        text = text.rpartition(CLAUSE)[0]
    shown = cut(text, width)
    if shown == text or " " not in shown:
        return shown
    kept = shown.removesuffix(ELLIPSIS)
    if not text.removeprefix(kept).startswith(" "):
        kept = kept.rpartition(" ")[0]
    return kept.rstrip(CLAUSE) + ELLIPSIS


def cut_painted(line: str, width: int) -> str:
    """A drawn line in at most this many columns; its colours take none."""
    pieces, left = [], width
    for number, piece in enumerate(re.split(r"(\x1b\[[0-9;]*m)", line)):
        if not number % 2:
            piece = cut(piece, left) if left else ""
            left -= shown_width(piece)
        pieces.append(piece)
    return "".join(pieces)


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of at most this many columns, broken between words and between the parts of a path.

    A word that is longer has a line of its own.
    """
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if shown_width(longer) <= width:
            lines[-1] = longer
            continue
        if lines[-1]:
            lines.append("")
        while shown_width(word) > width and (head := _parts_that_fit(word, width)):
            lines[-1] = head
            lines.append("")
            word = word[len(head) :]
        lines[-1] = word
    return lines


def _parts_that_fit(word: str, width: int) -> str:
    """The parts of a path that fit, the slash behind them; empty where not one does."""
    head = ""
    for part in re.findall(r"[^/]*/+", word):
        if shown_width(head + part) > width:
            break
        head += part
    return head


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


def _line(row: Sequence[Cell], columns: Sequence[Column[Any]], widths: Sequence[int], look: Look) -> str:
    cells = zip(row, columns, widths, strict=True)
    return GAP.join(
        fitted(cell, width, look, is_right=column.is_right, shorten=cut_between if column.of_clauses else cut)
        for cell, column, width in cells
    ).rstrip()


def fitted(cell: Cell, width: int, look: Look, *, is_right: bool, shorten: Callable[[str, int], str] = cut) -> str:
    """The cell in exactly this many columns."""
    text = shorten(cell.text, width)
    padding = " " * (width - shown_width(text))
    text = painted(text, cell.colour, look)
    return padding + text if is_right else text + padding
