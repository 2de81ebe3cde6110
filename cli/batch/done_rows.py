"""Which rows have an answer, and what they were when they were asked."""

from __future__ import annotations

from array import array

CRC32S_MAX = 100_000_000
"""Of rows beyond, what they were is not remembered: 4 bytes each."""


class DoneRows:
    """The rows that have an answer; a bit and a checksum each where they are numbers, so that millions fit.

    `lines` is the number of lines that there must be: one more than the last that has an answer.
    """

    def __init__(self) -> None:
        self._bits = bytearray()
        self._crc32s = array("I")
        self._names: dict[str, int] = {}
        self.answered = 0
        self.failed = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self.answered + self.failed

    @property
    def lines(self) -> int:
        """How many lines there must be."""
        return 8 * len(self._bits) - 8 + self._bits[-1].bit_length() if self._bits else 0

    def add(self, key: int | str, *, is_ok: bool, crc32: int = 0) -> None:
        """One has its answer, or its error; what it was is 0 where that is not known."""
        self.answered += is_ok
        self.failed += not is_ok
        if isinstance(key, str):
            self._names[key] = crc32
            return
        if crc32 and key < CRC32S_MAX:
            if key >= len(self._crc32s):
                self._crc32s.extend(bytes(key + 1 - len(self._crc32s)))
            self._crc32s[key] = crc32
        self._bits.extend(bytes(max(0, key // 8 + 1 - len(self._bits))))
        self._bits[key // 8] |= 1 << key % 8

    def __contains__(self, key: object) -> bool:
        if isinstance(key, str):
            return key in self._names
        assert isinstance(key, int)
        return key // 8 < len(self._bits) and bool(self._bits[key // 8] & 1 << key % 8)

    def crc32_of(self, key: int | str) -> int:
        """What one was that has an answer; 0 where that is not known."""
        if isinstance(key, str):
            return self._names.get(key, 0)
        return self._crc32s[key] if key < len(self._crc32s) else 0
