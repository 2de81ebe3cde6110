"""What a key does, and which part of the rows is seen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from .fleet import SORTS, Fleet, Order

FILTER_CHARS_MAX = 60


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

HELP = """\
q            leave                        h ?   this help
↑ ↓ j k      scroll by a line             Home End g G first and last GPU
PgUp PgDn    scroll by a page; Space, too
/ f          filter as you type: words of node, model, job, user, or free,
             unhealthy, foreign; Enter keeps it, Esc drops it
o and then   n node   s load   g memory   p power   t temperature
             j job    u user; a capital letter sorts the other way round
, .          sort by the column before, or behind
r F5         have the GPUs read anew

The bar of LOAD is how busy a GPU is, that of MEMORY how full. A reading that
is old shows its age in place of the number. – is what a GPU does not tell.
FREE counts GPUs that would be given whole to a job now.

Any key goes back."""


@dataclass(slots=True)
class View:
    """The rows from `first` on. `room` is how many lines there are for them, and is set whenever that changes."""

    fleet: Fleet
    mode: Mode = Mode.ROWS
    first: int = 0
    room: int = 20
    filter: str = ""
    layout: Any = None
    """What `picture.py` has worked out for the rows as they are."""

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
        self.first = max(0, min(self.first, len(self.fleet.shown) - self.room))

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
                self.fleet.order = self.fleet.order.next(-1 if key == "," else 1)
            case "escape":
                self._filter_by("")
            case _ if key in SCROLLS:
                self._scroll(SCROLLS[key])
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
        self.fleet.filter(text)

    def _sort(self, key: str) -> None:
        self.mode = Mode.ROWS
        if key.lower() in SORTS and len(key) == 1:
            self.fleet.order = Order(key.lower(), is_reversed=key.isupper())
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
                self.first = len(self.fleet.shown)
        self.clamp()
