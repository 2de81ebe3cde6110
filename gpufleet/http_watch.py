"""Connections of uvicorn that do not stay open for nothing: uvicorn itself waits for a request for ever."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S_MAX = 10.0
"""A connection that asks for nothing in this time is closed."""


class WatchedHttp(H11Protocol):
    """One connection, looked at every REQUEST_S_MAX."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._watching: asyncio.TimerHandle | None = None
        self._looked_at: object = None

    def connection_made(self, transport: Any) -> None:
        """Look after it from now on."""
        super().connection_made(transport)
        self._watching = self.loop.call_later(REQUEST_S_MAX, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended."""
        self.stop_watching()
        super().connection_lost(exc)

    def stop_watching(self) -> None:
        """Somebody else looks after it now."""
        if self._watching is not None:
            self._watching.cancel()
            self._watching = None

    def _look(self) -> None:
        """Close what has asked for nothing new since the last look, and is owed no answer."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is self._looked_at:
            self.transport.abort()
            return
        self._looked_at = self.cycle
        self._watching = self.loop.call_later(REQUEST_S_MAX, self._look)
