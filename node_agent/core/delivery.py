"""Delivery both ways: nothing is lost, repetitions do no harm, and what is old is known to be old.

Up, messages carry (incarnation, sequence) and reports are kept until the scheduler has stored them. Down,
they carry (term, sequence), and each names the newest message of ours that the scheduler had: that tells
how old its knowledge was. All times are microseconds of the clock that goes on while the machine sleeps.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

SEND_TIME_STEP_US = 100_000
"""Send times are remembered in steps of this; a message counts as sent at the beginning of its step."""

SEND_TIMES_MAX = 1_200
"""Steps that are remembered: two minutes of an agent that never rests, and more of one that does."""

REPORTS_KEPT_MAX = 100_000
"""Reports that wait for a scheduler. The inventory says the same again, so the oldest may go without loss."""

Report = TypeVar("Report")

Receipt = tuple[int, int]
"""Names a message down: the number of its stream, and its own."""


@dataclass(slots=True)
class SendTimes:
    """When messages up were sent, well enough for "was that more than 30 s ago?", in bounded memory.

    A wrong answer is wrong on the safe side: a message counts as sent a little earlier than it was.
    """

    _first_sequences: deque[int] = field(default_factory=deque)
    _times_us: deque[int] = field(default_factory=deque)
    _newest: int = 0

    def sent(self, sequence: int, at_us: int) -> None:
        """Remember that this number was sent for the first time; numbers rise."""
        assert sequence > self._newest
        self._newest = sequence
        if self._times_us and at_us - self._times_us[-1] < SEND_TIME_STEP_US:
            return
        self._first_sequences.append(sequence)
        self._times_us.append(at_us)
        if len(self._times_us) > SEND_TIMES_MAX:
            self._first_sequences.popleft()
            self._times_us.popleft()

    def when(self, sequence: int) -> int | None:
        """When this number was sent; None when it never was, or too long ago to be remembered."""
        if not 1 <= sequence <= self._newest:
            return None
        step = bisect_right(self._first_sequences, sequence) - 1
        return self._times_us[step] if step >= 0 else None


@dataclass(slots=True)
class _Kept(Generic[Report]):
    sequence: int
    report: Report
    # The acknowledgement that covers the report: its own number, or after a repetition that of the next
    # new message, because one of the inventory that went before it on the stream says nothing about what
    # came after.
    covered_by: int


@dataclass(slots=True)
class Outbox(Generic[Report]):
    """Gives every message up its number and keeps reports until they are stored."""

    _kept: deque[_Kept[Report]] = field(default_factory=lambda: deque(maxlen=REPORTS_KEPT_MAX))
    _times: SendTimes = field(default_factory=SendTimes)
    _next: int = 1

    def number(self, now_us: int) -> int:
        """The number of a message that is not kept: a beat, an inventory, a piece of a log."""
        sequence = self._next
        self._next += 1
        self._times.sent(sequence, now_us)
        return sequence

    def keep(self, report: Report, now_us: int) -> int:
        """The number of a report, which is kept until it is acknowledged."""
        sequence = self.number(now_us)
        self._kept.append(_Kept(sequence, report, sequence))
        return sequence

    def repetitions(self) -> tuple[tuple[int, Report], ...]:
        """What to send again behind the inventory on a new stream, in order and with the old numbers."""
        for kept in self._kept:
            kept.covered_by = self._next
        return tuple((kept.sequence, kept.report) for kept in self._kept)

    def acknowledge(self, sequence: int) -> tuple[Report, ...]:
        """Return what is stored by now: everything up to this number. One that was never given out says nothing."""
        stored: list[Report] = []
        while sequence < self._next and self._kept and self._kept[0].covered_by <= sequence:
            stored.append(self._kept.popleft().report)
        return tuple(stored)

    def when(self, sequence: int) -> int | None:
        """When this number was sent; None when it never was, or longer ago than is remembered."""
        return self._times.when(sequence)

    @property
    def kept_count(self) -> int:
        """Reports that wait for their acknowledgement."""
        return len(self._kept)


class Judgement(Enum):
    """What to do with a message down."""

    NEW = "new"
    DUPLICATE = "duplicate"
    STALE_TERM = "stale term"


@dataclass(slots=True)
class Inbox:
    """Tells new messages down from repeated and from outdated ones, and counts what was carried out.

    `highest_term` is the highest term ever seen; the shell stores it before the first message of it is
    carried out.
    """

    highest_term: int = 0
    _stream: int = 0
    _newest: int = 0
    _open: set[int] = field(default_factory=set)

    def another_store(self) -> None:
        """What comes is of another store than what came, and its terms count anew."""
        self.highest_term = 0

    def stream_opened(self) -> None:
        """Numbers down begin anew with each stream."""
        self._stream += 1
        self._newest = 0
        self._open.clear()

    def judge(self, term: int, sequence: int) -> Judgement:
        """Judge a message by its number. A new one is open until `carried_out`."""
        if term < self.highest_term:
            return Judgement.STALE_TERM
        self.highest_term = term
        if sequence <= self._newest:
            return Judgement.DUPLICATE
        self._newest = sequence
        self._open.add(sequence)
        return Judgement.NEW

    def receipt(self, sequence: int) -> Receipt:
        """What names this message of the present stream, also when another one has begun."""
        return self._stream, sequence

    def carried_out(self, receipt: Receipt) -> None:
        """A message was carried out; commands may finish in another order than they came, and late."""
        stream, sequence = receipt
        if stream == self._stream:
            self._open.discard(sequence)

    @property
    def acked_sequence(self) -> int:
        """Everything down to this number was carried out."""
        return min(self._open) - 1 if self._open else self._newest
