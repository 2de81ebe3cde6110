"""Who a stranger is: a random id in a signed cookie. The scheduler only sees its hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from itsdangerous import BadSignature, URLSafeSerializer

COOKIE = "gpufleet_person"
COOKIE_SECONDS = 30 * 24 * 3600
ID_BYTES = 16


class Identities:
    """Makes and reads cookies. Gateways that hold the same token know each other's people."""

    def __init__(self, token: str) -> None:
        key = hmac.digest(token.encode(), b"gpufleet gateway cookie", "sha256")
        self._serializer = URLSafeSerializer(key, salt="person")

    def known(self, cookie: str | None) -> str | None:
        """The id in a cookie; None for a missing one or one that was not made here."""
        if not cookie:
            return None
        try:
            person = self._serializer.loads(cookie)
        except BadSignature:
            return None
        return person if isinstance(person, str) else None

    def new(self) -> tuple[str, str]:
        """A new id, and the cookie that holds it."""
        person = secrets.token_urlsafe(ID_BYTES)
        return person, str(self._serializer.dumps(person))


def identity_of(person: str) -> str:
    """What the scheduler knows a person by."""
    return hashlib.sha256(b"gpufleet person\0" + person.encode()).hexdigest()[:32]
