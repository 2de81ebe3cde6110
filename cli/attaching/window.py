"""What was typed and has not arrived yet. Pure: it says what to send next, and to send again after a lost connection.

The job's node counts the bytes that it takes. What it has is dropped here; what it may not have is kept and, when the
way is open again, sent from exactly where the node stands. So nothing gets lost and nothing comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpufleet.v1 import scheduler_pb2

WINDOW_BYTES_MAX = 64 * 1024
"""Kept until the node has it; then whoever types waits."""

PIECE_BYTES_MAX = 32 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """To be sent: bytes from this offset on, or, when there are none, the end of the input."""

    offset: int
    data: bytes


class InputWindow:
    """The bytes between the one who types and the node."""

    def __init__(self) -> None:
        self.is_open = False
        self.has_ended = False
        """Nothing more is taken: the rest may as well not be read."""
        self._attempt = 0
        self._start = 0
        self._held = bytearray()
        self._sent = 0
        self._sent_ever = 0
        self._ends = False
        self._end_is_sent = False

    @property
    def room_bytes(self) -> int:
        """How much more may be typed now."""
        return 0 if self._ends else WINDOW_BYTES_MAX - len(self._held)

    def put(self, data: bytes) -> None:
        """Something was typed; at most `room_bytes` of it."""
        assert len(data) <= self.room_bytes, "who types has to wait"
        self._held += data

    def end(self) -> None:
        """Nothing more will be typed."""
        self._ends = True

    def lost(self) -> None:
        """The way is closed until there is news."""
        self.is_open = False

    def heard(self, news: scheduler_pb2.AttachedInput) -> int:
        """Take in what the scheduler says; answers how many bytes were sent and reached only what is gone."""
        self.is_open = news.is_open
        if not news.is_open:
            return 0
        self.has_ended = news.has_ended
        if not news.is_new:
            self._arrived(news.offset)
            return 0
        gone = 0
        is_same = news.is_continued and news.attempt == self._attempt
        if is_same and self._start <= news.offset <= self._start + self._sent_ever:
            self._arrived(news.offset)
        else:
            # Another attempt, or somebody else has typed meanwhile: what was sent is none of this input's.
            gone = self._sent_ever
            self._drop(gone)
            self._start = news.offset
        self._attempt = news.attempt
        self._sent = 0
        self._end_is_sent = False
        return gone

    def next(self) -> Piece | None:
        """What to send now, which then counts as sent; None: nothing."""
        if not self.is_open or self.has_ended:
            return None
        data = bytes(self._held[self._sent : self._sent + PIECE_BYTES_MAX])
        piece = Piece(self._start + self._sent, data)
        if data:
            self._sent += len(data)
            self._sent_ever = max(self._sent_ever, self._sent)
            return piece
        if self._ends and not self._end_is_sent:
            self._end_is_sent = True
            return piece
        return None

    def _arrived(self, offset: int) -> None:
        self._drop(max(0, min(offset - self._start, len(self._held))))

    def _drop(self, count: int) -> None:
        del self._held[:count]
        self._start += count
        self._sent = max(0, self._sent - count)
        self._sent_ever = max(0, self._sent_ever - count)
