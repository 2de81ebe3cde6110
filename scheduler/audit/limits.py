"""What comes too often is counted and not written, so that no flood fills the disk or hides what else happened.

Refusals are bounded by who is refused: the user where a token says one, else the address, and all of those together.
Calls that a client makes many times for one thing, such as connections to a port, are counted where they are alike.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from ipaddress import IPv6Address, ip_address
from itertools import takewhile
from typing import TypeVar

from ..state.audited import AuditedCall

K = TypeVar("K")

REFUSALS_AT_ONCE, REFUSALS_PER_SECOND = 20.0, 2.0
"""Refusals of one user, or one address without a user, that are written each by itself."""

STRANGERS_AT_ONCE, STRANGERS_PER_SECOND = 200.0, 10.0
"""The same of all addresses together."""

COUNTED_SECONDS = 60.0
"""For so long what is alike is counted before its row is written."""

REFUSED_MAX = 1_000
"""Users and addresses whose refusals are counted each by itself; of further ones only the sum is known."""

ALIKE_MAX = 10_000
"""Kinds of calls that are counted at the same time; a further one is written each time."""

IPV6_NETWORK_BITS = 64
"""One machine may have every address of such a network."""

SEVERAL = "(several)"
"""Stands for a name where counted calls have different ones."""


@dataclass(slots=True)
class Budget:
    """How many may go through: `left` now, and more with time."""

    left: float
    at_s: float

    def takes(self, now_s: float, most: float, per_second: float) -> bool:
        """Whether one more goes through."""
        self.left = min(most, self.left + (now_s - self.at_s) * per_second)
        self.at_s = now_s
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


@dataclass(slots=True)
class CountedCalls:
    """Calls that were not written yet: the newest one, how many, and since when."""

    begin_s: float
    newest: AuditedCall
    count: int = 0

    def add(self, call: AuditedCall, count: int = 1) -> None:
        """One more. What differs from those before is not told."""
        last = self.newest
        if self.count:
            call = replace(
                call,
                call=call.call if call.call == last.call else SEVERAL,
                reason=call.reason if call.reason == last.reason else "",
                target=call.target if call.target == last.target else "",
                detail=call.detail if call.detail == last.detail else "",
                message=call.message if call.message == last.message else "",
            )
            if call.jobs != last.jobs:
                call = replace(call, jobs="", first_job=0, last_job=0)
        self.newest = call
        self.count += count


class Thinning:
    """Says which calls are written now; what is counted comes out of due()."""

    def __init__(self, now_s: float) -> None:
        self._strangers = Budget(STRANGERS_AT_ONCE, now_s)
        self._budgets: OrderedDict[tuple[str, str], Budget] = OrderedDict()
        self._refused: dict[tuple[str, str], CountedCalls] = {}
        self._alike: dict[tuple[object, ...], CountedCalls] = {}

    def is_written(self, call: AuditedCall, now_s: float, *, counts_alike: bool) -> bool:
        """Whether a call has a row of its own; it is counted where it has none."""
        if call.is_refused:
            return self._passes(call, now_s)
        if not counts_alike:
            return True
        what = call.call, call.target, call.jobs, call.detail, call.code, call.is_open
        key = (call.user, call.token, call.peer, *what)
        counted = self._alike.get(key)
        if counted is not None:
            counted.add(call)
            return False
        if len(self._alike) < ALIKE_MAX:
            self._alike[key] = CountedCalls(now_s, call)
        return True

    def _passes(self, call: AuditedCall, now_s: float) -> bool:
        whose = ("user", call.user) if call.user else ("address", network_of(call.peer))
        budget = self._budgets.pop(whose, None) or Budget(REFUSALS_AT_ONCE, now_s)
        self._budgets[whose] = budget  # behind all others: who was refused longest ago is forgotten first
        while len(self._budgets) > REFUSED_MAX:
            self._budgets.popitem(last=False)
        if not budget.takes(now_s, REFUSALS_AT_ONCE, REFUSALS_PER_SECOND):
            self._count(whose, call, now_s)
            return False
        if not call.user and not self._strangers.takes(now_s, STRANGERS_AT_ONCE, STRANGERS_PER_SECOND):
            self._count(("address", SEVERAL), replace(call, peer=SEVERAL, via=""), now_s)
            return False
        return True

    def _count(self, whose: tuple[str, str], call: AuditedCall, now_s: float) -> None:
        if whose not in self._refused and len(self._refused) >= REFUSED_MAX:
            whose = (whose[0], SEVERAL)
            call = replace(call, user=SEVERAL if call.user else "", token="", node="", peer=SEVERAL, via="")
        self._refused.setdefault(whose, CountedCalls(now_s, call)).add(call)

    def due(self, now_s: float, *, is_over: bool = False) -> Iterator[AuditedCall]:
        """Rows of what was counted for long enough, or at all where it `is_over`."""
        before_s = float("inf") if is_over else now_s - COUNTED_SECONDS
        for counted in (*_taken(self._refused, before_s), *_taken(self._alike, before_s)):
            if counted.count:
                yield replace(counted.newest, count=counted.count)


def _taken(counted: dict[K, CountedCalls], before_s: float) -> list[CountedCalls]:
    """Those whose counting began until then; they are in that order, and are taken out."""
    keys = list(takewhile(lambda key: counted[key].begin_s <= before_s, counted))
    return [counted.pop(key) for key in keys]


def network_of(peer: str) -> str:
    """The address, or the network that stands for it, by which strangers are told apart."""
    try:
        address = ip_address(peer)
    except ValueError:
        return peer
    if isinstance(address, IPv6Address):
        return str(int(address) >> (128 - IPV6_NETWORK_BITS))
    return peer
