"""How many tokens a request took, as the program's answer says: the object `usage` of OpenAI's API and its like.

It stands in a JSON answer, or in the last events of a stream. An answer is read along as it passes, and no more of it
is kept than what `usage` can be in. What a program says is its own word: numbers that cannot be are taken for none.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

TOKENS_MAX = 100_000_000
"""Of one request. A larger number is not believed."""

KEPT_BYTES_MAX = 262_144
"""An answer, or an event of a stream, that is longer is not read as a whole."""

TAIL_BYTES = 65_536
"""Of a longer answer the end is read: `usage` stands behind what was made."""

TRIES_MAX = 4
"""Places in the end of a longer answer that may be its `usage`."""

_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_LINE = b"data:"
_PROMPT, _COMPLETION = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")


@dataclass(frozen=True, slots=True)
class Tokens:
    """What went into the model, and what came out of it."""

    prompt: int
    completion: int


class TokenReader:
    """Reads along with one answer. `media_type` is its Content-Type, `coding` its Content-Encoding."""

    def __init__(self, media_type: str, coding: str) -> None:
        kind = media_type.partition(";")[0].strip().lower()
        self._is_stream = kind == "text/event-stream"
        is_readable = self._is_stream or kind == "application/json" or kind.endswith("+json")
        self._is_read = is_readable and coding.strip().lower() in ("", "identity")
        self._kept = bytearray()
        self._is_cut = False
        self._prompt: int | None = None
        self._completion: int | None = None
        self._is_wrong = False

    def read(self, data: bytes) -> None:
        """A part of the answer passes."""
        if not self._is_read:
            return
        self._kept += data
        if self._is_stream:
            self._read_lines(has_end=b"\n" in data)
        elif len(self._kept) > KEPT_BYTES_MAX:
            self._is_cut = True
            del self._kept[:-TAIL_BYTES]

    def tokens(self) -> Tokens | None:
        """What was said until now; None where nothing was, or nothing that can be."""
        if self._is_read and not self._is_stream:
            for said in self._objects():
                self._take(said)
        if self._is_wrong or (self._prompt is None and self._completion is None):
            return None
        return Tokens(self._prompt or 0, self._completion or 0)

    def _read_lines(self, *, has_end: bool) -> None:
        if has_end:
            end = self._kept.rfind(b"\n") + 1
            lines = bytes(self._kept[:end])
            del self._kept[:end]
            if _USAGE.search(lines):
                self._read_events(lines)
            self._is_cut = False
        if len(self._kept) > KEPT_BYTES_MAX:
            # The rest of this line tells nothing.
            self._is_cut = True
            self._kept.clear()

    def _read_events(self, lines: bytes) -> None:
        for number, line in enumerate(lines.split(b"\n")):
            is_rest = self._is_cut and not number
            if not is_rest and line.startswith(_LINE) and len(line) <= KEPT_BYTES_MAX and _USAGE.search(line):
                said = _object(line[len(_LINE) :])
                # A chunk has its own; an event of responses, or the first one of messages, has an object with one.
                for each in (said, said.get("response"), said.get("message")):
                    if isinstance(each, dict):
                        self._take(each)

    def _objects(self) -> list[dict[str, object]]:
        """The answer, or what its end says from where `usage` begins: an object again, if it is a field of its own."""
        if not self._is_cut:
            return [_object(bytes(self._kept))]
        starts = [found.start() for found in _USAGE.finditer(self._kept)][-TRIES_MAX:]
        found = (_object(b"{" + bytes(self._kept[start:])) for start in reversed(starts))
        return [each for each in found if each][:1]

    def _take(self, said: dict[str, object]) -> None:
        usage = said.get("usage")
        if not isinstance(usage, dict):
            return
        for names, attribute in ((_PROMPT, "_prompt"), (_COMPLETION, "_completion")):
            number = next((usage[name] for name in names if usage.get(name) is not None), None)
            if number is None:
                continue
            if type(number) is int and 0 <= number <= TOKENS_MAX:
                setattr(self, attribute, number)
            else:
                self._is_wrong = True


def _object(text: bytes) -> dict[str, object]:
    """The JSON object in a text; an empty one where there is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
