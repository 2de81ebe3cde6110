"""The seal of what nodes are told of the store (store_position.py): the signature of the key in the data folder."""

import base64
import binascii
import hmac

SIGNATURE_BYTES = 16
POSITION_CHARS_MAX = 1_000


class PositionSeal:
    """Seals and opens by one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def text(self, packed: bytes) -> str:
        """These bytes, sealed: at most POSITION_CHARS_MAX characters of the alphabet of base64."""
        text = base64.urlsafe_b64encode(self._signature(packed) + packed).decode()
        assert len(text) <= POSITION_CHARS_MAX
        return text

    def read(self, text: str) -> bytes | None:
        """The bytes that were sealed with this key; None for what was not."""
        if not text or len(text) > POSITION_CHARS_MAX:
            return None
        try:
            sealed = base64.b64decode(text.encode("ascii"), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        signature, packed = sealed[:SIGNATURE_BYTES], sealed[SIGNATURE_BYTES:]
        return packed if hmac.compare_digest(signature, self._signature(packed)) else None

    def _signature(self, packed: bytes) -> bytes:
        return hmac.digest(self._key, b"gpufleet store position\0" + packed, "sha256")[:SIGNATURE_BYTES]
