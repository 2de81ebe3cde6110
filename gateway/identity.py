"""Who a stranger is: a random id in a signed cookie. The scheduler only sees its hash."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from ipaddress import IPv4Address, IPv6Address, ip_address

from itsdangerous import BadSignature, URLSafeSerializer

COOKIE = "gpufleet_person"
COOKIE_SECONDS = 30 * 24 * 3600
ID_BYTES = 16


class Identities:
    """Makes and reads cookies. Gateways that hold the same token know each other's people."""

    def __init__(self, token: str) -> None:
        key = hmac.digest(token.encode(), b"gpufleet gateway cookie", "sha256")
        self._address_key = hmac.digest(token.encode(), b"gpufleet gateway address", "sha256")
        self._serializer = URLSafeSerializer(key, salt="person")

    def address_of(self, host: str) -> str:
        """What the scheduler knows an address by: a keyed hash; empty for this machine, of which it is not counted.

        Who has one address of IPv6 has all of its /64.
        """
        try:
            address = ip_address(host.partition("%")[0])
        except ValueError:
            return ""
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        if address.is_loopback:
            return ""
        packed = address.packed if isinstance(address, IPv4Address) else address.packed[:8]
        return hmac.digest(self._address_key, packed, "sha256").hex()[:32]

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
