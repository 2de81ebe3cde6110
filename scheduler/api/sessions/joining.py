"""Who may join a model: the pass phrase that a person says, compared off the loop, and the login of the dashboard.

What was found goes with the join, and the core decides by it. A pass phrase that was found right is known again by a
keyed digest in memory, so that a class that comes at once is let in at once.
"""

import asyncio
import hashlib
import hmac
import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.pass_phrases import is_pass_phrase

from ...state.sessions.events import JoinRequested
from ...state.sessions.session import Access
from ...state.state import State
from ..roles import Authenticator

TRIES_MAX = 5
"""Wrong pass phrases of one address within TRIES_SPAN_S; then it waits. The gateway's own machine is one address."""

TRIES_SPAN_S = 60.0

CHECKS_AT_ONCE = 2
"""Pass phrases that are compared at the same time: each takes a core and 16 MiB."""

CHECKS_WAITING_MAX = 500
"""Pass phrases that wait to be compared; who brings one more is asked to come again."""

ADDRESSES_MAX = 10_000
"""Addresses whose wrong tries are remembered; the one that was not seen for the longest is forgotten."""

RIGHT_MAX = 1_000
"""Hashes whose pass phrase is known again."""

LOGIN_CALL = "Scheduler/ListSessions"
"""Whose token may call this is a person of the team."""


@dataclass(slots=True)
class _Address:
    wrong_s: deque[float] = field(default_factory=deque)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Joining:
    """Finds out what a person has shown. Made inside the running loop; one for all gateways."""

    def __init__(self, view: State, authenticator: Authenticator, clock: Callable[[], float] = time.monotonic) -> None:
        self._view = view
        self._authenticator = authenticator
        self._clock = clock
        self._addresses: OrderedDict[str, _Address] = OrderedDict()
        self._right: OrderedDict[str, bytes] = OrderedDict()
        self._key = secrets.token_bytes(32)
        self._slots = asyncio.Semaphore(CHECKS_AT_ONCE)
        self._waiting = 0

    def checked(
        self, event: JoinRequested, phrase: str, login_token: str
    ) -> JoinRequested | Coroutine[Any, Any, JoinRequested]:
        """The join with what was shown; where a pass phrase is to be compared, what finds that out.

        The latter raises PASS_PHRASE_WRONG and TOO_MANY_TRIES. Who comes back to a place has shown it before.
        """
        durable = self._view.durable
        model = durable.models.get(event.model)
        earlier = durable.sessions.by_identity.get(event.identity)
        is_back = earlier is not None and durable.sessions.by_id[earlier].model == event.model
        if model is None or is_back or model.limits.access is Access.OPEN:
            return event
        if model.limits.access is Access.LOGIN:
            return replace(event, user=self._user(login_token))
        if not phrase or not model.limits.pass_phrase_hash:
            return replace(event, said_phrase=bool(phrase))
        return self._compared(replace(event, said_phrase=True), phrase, model.limits.pass_phrase_hash)

    def _user(self, token: str) -> str:
        try:
            return self._authenticator.caller_of(LOGIN_CALL, token).user if token else ""
        except GpufleetError:
            return ""

    async def _compared(self, event: JoinRequested, phrase: str, stored: str) -> JoinRequested:
        if self._waiting >= CHECKS_WAITING_MAX:
            raise GpufleetError(Reason.TOO_MANY_TRIES, "many say a pass phrase just now: try again in a minute")
        address = self._address(event.address)
        self._waiting += 1
        try:
            # One after the other, so that no more are tried at once than may be.
            async with address.turn:
                self._refuse_guesser(address)
                if not await self._is_right(phrase, stored):
                    address.wrong_s.append(self._clock())
                    message = f"this is not the pass phrase of {event.model}"
                    raise GpufleetError(Reason.PASS_PHRASE_WRONG, message)
        finally:
            self._waiting -= 1
        return replace(event, proved_hash=stored)

    def _address(self, name: str) -> _Address:
        address = self._addresses.setdefault(name, _Address())
        self._addresses.move_to_end(name)
        while len(self._addresses) > ADDRESSES_MAX:
            self._addresses.popitem(last=False)
        return address

    def _refuse_guesser(self, address: _Address) -> None:
        now_s = self._clock()
        while address.wrong_s and address.wrong_s[0] <= now_s - TRIES_SPAN_S:
            address.wrong_s.popleft()
        if len(address.wrong_s) >= TRIES_MAX:
            wait_s = max(1, math.ceil(address.wrong_s[0] + TRIES_SPAN_S - now_s))
            message = f"too many wrong pass phrases came from your address: try again in {wait_s} s"
            raise GpufleetError(Reason.TOO_MANY_TRIES, message, retry_after_s=float(wait_s))

    async def _is_right(self, phrase: str, stored: str) -> bool:
        digest = hmac.digest(self._key, phrase.encode("utf-8", "surrogatepass"), hashlib.sha256)
        known = self._right.get(stored)
        if known is not None and hmac.compare_digest(known, digest):
            return True
        async with self._slots:
            is_right = await asyncio.to_thread(is_pass_phrase, phrase, stored)
        if is_right:
            self._right[stored] = digest
            while len(self._right) > RIGHT_MAX:
                self._right.popitem(last=False)
        return is_right
