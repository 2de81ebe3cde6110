"""Whether an ID token is what the provider says to this fleet about this login, now. By joserfc; time is given.

Only signatures by a provider's public key are taken: a token without one, or one by a secret that everybody knows, is
refused by the list of algorithms, whatever its header says.
"""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Mapping
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields

from .claims import refused_login

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA")

CLOCK_LEEWAY_S = 30
"""So far the clocks of provider and scheduler may be apart."""

AGE_S_MAX = 600
"""A token that was made longer ago is not that of a login that has just ended."""

ID_TOKEN_CHARS_MAX = 64_000
INSTALL = "An admin installs it where the scheduler is, and starts that again: pip install 'gpufleet[login]'"


class KeyUnknown(Exception):
    """The token names a key that is not among those that are known."""


def checked_claims(
    id_token: str, keys: Mapping[str, Any], *, issuer: str, client_id: str, nonce: str, now_s: float
) -> Mapping[str, Any]:
    """What the token says. Raises LOGIN_FAILED, EXTRA_MISSING, and KeyUnknown where newer keys may help."""
    if len(id_token) > ID_TOKEN_CHARS_MAX:
        raise refused_login(f"the provider's ID token is longer than {ID_TOKEN_CHARS_MAX:,} characters")
    claims = _signed(id_token, keys)
    why = _lie(claims, issuer, client_id, nonce, now_s)
    if why:
        log.warning("an ID token was refused", extra=fields(why=why, issuer=issuer))
        raise refused_login(f"the provider's ID token is not taken: {why}")
    return claims


def _signed(id_token: str, keys: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        from joserfc import jwt
        from joserfc.errors import InvalidKeyIdError, JoseError
        from joserfc.jwk import KeySet
    except ImportError:
        raise GpufleetError(Reason.EXTRA_MISSING, "this login needs the package joserfc", next_step=INSTALL) from None
    try:
        usable = [key for key in keys.get("keys", ()) if isinstance(key, dict) and _may_sign(key)]
        found = KeySet.import_key_set({"keys": usable})
    except (JoseError, ValueError, TypeError, KeyError) as problem:
        raise refused_login(f"the provider's keys cannot be read: {type(problem).__name__}") from None
    try:
        return dict(jwt.decode(id_token, found, algorithms=list(ALGORITHMS)).claims)
    except InvalidKeyIdError:
        raise KeyUnknown from None
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as problem:
        log.warning("an ID token was refused", extra=fields(why=f"{type(problem).__name__}: {problem}"[:300]))
        raise refused_login("the provider's ID token is not taken: its signature or form is not right") from None


def _may_sign(key: Mapping[str, Any]) -> bool:
    """A public key for signatures; a symmetric one is none, and nobody has a private one of theirs to tell."""
    return key.get("kty") in ("RSA", "EC", "OKP") and key.get("use", "sig") == "sig" and "d" not in key


def _lie(claims: Mapping[str, Any], issuer: str, client_id: str, nonce: str, now_s: float) -> str:
    """What of it is not so; empty where all is."""
    if claims.get("iss") != issuer:
        return f"its issuer is {repr(claims.get('iss'))[:120]}"
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else audience
    if not isinstance(audiences, list) or client_id not in audiences:
        return f"it is for {repr(audience)[:120]}, and not for this fleet"
    party = claims.get("azp")
    if (party is not None or len(audiences) > 1) and party != client_id:
        return f"it was made for {repr(party)[:120]}, and not for this fleet"
    told = claims.get("nonce")
    if not isinstance(told, str) or not hmac.compare_digest(told.encode("utf-8", "surrogatepass"), nonce.encode()):
        return "it is the answer to another login"
    made, ends, begins = (_seconds(claims.get(name)) for name in ("iat", "exp", "nbf"))
    if made is None or ends is None:
        return "it does not say when it was made and when it ends"
    if ends <= now_s - CLOCK_LEEWAY_S:
        return f"it ended {now_s - ends:.0f} s ago"
    if max(made, begins if begins is not None else made) > now_s + CLOCK_LEEWAY_S:
        return "it comes from the future: one of both clocks is wrong"
    if made < now_s - AGE_S_MAX:
        return f"it was made {now_s - made:.0f} s ago"
    return ""


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
