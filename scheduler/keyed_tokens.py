"""Bearer tokens that follow from a key: a few bytes name whose a token is, the rest prove it. None of them is stored.

So what is asked twice is told the same twice, a scheduler that starts again still knows it, and a call finds whom a
token is of without a search. Of jobs: job_tokens.py; of nodes: node_tokens.py.
"""

import base64
import binascii
import hmac
from collections.abc import Callable

from gpufleet.security.tokens import TOKEN_PREFIX, TOKEN_RANDOM_BYTES, is_token


class KeyedTokens:
    """The tokens of one kind: `purpose` keeps kinds apart, `named_bytes` is how many bytes name whose a token is.

    The proof takes the other bytes of a token: of 12 that name, 20 are left, which nobody guesses.
    """

    def __init__(self, key: bytes, purpose: str, named_bytes: int) -> None:
        assert TOKEN_RANDOM_BYTES - named_bytes >= 16, "a proof of fewer bytes could be guessed"
        self._key = key
        self._purpose = f"gpufleet {purpose} token\0".encode()
        self._named_bytes = named_bytes

    def token(self, named: bytes, proven: bytes = b"") -> str:
        """The token of whom these bytes name. What is `proven` beside them is in the proof alone."""
        assert len(named) == self._named_bytes
        return TOKEN_PREFIX + base64.urlsafe_b64encode(named + self._proof(named + proven)).decode().rstrip("=")

    def named_by(self, token: str, proven: Callable[[bytes], bytes | None] = lambda named: b"") -> bytes | None:
        """Whom a token names; None for what is no token of this kind and key.

        `proven` answers what a token of who is named proves beside that, None where it names nobody.
        """
        if not is_token(token):
            return None
        try:
            named = base64.urlsafe_b64decode(token.removeprefix(TOKEN_PREFIX) + "=")[: self._named_bytes]
        except binascii.Error:
            return None
        # As a whole: of 43 characters two bits say nothing, and a token in any other spelling is none.
        beside = proven(named)
        return named if beside is not None and hmac.compare_digest(self.token(named, beside), token) else None

    def _proof(self, named: bytes) -> bytes:
        proof = hmac.digest(self._key, self._purpose + named, "sha256")
        return proof[: TOKEN_RANDOM_BYTES - self._named_bytes]
