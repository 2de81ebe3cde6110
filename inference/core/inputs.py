"""Which inputs a step takes: every interesting one, in order, and the newest position of the pointer.

Interesting inputs (a button, a key, text, the wheel) are never dropped and never reordered; moves give way to newer
ones. A model that takes one interesting input at a time is given one with each step. (With one click a step for every
model, a model of 20 ms a step is 12 s behind after 10 s of 50 clicks a second.)
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

PATH_MAX = 1_024
"""Positions of the pointer that one step is given; of more the oldest are left out."""

INPUTS_WAITING_MAX = 4_096
"""With so many interesting inputs waiting, the stream is not read until a step has taken some: nothing is dropped."""

Input = TypeVar("Input")


class Kind(Enum):
    """What matters of an input here."""

    MOVE = "a move of the pointer, which gives way to a newer one"
    BUTTON = "a button, which is interesting and tells a position too"
    OTHER = "a key, text or the wheel"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs(Generic[Input]):
    """What a step takes.

    `pointer` is the newest position, also where an earlier step had it; `path` are those that no step had, up to the
    newest that is taken. `newest` is the number of the newest input
    that is taken with all before it; so it stays below an interesting one that still waits.
    """

    events: tuple[Input, ...]
    pointer: Input | None
    newest: int
    coalesced: int
    path: tuple[Input, ...] = ()


@dataclass(slots=True)
class WaitingInputs(Generic[Input]):
    """The inputs of one session that no step has taken yet."""

    takes_one: bool = False
    _interesting: deque[tuple[int, Input]] = field(default_factory=deque)
    _has_move: bool = False
    _pointer: Input | None = None
    _path: deque[tuple[int, Input]] = field(default_factory=lambda: deque[tuple[int, Any]](maxlen=PATH_MAX))
    _is_asked: bool = False
    _added: int = 0
    _shown: int = 0
    _coalesced: int = 0

    def __bool__(self) -> bool:
        """Whether a step has something to take."""
        return self._has_move or self._is_asked or bool(self._interesting)

    @property
    def is_full(self) -> bool:
        """Whether no further input should be read for now."""
        return len(self._interesting) >= INPUTS_WAITING_MAX

    def add(self, sequence: int, kind: Kind, each: Input) -> bool:
        """Take an input in; False, and nothing is changed, where its number does not rise."""
        if sequence <= self._added:
            return False
        self._added = sequence
        if kind is Kind.MOVE:
            self._coalesced += self._has_move
            self._has_move = True
        else:
            self._interesting.append((sequence, each))
        if kind is not Kind.OTHER:
            self._pointer = each
            self._path.append((sequence, each))
        return True

    @property
    def pointer(self) -> Input | None:
        """The newest position, taken or not."""
        return self._pointer

    def add_own(self, kind: Kind, each: Input) -> None:
        """An interesting input that no client numbered: it shows with the next step that has all before it."""
        self._interesting.append((self._added, each))
        if kind is Kind.BUTTON:
            self._pointer = each

    def ask(self) -> None:
        """Let there be a step, though nobody did anything."""
        self._is_asked = True

    def take(self) -> StepInputs[Input]:
        """What the next step takes; it waits no longer."""
        count = min(1, len(self._interesting)) if self.takes_one else len(self._interesting)
        events = tuple(self._interesting.popleft()[1] for _ in range(count))
        # A number of this stream is at least 1: those of an older one count as 0, which shows nothing.
        newest = self._interesting[0][0] - 1 if self._interesting else self._added
        self._shown = max(self._shown, newest)
        path: list[Input] = []
        while self._path and (not self._interesting or self._path[0][0] <= newest):
            path.append(self._path.popleft()[1])
        taken = StepInputs(
            events=events, pointer=self._pointer, newest=self._shown, coalesced=self._coalesced, path=tuple(path)
        )
        self._has_move = self._is_asked = False
        self._coalesced = 0
        return taken

    def begin_stream(self) -> None:
        """Numbers begin anew. What waits was sent in good time and stays; it bears no number of the new stream."""
        self._interesting = deque((0, each) for _, each in self._interesting)
        self._path = deque(((0, each) for _, each in self._path), maxlen=PATH_MAX)
        self._added = 0
        self._shown = 0
