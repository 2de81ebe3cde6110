"""What is typed to an attempt, in order and each byte once: offsets count from the first byte ever typed to it.

The keeper holds a bounded queue between those who type and the process. It takes what begins where it stands and has
room for, leaves out what it has, and takes nothing behind a hole. One writer types at a time; who was the last one
is remembered, so that a session that comes back after a lost connection goes on where it was.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT_BYTES_MAX = 64 * 1024
"""What waits for a process that does not read. Behind it whoever types waits."""

CHUNK_BYTES_MAX = 32 * 1024
"""The most in one message."""

COLUMNS_MAX = ROWS_MAX = 65_535
"""What the kernel can be told of a terminal's size."""

COLUMNS, ROWS = 80, 24
"""The size of a terminal to which nobody has attached yet."""


@dataclass(frozen=True, slots=True)
class Typed:
    """Where the input of an attempt stands. `has_ended`: nothing more is taken."""

    offset: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class InputPiece:
    """Bytes from an offset on; `is_end`: the input ends behind them."""

    offset: int
    data: bytes
    is_end: bool = False


class InputQueue:
    """What was taken and is not written to the process yet."""

    def __init__(self) -> None:
        self.writer = ""
        self.offset = 0
        self.is_ending = False
        self.waiting = bytearray()

    @property
    def room_bytes(self) -> int:
        """How much more is taken now."""
        return 0 if self.is_ending else INPUT_BYTES_MAX - len(self.waiting)

    def begin(self, writer: str) -> bool:
        """Another session types from now on; answers whether it was the last one that did."""
        is_continued = writer == self.writer
        self.writer = writer
        return is_continued

    def take(self, piece: InputPiece) -> bool:
        """Take what is new of a piece, as far as there is room; answers whether all of it was taken, or useless."""
        known = self.offset - piece.offset
        if known < 0 or self.is_ending:
            return True  # behind a hole, or behind the end: nothing of it will ever fit
        new = piece.data[known:]
        taken = new[: self.room_bytes]
        self.waiting += taken
        self.offset += len(taken)
        if len(taken) < len(new):
            return False
        # An end that lies before what was taken is an old one, of a session that was cut off.
        self.is_ending = piece.is_end and self.offset == piece.offset + len(piece.data)
        return True

    def written(self, count: int) -> None:
        """So many bytes are the process's now."""
        del self.waiting[:count]
