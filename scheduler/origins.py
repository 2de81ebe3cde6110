"""The origin of an attempt: what its launch says of its job, sealed, for a scheduler whose store was put back.

A node keeps it and gives it back when it is asked. It is signed by the key in the data folder, and names the attempt,
its rank and its node: so a node can tell of attempts that were placed on it, and of no others.
"""

import base64
import binascii
import hmac
import zlib

from .state.commands import LaunchAttempt
from .state.gap import Origin, digest_of_argv
from .state.ids import NodeName, RankKey
from .store.codec import Codec, PayloadTooNew
from .store.decoding import DecodeError

SIGNATURE_BYTES = 16
ARGV_CHARS_MAX = 500
"""Of a program's arguments as many are told as fit; the digest is of all of them."""

ORIGIN_CHARS_MAX = 6_000
"""Of a longer one, by very many devices, nothing is told: such an attempt is not found again."""

ORIGIN_BYTES_MAX = 64_000
"""What is unpacked at most."""


class Origins:
    """Writes and reads origins by one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._codec = Codec()

    def text(self, launch: LaunchAttempt) -> str:
        """What a launch says of its job; empty where it would be too long."""
        spec = launch.spec
        origin = Origin(
            user=launch.user,
            name=spec.name,
            submitted_at=launch.submitted_at,
            placed_at=launch.placed_at,
            argv=_cut(spec.argv),
            argv_digest=digest_of_argv(spec.argv),
            placement=launch.placement,
            node_count=launch.node_count,
            serves=spec.serves,
            slot=launch.slot,
        )
        packed = zlib.compress(self._codec.encode(origin).encode(), 1)
        text = base64.urlsafe_b64encode(self._signature(launch.key, launch.node, packed) + packed).decode()
        return text if len(text) <= ORIGIN_CHARS_MAX else ""

    def read(self, text: str, key: RankKey, node: NodeName) -> Origin | None:
        """The origin of this attempt on this node; None for what this scheduler never wrote of it."""
        if not text or len(text) > ORIGIN_CHARS_MAX:
            return None
        try:
            sealed = base64.urlsafe_b64decode(text.encode("ascii"))
        except (binascii.Error, ValueError):
            return None
        signature, packed = sealed[:SIGNATURE_BYTES], sealed[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(key, node, packed)):
            return None
        try:
            payload = zlib.decompressobj().decompress(packed, ORIGIN_BYTES_MAX)
            return self._codec.decode(Origin, payload.decode())
        except (zlib.error, ValueError, DecodeError, PayloadTooNew):
            return None  # of a newer version

    def _signature(self, key: RankKey, node: NodeName, packed: bytes) -> bytes:
        named = f"gpufleet origin\0{key.name}\0{node}\0".encode()
        return hmac.digest(self._key, named + packed, "sha256")[:SIGNATURE_BYTES]


def _cut(argv: tuple[str, ...]) -> tuple[str, ...]:
    """The first arguments, as many as fit."""
    found: list[str] = []
    left = ARGV_CHARS_MAX
    for each in argv:
        found.append(each[:left])
        left -= len(each)
        if left <= 0:
            break
    return tuple(found)
