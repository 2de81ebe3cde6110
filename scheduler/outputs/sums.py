"""Checksums of stored output: one of each block of a segment, so that a flipped bit is found, and roughly where. Pure.

They are made of the bytes as they arrive and become known at each sync: a block that still grows is checked as far as
it was synced. A checksum that is missing, because a crash lost it or an earlier version wrote the segment, leaves bytes
unchecked and calls nothing wrong. CRC-32 as zlib has it: 7 GB/s, where output comes at a fraction of that.
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

BLOCK_BYTES = 1024 * 1024
"""How much of a segment one checksum is of, at most."""

_FIELDS = struct.Struct(">qqI")
ENTRY_BYTES = _FIELDS.size + 4
"""A block as bytes: where it begins and ends in its segment, its checksum, and a checksum of these three."""

_UNWRITTEN = bytes(ENTRY_BYTES)
"""What a machine that crashed may leave in place of an entry; it says nothing."""


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes of a segment from one position to another, and their checksum."""

    begin: int
    end: int
    checksum: int


NOTHING = Block(0, 0, 0)


def packed(blocks: Iterable[Block]) -> bytes:
    """The blocks as bytes, ENTRY_BYTES each."""
    fields = (_FIELDS.pack(block.begin, block.end, block.checksum) for block in blocks)
    return b"".join(each + zlib.crc32(each).to_bytes(4) for each in fields)


def unpacked(data: bytes) -> list[Block | None]:
    """The blocks that the bytes hold, entry by entry; None is one that is not what was written."""
    blocks: list[Block | None] = []
    for start in range(0, len(data) - ENTRY_BYTES + 1, ENTRY_BYTES):
        entry = data[start : start + ENTRY_BYTES]
        fields = entry[: _FIELDS.size]
        if zlib.crc32(fields) == int.from_bytes(entry[_FIELDS.size :]):
            blocks.append(Block(*_FIELDS.unpack(fields)))
        else:
            blocks.append(NOTHING if entry == _UNWRITTEN else None)
    return blocks


@dataclass(slots=True)
class GrowingSums:
    """The checksums of a segment that is written: those of full blocks, and of the one that grows.

    `index` is how many full blocks are before the one that grows. What settle() has not seen may be taken back.
    """

    index: int = 0
    begin: int = 0
    end: int = 0
    checksum: int = 0
    _full: list[Block] = field(default_factory=list)
    _settled: tuple[int, int, int, int] = (0, 0, 0, 0)

    def __post_init__(self) -> None:
        self._settled = (self.index, self.begin, self.end, self.checksum)

    @classmethod
    def following(cls, known: Sequence[Block | None], size: int) -> "GrowingSums":
        """Those of a segment of which so many bytes are there, with the checksums that are stored of it.

        It goes on where the stored ones end. Bytes between there and `size` are for the caller to add.
        """
        for index, block in reversed(list(enumerate(known))):
            if block is not None and block.begin < block.end <= size:
                if block.end - block.begin < BLOCK_BYTES:
                    return cls(index, block.begin, block.end, block.checksum)
                return cls(index + 1, block.end, block.end)
        return cls()

    def skip_to(self, position: int) -> None:
        """Leave out the bytes up to a position: they stay without a checksum."""
        if position > self.end:
            self._close()
            self.begin = self.end = position

    def add(self, data: memoryview) -> None:
        """Bytes were written behind those before."""
        while data:
            count = min(len(data), BLOCK_BYTES - (self.end - self.begin))
            self.checksum = zlib.crc32(data[:count], self.checksum)
            self.end += count
            data = data[count:]
            if self.end - self.begin >= BLOCK_BYTES:
                self._close()

    def unsettled(self) -> tuple[int, list[Block]]:
        """The blocks that are not stored as they are now, and how many come before them."""
        grown = [Block(self.begin, self.end, self.checksum)] if self.end > self.begin else []
        return self.index - len(self._full), [*self._full, *grown]

    def settle(self) -> None:
        """All of it is stored."""
        self._full.clear()
        self._settled = (self.index, self.begin, self.end, self.checksum)

    def go_back(self, size: int) -> bool:
        """Forget bytes beyond a size; False where that is not where it was settled last, and it must begin anew."""
        self._full.clear()
        self.index, self.begin, self.end, self.checksum = self._settled
        return self.end == size

    def _close(self) -> None:
        if self.end > self.begin:
            self._full.append(Block(self.begin, self.end, self.checksum))
            self.index += 1
        self.begin, self.checksum = self.end, 0
