"""The gateway's own side of a request to a program, whose answer is kept as a whole."""

from __future__ import annotations

from starlette.types import Scope

from gpufleet.errors import GpufleetError, Reason

from .core.headers import Header, value_of
from .exchange import Client


class WholeAnswer(Client):
    """A client that keeps an answer of at most `bytes_max` bytes. It sends no body."""

    def __init__(self, scope: Scope, bytes_max: int) -> None:
        super().__init__(scope)
        self._bytes_max = bytes_max
        self.answer = bytearray()
        self.headers: list[Header] = []

    async def begin(self, status: int, headers: list[Header]) -> None:
        """The answer begins."""
        self.is_answered, self.status, self.headers = True, status, [*headers, *self.said]

    async def pass_on(self, data: bytes) -> None:
        """Keep a part of the answer. Raises MESSAGE_TOO_LARGE."""
        if len(self.answer) + len(data) > self._bytes_max:
            raise GpufleetError(
                Reason.MESSAGE_TOO_LARGE,
                f"the answer is longer than {self._bytes_max:,} bytes",
                next_step="Ask for fewer items at once.",
            )
        self.answer += data

    async def end(self, data: bytes) -> None:
        """The last part of the answer. Raises MESSAGE_TOO_LARGE."""
        await self.pass_on(data)
        self.ends_by_itself = self.is_whole = True

    def header(self, name: bytes) -> str:
        """A header of the answer; empty without it."""
        return value_of(self.headers, name)
