"""Keys out of the bytes of a terminal: characters, and words for those that send a sequence."""

from __future__ import annotations

import codecs
import re

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
