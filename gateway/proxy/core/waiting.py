"""Requests that wait for a replica: one caller after the other, with bounds, and what is honestly known of the wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

WAITING_MAX = 1_000
"""Requests of one program that may wait."""

WAITING_PER_CALLER_MAX = 250
"""Of these, how many may be one caller's."""

WAITING_IN_ALL_MAX = 4_000
"""Requests of all programs that may wait; a gateway keeps a connection and the beginning of a body for each."""

ENDS_REMEMBERED = 64
"""From so many ends follows how fast places move up."""

ENDS_FORGOTTEN_S = 60.0
"""Where none has ended for so long, nothing is known of it."""


@dataclass(slots=True, eq=False)
class Waiting:
    """One request that waits."""

    caller: str
    since_s: float


W = TypeVar("W", bound=Waiting)


class WaitingRequests(Generic[W]):
    """The requests of one program. Callers take turns, in the order in which they began to wait; the requests of one
    keep their order."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, deque[W]] = OrderedDict()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def has_room(self, caller: str, waiting_in_all: int) -> bool:
        """Whether one more of this caller may wait."""
        is_full = self._count >= WAITING_MAX or waiting_in_all >= WAITING_IN_ALL_MAX
        return not is_full and len(self._callers.get(caller, ())) < WAITING_PER_CALLER_MAX

    def add(self, request: W) -> None:
        """It waits from now on."""
        self._callers.setdefault(request.caller, deque()).append(request)
        self._count += 1

    def first(self) -> W | None:
        """Whose turn it is."""
        return next(iter(self._callers.values()))[0] if self._callers else None

    def take(self) -> W:
        """The first one, which waits no longer; its caller is the last one now."""
        caller, requests = next(iter(self._callers.items()))
        request = requests.popleft()
        self._count -= 1
        self._callers.move_to_end(caller)
        if not requests:
            del self._callers[caller]
        return request

    def remove(self, request: W) -> None:
        """It has left, wherever it stood."""
        requests = self._callers[request.caller]
        requests.remove(request)
        self._count -= 1
        if not requests:
            del self._callers[request.caller]

    def place_of(self, request: W) -> int:
        """How many turns it is until this one's: 1 for the first."""
        own = self._callers[request.caller].index(request)
        place, is_before = 1, True
        for caller, requests in self._callers.items():
            if caller == request.caller:
                place, is_before = place + own, False
            else:
                # In each round before its own, every caller has one turn; in its own, those who stand before it.
                place += min(len(requests), own + is_before)
        return place

    def oldest_s(self) -> float | None:
        """Since when the one waits that waits the longest."""
        return min((requests[0].since_s for requests in self._callers.values()), default=None)


class Ends:
    """When the last requests of a program ended, from which follows how fast a place moves up."""

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=ENDS_REMEMBERED)

    def add(self, now_s: float) -> None:
        """One has ended."""
        self._at_s.append(now_s)

    def estimate_s(self, place: int, now_s: float) -> float | None:
        """Seconds until a place's turn, where it goes on as it went; None where too little is known to say."""
        if len(self._at_s) < 2 or now_s - self._at_s[-1] > ENDS_FORGOTTEN_S:
            return None
        return place * (now_s - self._at_s[0]) / len(self._at_s)
