"""Which replica a request gets: the one with the fewest, or the one that the request's session was at before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

PASSED_OVER_S = 1.0
"""A replica that refuses a connection, or closes one without an answer, gets no request for so long."""

TOGETHER_S = 1.0
"""Requests that a replica broke off within so long ended with it, and nobody knows which of them it ended for."""


@dataclass(slots=True, eq=False)
class Replica:
    """One replica of a program, as a gateway counts it."""

    id: str
    """Of this start of it: another start is another replica."""

    seats: int
    """Requests that it takes at a time."""

    under_way: int = 0
    used: int = 0
    """The number of the last request that it got; the highest is the newest."""

    passed_over_until_s: float = field(default=float("-inf"))
    broke_at_s: float = field(default=float("-inf"))
    """When it last broke off a request."""

    def broke(self, now_s: float) -> bool:
        """It broke off a request, which still counts as under way: whether it had others, too."""
        is_shared = self.under_way > 1 or now_s - self.broke_at_s <= TOGETHER_S
        self.broke_at_s = now_s
        return is_shared

    def takes(self, now_s: float) -> bool:
        """Whether one more request can go there now."""
        return self.under_way < self.seats and self.passed_over_until_s <= now_s


R = TypeVar("R", bound=Replica)


def choose(replicas: Iterable[R], now_s: float, session: str = "", avoided: Replica | None = None) -> R | None:
    """The replica for a request, or None while none takes one.

    Requests of a session go to one replica as long as it is ready and takes them, and come back to it: by rendezvous
    hashing, so that a replica that comes or goes moves no session but its own. All others go where the fewest are under
    way, and where that is even, where the last one was the longest ago. `avoided` is taken only where no other is.
    """
    replicas = list(replicas)
    if session and replicas:
        home = max(replicas, key=lambda each: _weight(session, each.id))
        if home.takes(now_s) and home is not avoided:
            return home
    able = [each for each in replicas if each.takes(now_s)]
    return min(able, key=lambda each: (each is avoided, each.under_way, each.used), default=None)


def _weight(session: str, replica: str) -> bytes:
    return hashlib.blake2b(f"{replica}\0{session}".encode(), digest_size=16).digest()
