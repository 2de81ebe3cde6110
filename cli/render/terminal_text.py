"""What a job wrote, as it may go to a terminal: colours and what rewrites a line pass, what could change it does not.

A program that is followed has no more right to the terminal than a file that is read: it must not write to the
clipboard, set the title, clear the screen, send the cursor elsewhere, or make the terminal answer as if one had typed.
"""

from __future__ import annotations

import codecs
import re

STRING_CHARS_MAX = 4_096
"""So much of a sequence that holds text (a title, a clipboard) is taken out; what follows is harmless text again."""
UNFINISHED_CHARS_MAX = 64
"""So much of a sequence without an end is kept for the next piece; one that is longer is none."""

_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""What is no text; line ends, tabs, backspace and carriage return are."""
_CSI = re.compile(r"(?:\x1b\[|\x9b)([0-?]*)([ -/]*)([@-~])")
_STRING = re.compile(r"\x1b[\]PX^_]|[\x90\x98\x9d-\x9f]")
_OTHER = re.compile(r"\x1b(?!\[)[ -/]*[0-~]")
_UNFINISHED = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*|\x1b[ -/]*")
_STRING_END = re.compile(r"[\x07\x18\x1a\x9c]|(?=[\x1b\n])")
_NUMBERS = re.compile(r"[0-9;:]*")
_KEPT = frozenset("mCDGK")
"""Colours; right, left and to a column; and to erase of the line. With numbers alone: other forms mean other things."""


class TerminalText:
    """One stream of bytes on its way to a terminal, in whatever pieces it comes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._unfinished = ""
        self._string_left = 0

    def passed(self, data: bytes) -> bytes:
        """What of the next bytes may go there, now."""
        text = self._unfinished + self._decoder.decode(data)
        self._unfinished = ""
        kept: list[str] = []
        at = 0
        while at < len(text):
            if self._string_left:
                at = self._behind_string(text, at)
                continue
            control = _CONTROL.search(text, at)
            kept.append(text[at : control.start() if control else len(text)])
            if control is None:
                break
            at = self._behind_control(text, control.start(), kept)
        return "".join(kept).encode()

    def _behind_string(self, text: str, at: int) -> int:
        most = min(len(text), at + self._string_left)
        end = _STRING_END.search(text, at, most)
        self._string_left = 0 if end else self._string_left - (most - at)
        return end.end() if end else most

    def _behind_control(self, text: str, at: int, kept: list[str]) -> int:
        if csi := _CSI.match(text, at):
            numbers, between, what = csi.groups()
            if what in _KEPT and not between and _NUMBERS.fullmatch(numbers):
                kept.append(f"\x1b[{numbers}{what}")
            return csi.end()
        if string := _STRING.match(text, at):
            self._string_left = STRING_CHARS_MAX
            return string.end()
        if other := _OTHER.match(text, at):
            return other.end()
        if len(text) - at <= UNFINISHED_CHARS_MAX and _UNFINISHED.fullmatch(text, at):
            self._unfinished = text[at:]
            return len(text)
        return at + 1


def for_terminal(data: bytes) -> bytes:
    """The same for what is written at once."""
    return TerminalText().passed(data)
