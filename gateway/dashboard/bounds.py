"""How much one person, one address and all of them together may ask for. Values only: who waits does so elsewhere."""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, Reason

CALLS_PER_SECOND = 30.0
"""What one person may ask for in the long run."""

CALLS_AT_ONCE = 120
"""What one may ask for at once after a while of rest."""

STREAMS_PER_PERSON_MAX = 32
"""A page has two or three open; browsers open six for all tabs of one address."""

STREAMS_MAX = 4_000
"""Of all people together."""

KNOWN_MAX = 10_000
"""People and addresses that are remembered; the one that was not seen for the longest is forgotten."""

WRONG_FREE = 3
"""So many wrong tokens are anybody's slip: they are answered as fast as right ones."""

WRONG_S_MAX = 8.0
"""Behind them each answer to a wrong one takes twice as long as the one before, up to this."""

WRONG_FORGOTTEN_S = 600.0
"""An address that has sent no wrong token for so long begins anew."""

WAITING_PER_ADDRESS_MAX = 8
"""Answers to wrong tokens that may be waited for; further logins of the address are refused."""


@dataclass(slots=True)
class _Bucket:
    left: float
    at_s: float


class Rates:
    """Calls of each person."""

    def __init__(self) -> None:
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, person: str, now_s: float) -> None:
        """One call more. Raises QUOTA_EXCEEDED."""
        bucket = self._buckets.setdefault(person, _Bucket(CALLS_AT_ONCE, now_s))
        self._buckets.move_to_end(person)
        if len(self._buckets) > KNOWN_MAX:
            self._buckets.popitem(last=False)
        bucket.left = min(CALLS_AT_ONCE, bucket.left + (now_s - bucket.at_s) * CALLS_PER_SECOND)
        bucket.at_s = now_s
        if bucket.left < 1:
            raise GpufleetError(
                Reason.QUOTA_EXCEEDED,
                f"these are more than {CALLS_PER_SECOND:g} calls a second by one person",
                next_step="Wait as long as is said; a program should watch instead of asking.",
                retry_after_s=(1 - bucket.left) / CALLS_PER_SECOND,
            )
        bucket.left -= 1


class Streams:
    """Open streams of each person, or what else is counted like them."""

    def __init__(
        self,
        person_max: int = STREAMS_PER_PERSON_MAX,
        what: str = "streams",
        next_step: str = "Close one: a tab with the dashboard, or a program that follows.",
    ) -> None:
        self._open: Counter[str] = Counter()
        self._person_max = person_max
        self._what = what
        self._next_step = next_step

    def open(self, person: str) -> None:
        """One more. Raises TOO_MANY_STREAMS."""
        if self._open.total() >= STREAMS_MAX:
            raise GpufleetError(Reason.TOO_MANY_STREAMS, f"this gateway carries {STREAMS_MAX} {self._what} and no more")
        if self._open[person] >= self._person_max:
            raise GpufleetError(
                Reason.TOO_MANY_STREAMS,
                f"{self._person_max} {self._what} of one person are open",
                next_step=self._next_step,
            )
        self._open[person] += 1

    def closed(self, person: str) -> None:
        """One less."""
        self._open[person] -= 1
        if not self._open[person]:
            del self._open[person]


@dataclass(slots=True)
class _Guesser:
    wrong: int
    at_s: float
    waiting: int = 0


class Guesses:
    """Wrong tokens by address: a right one is never kept waiting by them."""

    def __init__(self) -> None:
        self._guessers: OrderedDict[str, _Guesser] = OrderedDict()

    def check(self, address: str) -> None:
        """Whether one more token may be tried from there now. Raises QUOTA_EXCEEDED."""
        guesser = self._guessers.get(address)
        if guesser is not None and guesser.waiting >= WAITING_PER_ADDRESS_MAX:
            raise GpufleetError(
                Reason.QUOTA_EXCEEDED,
                "too many wrong tokens came from this address",
                next_step="Wait some seconds and try again.",
                retry_after_s=WRONG_S_MAX,
            )

    def wrong(self, address: str, now_s: float) -> float:
        """A wrong token came: how many seconds its answer is to take. `answered` follows."""
        guesser = self._guessers.get(address)
        if guesser is None or (now_s - guesser.at_s > WRONG_FORGOTTEN_S and not guesser.waiting):
            guesser = self._guessers[address] = _Guesser(0, now_s)
        self._guessers.move_to_end(address)
        if len(self._guessers) > KNOWN_MAX:
            self._guessers.popitem(last=False)
        guesser.wrong += 1
        guesser.at_s = now_s
        guesser.waiting += 1
        over = guesser.wrong - WRONG_FREE
        return 0.0 if over <= 0 else min(WRONG_S_MAX, 0.25 * 2 ** min(over, 10))

    def answered(self, address: str) -> None:
        """The answer to a wrong token left."""
        guesser = self._guessers.get(address)
        if guesser is not None and guesser.waiting:
            guesser.waiting -= 1
