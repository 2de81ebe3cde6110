"""How often a wrong password may be said: of a user from one address, of a user from anywhere, from an address.

A try counts as wrong until it is known to be right, so that tries at the same time are no way around. Who waits is
refused even with the right password: else a guesser would learn by being let in. Values only; times are given.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gpufleet.errors import GpufleetError, Reason

FREE_OF_PAIR, FREE_OF_USER, FREE_OF_ADDRESS = 5, 50, 30
"""Wrong tries that cost nothing: of a user from one address, of a user from anywhere, and from an address."""

PAUSE_S_MIN = 5.0
PAUSE_S_MAX_OF_PAIR, PAUSE_S_MAX_OF_USER, PAUSE_S_MAX_OF_ADDRESS = 300.0, 30.0, 300.0
"""Behind them each try has to wait twice as long as the one before, up to this. Of a user from anywhere it stays short:
else whoever knows a name could lock its person out."""

FORGOTTEN_S = 900.0
"""Who has not tried for so long begins anew."""

KNOWN_MAX = 10_000
"""Of each kind; the one that did not try for the longest is forgotten."""

PAUSE_DOUBLINGS_MAX = 20


@dataclass(slots=True)
class _Tries:
    wrong: int
    at_s: float


class Throttle:
    """The tries of one kind of key."""

    def __init__(self, free: int, pause_s_max: float) -> None:
        self._free = free
        self._pause_s_max = pause_s_max
        self._known: OrderedDict[str, _Tries] = OrderedDict()

    def wait_s(self, key: str, now_s: float) -> float:
        """How many seconds the next try has to wait; 0 for not at all."""
        tries = self._known.get(key)
        if tries is None or now_s - tries.at_s > FORGOTTEN_S or tries.wrong < self._free:
            return 0.0
        doubled_s: float = PAUSE_S_MIN * 2 ** min(tries.wrong - self._free, PAUSE_DOUBLINGS_MAX)
        pause_s = min(self._pause_s_max, doubled_s)
        return max(0.0, tries.at_s + pause_s - now_s)

    def begin(self, key: str, now_s: float) -> None:
        """A try begins, and counts as wrong."""
        tries = self._known.get(key)
        if tries is None or now_s - tries.at_s > FORGOTTEN_S:
            tries = self._known[key] = _Tries(0, now_s)
        tries.wrong += 1
        tries.at_s = now_s
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)

    def right(self, key: str) -> None:
        """A try was right."""
        self._known.pop(key, None)

    def take_back(self, key: str) -> None:
        """A try was right, which says nothing about the others of this key."""
        tries = self._known.get(key)
        if tries is not None and tries.wrong:
            tries.wrong -= 1


class PasswordTries:
    """The tries of all users and addresses."""

    def __init__(self) -> None:
        self._pairs = Throttle(FREE_OF_PAIR, PAUSE_S_MAX_OF_PAIR)
        self._users = Throttle(FREE_OF_USER, PAUSE_S_MAX_OF_USER)
        self._addresses = Throttle(FREE_OF_ADDRESS, PAUSE_S_MAX_OF_ADDRESS)

    def begin(self, user: str, address: str, now_s: float) -> None:
        """A try begins, or is refused. Raises TOO_MANY_TRIES."""
        wait_s = max(
            self._pairs.wait_s(_pair(user, address), now_s),
            self._users.wait_s(user, now_s),
            self._addresses.wait_s(address, now_s),
        )
        if wait_s > 0:
            raise GpufleetError(
                Reason.TOO_MANY_TRIES,
                f"too many wrong passwords were said: try again in {wait_s:.0f} s",
                retry_after_s=wait_s,
            )
        self._pairs.begin(_pair(user, address), now_s)
        self._users.begin(user, now_s)
        self._addresses.begin(address, now_s)

    def right(self, user: str, address: str) -> None:
        """The try was right: what went before it from there is forgiven."""
        self._pairs.right(_pair(user, address))
        self._users.take_back(user)
        self._addresses.take_back(address)


def _pair(user: str, address: str) -> str:
    return f"{user}\0{address}"
