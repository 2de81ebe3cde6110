"""Page tokens: where a list goes on, signed, so that a changed or foreign one is refused and never misread."""

import base64
import hashlib
import hmac
import json
import secrets
from typing import Any

from gpufleet.errors import Reason, invalid

PAGE_SIZE_DEFAULT = 100
PAGE_SIZE_MAX = 1_000
SIGNATURE_BYTES = 12


class PageTokens:
    """Signs and reads the cursors of one start of the scheduler; `query` binds a cursor to its list and filters."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def sign(self, query: str, cursor: list[Any]) -> str:
        """A token for this cursor of this query."""
        body = json.dumps(cursor, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._signature(query, body) + body).decode()

    def read(self, query: str, token: str) -> list[Any] | None:
        """The cursor, or None without a token. Errors: PAGE_TOKEN_INVALID."""
        if not token:
            return None
        try:
            raw = base64.b64decode(token, altchars=b"-_", validate=True)
            signature, body = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        except ValueError:
            raise invalid("page_token", "is no page token", reason=Reason.PAGE_TOKEN_INVALID) from None
        if not hmac.compare_digest(signature, self._signature(query, body)):
            raise invalid("page_token", "is not of this list", reason=Reason.PAGE_TOKEN_INVALID)
        cursor: list[Any] = json.loads(body)
        return cursor

    def _signature(self, query: str, body: bytes) -> bytes:
        return hmac.digest(self._secret, query.encode() + b"\0" + body, hashlib.sha256)[:SIGNATURE_BYTES]


def page_size(size: int) -> int:
    """The size of a page: the default for 0, and refused beyond the bound."""
    if not 0 <= size <= PAGE_SIZE_MAX:
        raise invalid("page_size", f"is {size}; it must be 1 to {PAGE_SIZE_MAX:,}, or 0 for {PAGE_SIZE_DEFAULT}")
    return size or PAGE_SIZE_DEFAULT
