"""Which modes a program has switched on in the terminal, so that who detaches gets a terminal without them. Pure."""

from __future__ import annotations

import re

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
