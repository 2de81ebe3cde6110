"""What somebody who logs in with an OpenID Connect provider holds meanwhile: the authorization code flow with PKCE.

Sources: RFC 7636 (PKCE, method S256), RFC 6749 section 4.1, and OpenID Connect Core 1.0 for the nonce.
"""

from __future__ import annotations

import hashlib
import secrets
from base64 import urlsafe_b64encode
from dataclasses import dataclass

from ..errors import GpufleetError, Reason

RANDOM_BYTES, VERIFIER_BYTES = 24, 48

ERROR_CHARS_SHOWN = 80


@dataclass(frozen=True, slots=True)
class BegunLogin:
    """The secrets of one login: `state` comes back with the code, `nonce` within the ID token, and `verifier` is what
    the challenge was made of."""

    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        """What the provider is told of the verifier."""
        return urlsafe_b64encode(hashlib.sha256(self.verifier.encode()).digest()).decode().rstrip("=")


def begin_login() -> BegunLogin:
    """New secrets."""
    return BegunLogin(
        state=secrets.token_urlsafe(RANDOM_BYTES),
        nonce=secrets.token_urlsafe(RANDOM_BYTES),
        verifier=secrets.token_urlsafe(VERIFIER_BYTES),
    )


def checked_code(code: str, error: str) -> str:
    """The code that a browser came back with. Raises LOGIN_FAILED where there is none, or an error beside it."""
    if error or not code:
        shown = "".join(each if each.isprintable() else "?" for each in error)[:ERROR_CHARS_SHOWN]
        raise GpufleetError(Reason.LOGIN_FAILED, f"the provider did not log you in: {shown}")
    return code
