"""Who may use a program: everybody where it is open, else people with a token of their own or logged in here, and
their running jobs, by the jobs' own tokens."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict

from gpufleet.v1 import sessions_pb2
from starlette.requests import HTTPConnection

from gpufleet.errors import Code, GpufleetError, Reason
from gpufleet.security.tokens import TOKEN_PREFIX, is_token

from ..dashboard.guard import address_of, bearer_in, not_a_token
from ..dashboard.serving import Dashboard

KNOWN_S = 10.0
"""A token that the scheduler knows is not asked about again for so long: one that was revoked works no longer."""

KNOWN_AWAY_S = 3_600.0
"""The same while the scheduler is not heard: replicas answer meanwhile, to those who used them before."""

KNOWN_MAX = 10_000
"""Tokens that are remembered, by their digests; the one that was not used for the longest is forgotten."""


class Access:
    """Asks the scheduler whose a token is, and remembers the answer for a moment."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._known: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    async def user_of(
        self, request: HTTPConnection, access: sessions_pb2.ModelAccess.ValueType, login: str | None = None
    ) -> str:
        """Who asks; empty for a stranger at an open program. A program that is not open wants a person. `login` is the
        token of who is logged in where the program is asked for; without it that is the dashboard.

        Raises LOGIN_NEEDED, TOKEN_INVALID and what else the scheduler says of a token.
        """
        is_open = access == sessions_pb2.MODEL_ACCESS_OPEN
        token = self._token_of(request, login)
        if not token and not is_open:
            raise GpufleetError(
                Reason.LOGIN_NEEDED,
                "this is for people who are logged in to the dashboard, or bring their token",
                next_step=f"Log in at /dashboard, or send the header Authorization: Bearer {TOKEN_PREFIX}…",
            )
        try:
            return await self._user(request, token) if token else ""
        except GpufleetError:
            if is_open:
                return ""
            raise

    async def person_of(self, request: HTTPConnection, login: str | None = None) -> tuple[str, str]:
        """Who asks, who must be known, and their token. Raises as `user_of` does."""
        user = await self.user_of(request, sessions_pb2.MODEL_ACCESS_LOGIN, login)
        return user, self._token_of(request, login)

    def brings_token(self, request: HTTPConnection, login: str | None = None) -> bool:
        """Whether a request comes with a gpufleet token, or from somebody who is logged in."""
        return bool(self._token_of(request, login))

    def _token_of(self, request: HTTPConnection, login: str | None = None) -> str:
        """The gpufleet token that comes with a request; a bearer of another kind is the program's own matter."""
        brought = bearer_in(request) or ""
        if brought.startswith(TOKEN_PREFIX):
            return brought
        return self._dashboard.login_of(request) if login is None else login

    async def _user(self, request: HTTPConnection, token: str) -> str:
        if not is_token(token):
            raise not_a_token()
        now_s = asyncio.get_running_loop().time()
        digest = hashlib.sha256(token.encode()).digest()
        user, since_s = self._known.get(digest, ("", float("-inf")))
        if now_s - since_s < KNOWN_S:
            return user
        try:
            # A running job asks served programs in its owner's name, and nothing else here.
            user = (await self._dashboard.who_asks(request, token, allows_job=True)).user
        except GpufleetError as error:
            if error.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED) and now_s - since_s < KNOWN_AWAY_S:
                return user
            self._known.pop(digest, None)
            raise
        self._known[digest] = (user, now_s)
        self._known.move_to_end(digest)
        while len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return user


def caller_of(request: HTTPConnection, user: str) -> str:
    """Who takes turns with the others that wait: a person, or an address of strangers."""
    return f"user {user}" if user else f"address {address_of(request)}"
