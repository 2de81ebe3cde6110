"""Place keys and turn tickets: what a person's browser holds so that nobody else takes their place or turn.

A *place key* is 128 random bits; the scheduler stores only its hash. A *turn ticket* lets its holder open one stream
to one worker: an HMAC-SHA256, by a random secret of that start of the worker, over session, epoch, worker start,
identity and expiry. Reading a ticket tells what it says; that it opens one stream only is the worker's to hold, by
the epochs: it takes no epoch of a session twice, and none below one that it has taken (`inference/core/turns.py`).

Pure but for the two makers of random bits; times are given, in seconds since 1970 by the scheduler's clock.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from dataclasses import dataclass
from enum import StrEnum, unique

PLACE_KEY_PREFIX = "gp_"
PLACE_KEY_BYTES = 16
TICKET_PREFIX = "gt_"
TICKET_CHARS_MAX = 1_024
"""No ticket is longer; what is longer is not even decoded."""

TICKET_LIFE_S = 30.0
"""A ticket opens a stream for so long after it was made. The turn that it opened may last longer."""

CLOCK_SLACK_S = 2.0
"""A ticket may seem to come so much from the future: clocks are compared over a network."""

SECRET_BYTES = 32
TEXT_BYTES_MAX = 200
"""Of a session's id, a worker start's id and the hash of an identity, each."""

_VERSION = 1
_HEAD = struct.Struct(">BQQ")
_MAC_BYTES = hashlib.sha256().digest_size
_PURPOSE = b"gpufleet turn ticket\0"
_CONNECT_PURPOSE = b"gpufleet connect\0"


def connect_key(secret: bytes, worker_start: str) -> bytes:
    """The key with which a gateway begins a connection to a replica of a program; 32 bytes, of the tickets' secret."""
    return hmac.digest(secret, _CONNECT_PURPOSE + worker_start.encode(), "sha256")


def connect_line(key: bytes) -> bytes:
    """The line that each connection to a replica begins with."""
    return b"GPUFLEET " + key.hex().encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTicket:
    """What a ticket says. `identity` is the hash of the person's identity; `expires_ms` milliseconds since 1970."""

    session: str
    epoch: int
    worker_start: str
    identity: str
    expires_ms: int


@unique
class Refusal(StrEnum):
    """Why a ticket opens nothing."""

    MALFORMED = "it is no ticket"
    FORGED = "its signature is wrong: it was changed, or made for another start of the worker"
    OTHER_WORKER = "it was made for another start of the worker"
    EXPIRED = "it has expired"
    TOO_EARLY = "it comes from the future"


def make_secret() -> bytes:
    """A secret for one start of a worker."""
    import secrets

    return secrets.token_bytes(SECRET_BYTES)


def make_place_key() -> str:
    """A new place key; whoever holds it holds the place."""
    import secrets

    return PLACE_KEY_PREFIX + secrets.token_hex(PLACE_KEY_BYTES)


def hash_place_key(key: str, identity: str) -> str:
    """What is stored of a place key, bound to the identity that it was given to: 64 hexadecimal digits.

    One round is enough: 128 random bits are beyond guessing at any speed.
    """
    return hashlib.sha256(b"gpufleet place key\0" + _text(identity) + _text(key)).hexdigest()


def place_key_matches(key: str, identity: str, stored: str) -> bool:
    """Whether this identity's key has this hash, in a time that tells nothing about how much of it is right."""
    if len(key) > TEXT_BYTES_MAX or len(identity) > TEXT_BYTES_MAX:
        return False
    return hmac.compare_digest(hash_place_key(key, identity).encode(), stored.encode())


def ticket_for(
    session: str, epoch: int, *, worker_start: str, identity: str, now_s: float, life_s: float = TICKET_LIFE_S
) -> TurnTicket:
    """A ticket that is valid from now on."""
    expires_ms = round((now_s + life_s) * 1e3)
    return TurnTicket(session=session, epoch=epoch, worker_start=worker_start, identity=identity, expires_ms=expires_ms)


def sign_ticket(ticket: TurnTicket, secret: bytes) -> str:
    """The ticket as its holder is given it: `gt_` and letters that need no quoting anywhere.

    Raises ValueError for an epoch or a time that is negative or beyond 64 bits, and for a text beyond TEXT_BYTES_MAX.
    """
    try:
        head = _HEAD.pack(_VERSION, ticket.epoch, ticket.expires_ms)
    except struct.error:
        raise ValueError(f"an epoch and a time have 64 bits and no sign: {ticket}") from None
    said = head + _text(ticket.session) + _text(ticket.worker_start) + _text(ticket.identity)
    return TICKET_PREFIX + base64.urlsafe_b64encode(said + _mac(said, secret)).decode().rstrip("=")


def read_ticket(text: str, secret: bytes, *, worker_start: str, now_s: float) -> TurnTicket | Refusal:
    """What a ticket says, or why it opens nothing at this worker now. Nothing in it is looked at before its
    signature.
    """
    sealed = _decoded(text)
    if sealed is None:
        return Refusal.MALFORMED
    said, mac = sealed[:-_MAC_BYTES], sealed[-_MAC_BYTES:]
    if not hmac.compare_digest(mac, _mac(said, secret)):
        return Refusal.FORGED
    ticket = _parsed(said)
    if ticket is None:
        return Refusal.MALFORMED
    if ticket.worker_start != worker_start:
        return Refusal.OTHER_WORKER
    left_s = ticket.expires_ms / 1e3 - now_s
    if left_s <= 0:
        return Refusal.EXPIRED
    return Refusal.TOO_EARLY if left_s > TICKET_LIFE_S + CLOCK_SLACK_S else ticket


def _mac(said: bytes, secret: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + said, "sha256")


def _text(text: str) -> bytes:
    """With its length before it, so that no two different lists of texts have the same bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > TEXT_BYTES_MAX:
        raise ValueError(f"{text[:40]!r}… is longer than {TEXT_BYTES_MAX} bytes")
    return len(encoded).to_bytes(2, "big") + encoded


def _decoded(text: str) -> bytes | None:
    if not text.startswith(TICKET_PREFIX) or len(text) > TICKET_CHARS_MAX or not text.isascii():
        return None
    letters = text.removeprefix(TICKET_PREFIX)
    try:
        sealed = base64.b64decode(letters + "=" * (-len(letters) % 4), altchars=b"-_", validate=True)
    except binascii.Error:
        return None
    return sealed if len(sealed) > _HEAD.size + _MAC_BYTES else None


def _parsed(said: bytes) -> TurnTicket | None:
    version, epoch, expires_ms = _HEAD.unpack_from(said)
    texts: list[str] = []
    at = _HEAD.size
    while at + 2 <= len(said):
        end = at + 2 + int.from_bytes(said[at : at + 2], "big")
        texts.append(said[at + 2 : end].decode("utf-8", "surrogatepass"))
        at = end
    if version != _VERSION or len(texts) != 3 or at != len(said):
        return None
    return TurnTicket(session=texts[0], epoch=epoch, worker_start=texts[1], identity=texts[2], expires_ms=expires_ms)
