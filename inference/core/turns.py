"""Whose turn it is: seats, epochs, tickets that were used, and turns that wait for their stream.

A session's epoch rises with each ticket. A stream of a higher epoch replaces the one before; whatever an older epoch
still says (a close, an input, a release) does nothing. So an old tab cannot free a seat twice, and one that closes in
the middle of its inputs cannot lose it for good.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

KEPT_US_MAX = 15_000_000
"""A turn without a stream is kept for so long."""

CLAIM_US_MAX = 10_000_000
"""A seat is kept so long for a turn that was announced and is not opened."""

TICKET_US_MAX = 40_000_000
"""Beyond the life of a ticket (30 s) and what clocks may differ: an epoch older than this needs no remembering."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A session on this worker. `detached_us` is when its stream was lost; None while it has one."""

    session: str
    epoch: int
    identity: str
    began_us: int
    detached_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A stream has the turn. `is_resumed`: the session was here; `replaced_epoch`: the stream that it takes over
    from.
    """

    turn: Turn
    is_resumed: bool
    replaced_epoch: int | None = None


class NotOpened(Enum):
    """Why a good ticket opens nothing."""

    USED = "the ticket was used, or a newer one was made"
    OTHER_IDENTITY = "the session belongs to somebody else"
    NO_SEAT = "every seat is taken"
    DRAINING = "the worker takes no new turns"


@dataclass(frozen=True, slots=True)
class _Expected:
    epoch: int
    identity: str
    until_us: int


@dataclass(slots=True)
class Turns:
    """The turns of one worker."""

    seats: int
    is_draining: bool = False
    _live: dict[str, Turn] = field(default_factory=dict)
    _expected: dict[str, _Expected] = field(default_factory=dict)
    _epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Session → the highest epoch that must not open again, and when that need not be remembered any longer."""

    def live(self) -> tuple[Turn, ...]:
        """Every turn, the oldest first."""
        return tuple(self._live.values())

    def of(self, session: str, epoch: int) -> Turn | None:
        """The turn, if exactly this epoch has it."""
        turn = self._live.get(session)
        return turn if turn is not None and turn.epoch == epoch else None

    def expect(self, session: str, epoch: int, identity: str, now_us: int) -> None:
        """A turn will be opened: keep a seat for it. An epoch that is not new does nothing."""
        self._forget(now_us)
        if epoch <= self._highest(session):
            return
        self._expected[session] = _Expected(epoch, identity, now_us + CLAIM_US_MAX)
        # Tickets of lower epochs are void from now on.
        self._remember(session, epoch - 1, now_us)

    def open(self, session: str, epoch: int, identity: str, now_us: int) -> Opened | NotOpened:
        """A stream with a good ticket comes."""
        self._forget(now_us)
        before = self._live.get(session)
        expected = self._expected.get(session)
        if epoch <= self._highest(session):
            return NotOpened.USED
        if identity != (before or expected or _Expected(0, identity, 0)).identity:
            return NotOpened.OTHER_IDENTITY
        if before is None and (refusal := self._no_seat_for(session)) is not None:
            return refusal
        self._expected.pop(session, None)
        self._remember(session, epoch, now_us)
        began_us = now_us if before is None else before.began_us
        turn = Turn(session=session, epoch=epoch, identity=identity, began_us=began_us)
        self._live[session] = turn
        had_stream = before is not None and before.detached_us is None
        return Opened(
            turn=turn, is_resumed=before is not None, replaced_epoch=before.epoch if before and had_stream else None
        )

    def detach(self, session: str, epoch: int, now_us: int) -> bool:
        """A stream was lost; False, and nothing is changed, where a newer one has the turn or it has ended."""
        turn = self.of(session, epoch)
        if turn is None or turn.detached_us is not None:
            return False
        self._live[session] = replace(turn, detached_us=now_us)
        return True

    def end(self, session: str, epoch: int, now_us: int) -> Turn | None:
        """End the turn of this epoch or an older one, and what was announced of it; answers the turn that ended, if
        any.

        Where a newer epoch has the turn, or is announced, nothing is changed.
        """
        self._forget(now_us)
        expected, turn = self._expected.get(session), self._live.get(session)
        if any(each is not None and each.epoch > epoch for each in (expected, turn)):
            return None
        self._expected.pop(session, None)
        self._remember(session, epoch, now_us)
        return self._live.pop(session, None)

    def overdue(self, now_us: int) -> tuple[Turn, ...]:
        """Turns that have been without a stream for too long; the caller ends them."""
        return tuple(
            turn
            for turn in self._live.values()
            if turn.detached_us is not None and now_us - turn.detached_us >= KEPT_US_MAX
        )

    def _no_seat_for(self, session: str) -> NotOpened | None:
        if session in self._expected:
            return None if len(self._live) < self.seats else NotOpened.NO_SEAT
        if self.is_draining:
            return NotOpened.DRAINING
        return None if len(self._live) + len(self._expected) < self.seats else NotOpened.NO_SEAT

    def _highest(self, session: str) -> int:
        """The highest epoch of the session that must not open any more."""
        turn = self._live.get(session)
        remembered, _ = self._epochs.get(session, (-1, 0))
        return max(remembered, -1 if turn is None else turn.epoch)

    def _remember(self, session: str, epoch: int, now_us: int) -> None:
        remembered, _ = self._epochs.get(session, (-1, 0))
        self._epochs[session] = (max(remembered, epoch), now_us + TICKET_US_MAX)

    def _forget(self, now_us: int) -> None:
        self._epochs = {each: kept for each, kept in self._epochs.items() if kept[1] > now_us}
        self._expected = {each: kept for each, kept in self._expected.items() if kept.until_us > now_us}
