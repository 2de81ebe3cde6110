"""What is typed to us and not to the job: a tilde at the beginning of a line, and what follows it. Pure."""

from __future__ import annotations

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
