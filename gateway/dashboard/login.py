"""A person's token, sealed into a cookie: nothing of it is kept here, and any gateway with the same token opens it."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass

from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import HTTPConnection

from gpufleet.security.tokens import is_token

LOGIN_SECONDS = 7 * 24 * 3600
"""How long a login holds without being used. A token that ends before ends it at once."""

RENEWED_SECONDS = 24 * 3600
"""A cookie that is older is made anew when its person comes back."""


MADE_HERE = "login:"
"""Stands before the token of a login that was made for this cookie, and ends with it."""


@dataclass(frozen=True, slots=True)
class SealedLogin:
    """What a cookie holds: a token, and whether it was made for it by a password or a provider; else it was typed."""

    token: str
    is_made_here: bool = False


class Seals:
    """Makes and opens cookies. The cookie's name follows from the key, as browsers tell no port: what another fleet's
    gateway on the same machine has set stays as it is."""

    def __init__(self, gateway_token: str) -> None:
        key = hmac.digest(gateway_token.encode(), b"gpufleet dashboard login", "sha256")
        self._fernet = Fernet(base64.urlsafe_b64encode(key))
        self.cookie = f"gpufleet_login_{hashlib.sha256(key).hexdigest()[:12]}"

    def seal(self, token: str, *, is_made_here: bool = False) -> str:
        """The cookie's value for this login."""
        return self._fernet.encrypt(f"{MADE_HERE if is_made_here else ''}{token}".encode()).decode()

    def opened(self, sealed: str | None) -> SealedLogin | None:
        """What is in a cookie; None for one that is missing, too old, or was not made with this key."""
        if not sealed:
            return None
        try:
            text = self._fernet.decrypt(sealed.encode(), ttl=LOGIN_SECONDS).decode()
        except (InvalidToken, UnicodeError):
            return None
        token = text.removeprefix(MADE_HERE)
        return SealedLogin(token, is_made_here=text != token) if is_token(token) else None

    def token_in(self, sealed: str | None) -> str | None:
        """The token alone, or None."""
        login = self.opened(sealed)
        return None if login is None else login.token

    def sealed_in(self, request: HTTPConnection) -> str | None:
        """The cookie's value that a request brings."""
        return request.cookies.get(name_over(request, self.cookie))

    def is_old(self, sealed: str, now_s: float) -> bool:
        """Whether a cookie that opens is worth making anew. `now_s` is the wall clock's."""
        return now_s - self._fernet.extract_timestamp(sealed.encode()) > RENEWED_SECONDS


def name_over(request: HTTPConnection, cookie: str) -> str:
    """What a cookie is called where a request came over TLS. Browsers take one of this name from the host itself alone:
    else the page of a program at a host below could log people in as somebody else."""
    return f"__Host-{cookie}" if request.scope["scheme"] in ("https", "wss") else cookie


def person_of(token: str) -> str:
    """What bounds know a person by."""
    return hashlib.sha256(b"gpufleet dashboard person\0" + token.encode()).hexdigest()[:32]
