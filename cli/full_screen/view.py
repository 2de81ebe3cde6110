"""What a key does, which part of the rows is seen, how they are sorted and what they may be sorted by."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Generic, Protocol, TypeVar

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Sort(Generic[R]):
    """A way to sort: by `measure`, where None comes last; numbers from the largest on unless `smallest_first`."""

    word: str
    measure: Callable[[R], Any]
    smallest_first: bool = False


Sorts = Mapping[str, Sort[R]]
"""Key → way to sort, in the order in which `,` and `.` go through them."""


@dataclass(frozen=True, slots=True)
class Order(Generic[R]):
    """How the rows are sorted: a key of `sorts`, the other way round or not."""

    sorts: Sorts[R] = field(repr=False)
    key: str
    is_reversed: bool = False

    @property
    def word(self) -> str:
        """`load`, `load reversed`."""
        return self.sorts[self.key].word + (" reversed" if self.is_reversed else "")

    def next(self, step: int) -> Order[R]:
        """The order so many columns on, around the end."""
        keys = list(self.sorts)
        return Order(self.sorts, keys[(keys.index(self.key) + step) % len(keys)], self.is_reversed)

    def by(self, key: str) -> Order[R]:
        """The order of this key, reversed for a capital letter; this order where there is no such key."""
        if len(key) != 1 or key.lower() not in self.sorts:
            return self
        return Order(self.sorts, key.lower(), is_reversed=key.isupper())

    def sorted(self, rows: Sequence[R]) -> list[R]:
        """The rows in this order; equal ones stay as they are, and those without a measure come last."""
        sort = self.sorts[self.key]
        falls = sort.smallest_first == self.is_reversed
        measured = [row for row in rows if sort.measure(row) is not None]
        others = [row for row in rows if sort.measure(row) is None]
        # `reverse` keeps equal ones in their places, too.
        return sorted(measured, key=sort.measure, reverse=falls) + others


class Rows(Protocol):
    """The rows that a view shows a part of."""

    @property
    def order(self) -> Order[Any]:
        """How they are sorted."""
        ...

    @order.setter
    def order(self, order: Order[Any]) -> None: ...

    @property
    def shown(self) -> Sequence[Any]:
        """Those that pass the filter, in their order."""
        ...

    def filter(self, text: str) -> None:
        """Show those alone that hold each of these words."""


FILTER_CHARS_MAX = 60

F = TypeVar("F", bound=Rows)


class Mode(Enum):
    """What the next key is for."""

    ROWS = auto()
    FILTER = auto()
    ORDER = auto()
    HELP = auto()


class Wish(Enum):
    """What a key asks of the program."""

    NOTHING = auto()
    LEAVE = auto()
    REFRESH = auto()


SCROLLS: dict[str, int | str] = {
    "up": -1,
    "k": -1,
    "down": 1,
    "j": 1,
    "page-up": "-page",
    "page-down": "page",
    " ": "page",
    "home": "home",
    "g": "home",
    "end": "end",
    "G": "end",
}


@dataclass(slots=True)
class View(Generic[F]):
    """The rows from `first` on. `room` is how many lines there are for them, and is set whenever that changes.

    `toggles` are the keys that only this program knows, and what they do.
    """

    rows: F
    mode: Mode = Mode.ROWS
    first: int = 0
    room: int = 20
    filter: str = ""
    toggles: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    layout: Any = None
    """What the program's picture has worked out for the rows as they are."""

    def press(self, key: str) -> Wish:
        """A key was pressed."""
        match self.mode:
            case Mode.HELP:
                self.mode = Mode.ROWS
                return Wish.LEAVE if key == "q" else Wish.NOTHING
            case Mode.FILTER:
                self._type(key)
                return Wish.NOTHING
            case Mode.ORDER:
                self._sort(key)
                return Wish.NOTHING
            case Mode.ROWS:
                return self._command(key)

    def clamp(self) -> None:
        """Keep what is seen within the rows that there are."""
        self.first = max(0, min(self.first, len(self.rows.shown) - self.room))

    def _command(self, key: str) -> Wish:
        match key:
            case "q" | "Q":
                return Wish.LEAVE
            case "r" | "refresh":
                return Wish.REFRESH
            case "h" | "?":
                self.mode = Mode.HELP
            case "/" | "f":
                self.mode = Mode.FILTER
            case "o":
                self.mode = Mode.ORDER
            case "," | ".":
                self.rows.order = self.rows.order.next(-1 if key == "," else 1)
            case "escape":
                self._filter_by("")
            case _ if key in SCROLLS:
                self._scroll(SCROLLS[key])
            case _ if key in self.toggles:
                self.toggles[key]()
            case _:
                pass
        return Wish.NOTHING

    def _type(self, key: str) -> None:
        match key:
            case "enter":
                self.mode = Mode.ROWS
            case "escape":
                self.mode = Mode.ROWS
                self._filter_by("")
            case "backspace":
                self._filter_by(self.filter[:-1])
            case "clear":
                self._filter_by("")
            case _ if len(key) == 1 and key.isprintable():
                self._filter_by((self.filter + key)[:FILTER_CHARS_MAX])
            case _ if key in SCROLLS:
                self._scroll(SCROLLS[key])
            case _:
                pass

    def _filter_by(self, text: str) -> None:
        self.filter = text
        self.first = 0
        self.rows.filter(text)

    def _sort(self, key: str) -> None:
        self.mode = Mode.ROWS
        order = self.rows.order.by(key)
        if order is not self.rows.order:
            self.rows.order = order
            self.first = 0

    def _scroll(self, by: int | str) -> None:
        self.clamp()
        match by:
            case int():
                self.first += by
            case "page" | "-page":
                page = max(1, self.room - 1)
                self.first += page if by == "page" else -page
            case "home":
                self.first = 0
            case _:
                self.first = len(self.rows.shown)
        self.clamp()


SEQUENCES = {
    "\x1b": "escape",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "\x1b[5~": "page-up",
    "\x1b[6~": "page-down",
    "\x1b[H": "home",
    "\x1bOH": "home",
    "\x1b[1~": "home",
    "\x1b[7~": "home",
    "\x1b[F": "end",
    "\x1bOF": "end",
    "\x1b[4~": "end",
    "\x1b[8~": "end",
    "\x1b[15~": "refresh",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "backspace",
    "\x08": "backspace",
    "\x15": "clear",
    "\x06": "page-down",
    "\x02": "page-up",
}
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|O.)|.", re.DOTALL)
"""One key: a control sequence whole, known or not, or a character."""
BEGUN = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*|O)?\Z")
"""What may be the beginning of a sequence whose rest is still on its way."""
PENDING_CHARS_MAX = 32
"""A sequence is shorter; what is longer is none."""


class KeyReader:
    """Takes bytes as they come, cut anywhere. Esc alone is told only by `flush`, when nothing follows it."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""

    @property
    def is_pending(self) -> bool:
        """Whether the beginning of a key waits for its rest."""
        return bool(self._pending)

    def feed(self, typed: bytes) -> list[str]:
        """The keys that are complete now; sequences that nobody knows are left out."""
        text = self._pending + self._decoder.decode(typed)
        begun = BEGUN.search(text)
        cut = begun.start() if begun is not None and len(text) - begun.start() <= PENDING_CHARS_MAX else len(text)
        self._pending = text[cut:]
        found: list[str] = SEQUENCE.findall(text[:cut])
        return [SEQUENCES.get(each, each) for each in found if each in SEQUENCES or not each.startswith("\x1b")]

    def flush(self) -> list[str]:
        """Nothing followed: what waits was Esc, or is dropped."""
        pending, self._pending = self._pending, ""
        return [SEQUENCES[pending]] if pending in SEQUENCES else []
