"""Bodies of requests that are held until it is known which program they are for: bounded each, by caller and in all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from gpufleet.errors import GpufleetError, Reason

BODY_BYTES_MAX = 32 * 1024 * 1024
"""The longest body in which a model's name is looked for; a longer one goes to a program by its address."""

BODY_S_MAX = 300.0
"""How long such a body may take to come."""

CALLER_BYTES_MAX = 4 * BODY_BYTES_MAX
"""What is held for one caller at a time."""

IN_ALL_BYTES_MAX = 16 * BODY_BYTES_MAX
"""What a gateway holds at a time."""

STRANGERS_BYTES_MAX = IN_ALL_BYTES_MAX // 2
"""Of that, how much may be of people who are not known: they leave room for those who are."""

PIECE_BYTES = 65_536
"""A body that is held is passed on in pieces of so many bytes."""

RETRY_S = 2.0
"""When to try again where too much is held: bodies pass within seconds."""


class HeldBodies:
    """The bodies that a gateway holds."""

    def __init__(self) -> None:
        self._of: Counter[str] = Counter()
        self.in_all = 0
        self._of_strangers = 0

    @contextmanager
    def hold(self, caller: str, *, is_known: bool) -> Iterator[HeldBody]:
        """One more body, which is let go of at the end of the block, if not before. `is_known`: of a user."""
        body = HeldBody(self, caller, is_known=is_known)
        try:
            yield body
        finally:
            body.release()

    def take(self, caller: str, size_bytes: int, *, is_known: bool) -> None:
        """Hold more of somebody's. Raises QUOTA_EXCEEDED, TOO_MANY_STREAMS."""
        if self._of[caller] + size_bytes > CALLER_BYTES_MAX:
            what = f"your requests hold more than {CALLER_BYTES_MAX:,} bytes at this moment"
            raise GpufleetError(Reason.QUOTA_EXCEEDED, what, retry_after_s=RETRY_S)
        is_full = self.in_all + size_bytes > IN_ALL_BYTES_MAX
        if is_full or (not is_known and self._of_strangers + size_bytes > STRANGERS_BYTES_MAX):
            what = "the requests of all hold as many bytes as they may at this moment"
            raise GpufleetError(Reason.TOO_MANY_STREAMS, what, retry_after_s=RETRY_S)
        self._of[caller] += size_bytes
        self.in_all += size_bytes
        self._of_strangers += 0 if is_known else size_bytes

    def release(self, caller: str, size_bytes: int, *, is_known: bool) -> None:
        """Hold less of it."""
        self.in_all -= size_bytes
        self._of_strangers -= 0 if is_known else size_bytes
        self._of[caller] -= size_bytes
        if not self._of[caller]:
            del self._of[caller]


class HeldBody:
    """One request's body. Made by `HeldBodies.hold`."""

    def __init__(self, all_bodies: HeldBodies, caller: str, *, is_known: bool) -> None:
        self._all = all_bodies
        self._caller = caller
        self._is_known = is_known
        self._data = bytearray()
        self._is_released = False

    def add(self, chunk: bytes) -> None:
        """Hold more. Raises MESSAGE_TOO_LARGE, QUOTA_EXCEEDED, TOO_MANY_STREAMS."""
        check_length(len(self._data) + len(chunk))
        self._all.take(self._caller, len(chunk), is_known=self._is_known)
        self._data += chunk

    def whole(self) -> bytes:
        """All that is held."""
        return bytes(self._data)

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece; it is held no longer when the last one was taken."""
        for at in range(0, len(self._data), PIECE_BYTES):
            yield bytes(self._data[at : at + PIECE_BYTES])
        self.release()

    def release(self) -> None:
        """Let go of it; a second time does nothing."""
        if not self._is_released:
            self._is_released = True
            self._all.release(self._caller, len(self._data), is_known=self._is_known)
            self._data = bytearray()


def check_length(size_bytes: int) -> None:
    """Refuse a body that is longer than what is looked through. Raises MESSAGE_TOO_LARGE."""
    if size_bytes > BODY_BYTES_MAX:
        raise GpufleetError(
            Reason.MESSAGE_TOO_LARGE,
            f"the body is longer than the {BODY_BYTES_MAX:,} bytes in which a model's name is looked for",
            next_step="Send it to the program itself, where a body of any length passes: /m/MODEL/v1/…",
        )
