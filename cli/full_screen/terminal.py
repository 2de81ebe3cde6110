"""This program's terminal, taken over whole and put back as it was."""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from typing import Any

from ..render.table import WIDTH

OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
END_OF_LINE, CLEAR = "\x1b[K", "\x1b[2J"
PLAIN = str.maketrans({"█": "#", "·": ".", "–": "-", "…": "~", "°": " ", "↑": "^", "↓": "v"})
"""For terminals that lack these."""


class Terminal:
    """The screen and the keys. However the program ends, `close` puts them back."""

    def __init__(self) -> None:
        self._before: Any = None
        self._is_open = False
        self._drawn: list[str] = []
        encoding = sys.stdout.encoding or "utf-8"
        self._is_plain = not encoding.lower().startswith("utf")

    def open(self) -> None:
        """Take it over; its keys only where they are typed to this program."""
        if sys.stdin.isatty():
            self._before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        self._is_open = True
        self._write(OPEN)
        self._drawn = []

    def close(self) -> None:
        """Put it back as it was."""
        was_open, self._is_open = self._is_open, False
        before, self._before = self._before, None
        with contextlib.suppress(OSError, termios.error):  # its window may be gone, and nothing is to be put back
            if before is not None:
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
            if was_open:
                self._write(CLOSE)

    @property
    def size(self) -> os.terminal_size:
        """Columns and lines now; an exported COLUMNS does not follow the window."""
        try:
            return os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            return os.terminal_size((WIDTH, 24))

    def draw(self, lines: list[str]) -> None:
        """Show these lines; only those that differ are written."""
        parts = []
        if len(lines) != len(self._drawn):
            parts.append(CLEAR)
            self._drawn = [""] * len(lines)
        parts += [
            f"\x1b[{number};1H{line}{END_OF_LINE}"
            for number, (line, before) in enumerate(zip(lines, self._drawn, strict=True), start=1)
            if line != before
        ]
        if parts:
            self._drawn = lines
            self._write("".join(parts))

    def forget(self) -> None:
        """What is on the screen is not known any more: the next picture is drawn whole."""
        self._drawn = []

    def _write(self, text: str) -> None:
        text = text.translate(PLAIN) if self._is_plain else text
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
        sys.stdout.buffer.flush()
