"""What is typed to us and not to the job: a tilde at the beginning of a line, and what follows it. Pure."""

from __future__ import annotations

import re
from enum import Enum, auto

TILDE = ord("~")
LINE_ENDS = b"\r\n\x03"
"""After Enter a line begins, and after Ctrl-C."""

HELP = "~. detaches, and the job goes on · ~~ types one ~ · ~? shows this"


class Escape(Enum):
    """What is asked of us."""

    DETACH = auto()
    HELP = auto()


class EscapeFilter:
    """Passes on what is typed; a tilde that begins a line is held back until the next key."""

    def __init__(self) -> None:
        self._begins_line = True
        self._holds_tilde = False

    def feed(self, typed: bytes) -> tuple[bytes, Escape | None]:
        """What goes to the job, and what is asked of us; what was typed behind a DETACH goes nowhere."""
        passed = bytearray()
        asked: Escape | None = None
        for key in typed:
            if self._holds_tilde:
                self._holds_tilde = False
                if key == ord("."):
                    return bytes(passed), Escape.DETACH
                if key == ord("?"):
                    asked = Escape.HELP
                    continue
                passed.append(TILDE)
                self._begins_line = False
                if key == TILDE:
                    continue
            elif key == TILDE and self._begins_line:
                self._holds_tilde = True
                continue
            passed.append(key)
            self._begins_line = key in LINE_ENDS
        return bytes(passed), asked


ON_BY_DEFAULT = frozenset({7, 25})
"""Lines wrap, and the cursor is shown."""

KNOWN = frozenset({1, 7, 9, 25, 47, 1000, 1002, 1003, 1004, 1005, 1006, 1015, 1047, 1049, 2004})
"""Keys of the application, wrapping, the mouse, the cursor, other screens, focus, pasting in brackets."""

SEQUENCE_BYTES_MAX = 64
"""A longer sequence is none of these; so much is kept of one that is not complete yet."""

_SET_MODES = re.compile(rb"\x1b\[\?([0-9;]{1,48})([hl])")
_UNFINISHED = re.compile(rb"\x1b(\[(\?[0-9;]*)?)?$")
_PLAIN = b"\x1b[0m"


class Modes:
    """Reads along with what a job shows."""

    def __init__(self) -> None:
        self._changed: dict[int, bool] = {}
        self._unfinished = b""

    def feed(self, shown: bytes) -> None:
        """Take in some output."""
        if not self._unfinished and b"\x1b" not in shown:
            return
        text = self._unfinished + shown
        for numbers, word in _SET_MODES.findall(text):
            for number in numbers.split(b";"):
                if number and int(number) in KNOWN:
                    self._changed[int(number)] = word == b"h"
        unfinished = _UNFINISHED.search(text[-SEQUENCE_BYTES_MAX:])
        self._unfinished = unfinished.group() if unfinished else b""

    def undo(self) -> bytes:
        """What to show to the terminal so that it is as it was; empty when nothing was changed."""
        different = [number for number, is_on in self._changed.items() if is_on != (number in ON_BY_DEFAULT)]
        self._changed.clear()
        undone = b"".join(b"\x1b[?%d%c" % (number, b"h" if number in ON_BY_DEFAULT else b"l") for number in different)
        return undone + _PLAIN if undone else b""
