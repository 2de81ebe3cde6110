"""What our HTTP servers have of uvicorn: connections that do not stay open for nothing, and no hand on the signals.

uvicorn has neither as a setting. Its protocol classes are internals of its own, so pyproject.toml holds it to one minor
version (tests/packaging/test_dependencies.py), and this and gateway/sockets.py are the only modules that build on them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S_MAX = 10.0
"""A connection that asks for nothing in this time is closed."""


class QuietServer(uvicorn.Server):
    """Signals are the program's: uvicorn would send itself the signal again at its end, and die by it."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class WatchedHttp(H11Protocol):
    """One connection, looked at every REQUEST_S_MAX: uvicorn by itself waits for a request for ever."""

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

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, also in the middle of a request: what is answered to that goes nowhere then."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing to tell: a caller asked for another protocol, and is answered in this one."""

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
