"""A stream of the scheduler as an HTTP answer that ends with its reader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Protocol

from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from .guard import NOT_KEPT

STALLED_S_MAX = 600.0
"""A reader that takes nothing for so long is taken for gone."""


class BrokenOff(Exception):
    """The stream ends before its end: the connection is cut, so that nobody takes what came for the whole."""


class Source(Protocol):
    """Where chunks come from."""

    async def close(self) -> None:
        """Be gone, at the scheduler too."""
        ...


# A proxy that kept events back to send more at once would make them old.
OF_EVENTS: Mapping[str, str] = {**NOT_KEPT, "X-Accel-Buffering": "no"}


class Streamed(StreamingResponse):
    """Chunks as they come, and what is to be done when nobody reads them any more."""

    def __init__(
        self,
        source: Source,
        chunks: AsyncIterator[bytes],
        media_type: str,
        closed: Callable[[], None],
        *,
        headers: Mapping[str, str] = OF_EVENTS,
        status_code: int = 200,
    ) -> None:
        super().__init__(chunks, status_code, headers, media_type)
        self._source = source
        self._closed = closed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them to their end, or to that of the connection."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._closed()
            await self._source.close()

    async def stream_response(self, send: Send) -> None:
        """Head and chunks. Without its end the server cuts the connection."""

        async def bounded(message: Message) -> None:
            async with asyncio.timeout(STALLED_S_MAX):
                await send(message)

        with suppress(BrokenOff, TimeoutError):
            await super().stream_response(bounded)
