"""All ways to log in that the settings have: from what somebody says to a person, or a refusal.

A nonce opens one login: one that comes again is refused, whatever the provider makes of its code.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from gpufleet.config.login_settings import LoginSettings, OidcSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.users_file import PASSWORD_CHARS_MAX, FileUser, hash_password, is_password
from gpufleet.telemetry.logs import fields

from ..state.access import OIDC_LOGIN, PASSWORD_LOGIN, Role, Token
from ..state.ids import UserName
from .claims import ProvenPerson, person_of, refused_login
from .id_tokens import KeyUnknown, checked_claims
from .provider import Provider, read_client_secret
from .throttle import PasswordTries
from .users import Users

log = logging.getLogger(__name__)

CHECKED_AT_ONCE_MAX = 2
"""Passwords that are hashed at the same time: each takes 64 MiB and a processor."""

WAITING_MAX = 32
"""Tries that wait for that; more are refused."""

NONCES_MAX = 10_000
"""Nonces of the last logins that are remembered; a provider's answers are older than that long before."""

WRONG = "the user or the password is not right"


class Ways:
    """Made inside the running loop. `now_s` is the scheduler's clock, in seconds since 1970; `monotonic` counts waits.

    Raises what is wrong with the files that the settings name.
    """

    def __init__(
        self, login: LoginSettings, oidc: OidcSettings, now_s: Callable[[], float], monotonic: Callable[[], float]
    ) -> None:
        self._now_s = now_s
        self._monotonic = monotonic
        self._tries = PasswordTries()
        self._checking = asyncio.Semaphore(CHECKED_AT_ONCE_MAX)
        self._waiting = 0
        self._nonces: OrderedDict[str, None] = OrderedDict()
        self._nobody_hash = ""
        self.oidc = oidc
        self.users = None if login.users_file is None else Users(login.users_file)
        self.provider = Provider(oidc, monotonic) if oidc.issuer else None
        read_client_secret(oidc.client_secret_file)

    async def by_password(self, user: str, password: str, address: str) -> ProvenPerson:
        """Who says a password. Raises LOGIN_FAILED, TOO_MANY_TRIES, LOGIN_NOT_SET_UP, EXTRA_MISSING."""
        if self.users is None:
            raise GpufleetError(Reason.LOGIN_NOT_SET_UP, "this scheduler has no users with passwords")
        name = user[:64]
        self._tries.begin(name, address, self._monotonic())
        known = self.users.now().get(user)
        if not await self._is_right(password, known) or known is None:
            log.warning("a login failed", extra=fields(user=name, address=address, why="wrong user or password"))
            raise refused_login(WRONG, "Try again, or ask an admin who writes the file of users.")
        self._tries.right(name, address)
        return ProvenPerson(UserName(known.name), Role(known.role), _login_of(known))

    async def by_code(self, code: str, redirect_uri: str, code_verifier: str, nonce: str) -> ProvenPerson:
        """Whom the provider says that a code is of. Raises LOGIN_FAILED, LOGIN_PROVIDER_FAILED, LOGIN_NOT_SET_UP."""
        provider = self.checked_provider()
        self._take_nonce(nonce)
        id_token = await provider.id_token(code=code, redirect_uri=redirect_uri, code_verifier=code_verifier)
        try:
            claims = self._claims(id_token, await provider.keys(), nonce)
        except KeyUnknown:
            try:
                claims = self._claims(id_token, await provider.keys(newer=True), nonce)
            except KeyUnknown:
                log.warning("an ID token was refused", extra=fields(why="its key is not among the provider's"))
                raise refused_login("the provider's ID token is signed with a key that is not the provider's") from None
        return person_of(claims, self.oidc)

    def checked_provider(self) -> Provider:
        """The provider. Raises LOGIN_NOT_SET_UP."""
        if self.provider is None:
            raise GpufleetError(Reason.LOGIN_NOT_SET_UP, "this scheduler has no provider to log in with")
        return self.provider

    def still_holds(self, token: Token) -> bool:
        """Whether the file and the settings still know who logged in: a line that changed ends the logins by it."""
        way, _, proof = token.login.partition(" ")
        if way == PASSWORD_LOGIN:
            known = None if self.users is None else self.users.now().get(token.user)
            return known is not None and _login_of(known) == token.login
        return way == OIDC_LOGIN and proof.partition(" ")[0] == self.oidc.issuer

    async def _is_right(self, password: str, known: FileUser | None) -> bool:
        """Whether it is the user's password. Of nobody it takes as long, so that nothing tells who there is."""
        if self._waiting >= WAITING_MAX:
            raise GpufleetError(Reason.TOO_MANY_TRIES, "many say a password just now: try again", retry_after_s=1.0)
        self._waiting += 1
        try:
            async with self._checking:
                if not self._nobody_hash:
                    self._nobody_hash = await asyncio.to_thread(hash_password, "nobody's password")
                wanted = self._nobody_hash if known is None else known.password_hash
                said = password[:PASSWORD_CHARS_MAX]
                return await asyncio.to_thread(is_password, said, wanted) and len(password) <= PASSWORD_CHARS_MAX
        finally:
            self._waiting -= 1

    def _take_nonce(self, nonce: str) -> None:
        known = hashlib.sha256(nonce.encode()).hexdigest()
        if known in self._nonces:
            raise refused_login("this login was ended before", "Begin another one.")
        self._nonces[known] = None
        if len(self._nonces) > NONCES_MAX:
            self._nonces.popitem(last=False)

    def _claims(self, id_token: str, keys: Mapping[str, Any], nonce: str) -> Mapping[str, Any]:
        oidc = self.oidc
        return checked_claims(
            id_token, keys, issuer=oidc.issuer, client_id=oidc.client_id, nonce=nonce, now_s=self._now_s()
        )


def _login_of(user: FileUser) -> str:
    return f"{PASSWORD_LOGIN} {user.digest}"
