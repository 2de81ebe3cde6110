"""A request of which two servers could disagree where it ends or where it goes is refused, and its connection ends.

What follows it may be the rest of its body, as somebody before us saw it (RFC 9112, section 6.1).
"""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from gpufleet.errors import invalid

from .dashboard.guard import refusal
from .proxy.core.headers import Header, is_ambiguous, is_host

WHY = "stands beside a Content-Length: where the body ends is not clear"
NO_HOST = "is no name or address with a port"
PROTOCOL_ERROR = 1002
"""The close code of a WebSocket whose handshake is ambiguous; before it is accepted that is an HTTP refusal."""


class RefusesAmbiguous:
    """Middleware for the whole gateway."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        wrong = None if scope["type"] == "lifespan" else _wrong_with(scope["headers"])
        if wrong is None:
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": PROTOCOL_ERROR, "reason": wrong[1]})
        else:
            response = refusal(invalid(*wrong), {"Connection": "close"})
            await response(scope, receive, send)


def _wrong_with(headers: Sequence[Header]) -> tuple[str, str] | None:
    """The header that says something in two ways, and why."""
    if is_ambiguous(headers):
        return "transfer-encoding", WHY
    return next((("host", NO_HOST) for name, value in headers if name == b"host" and not is_host(value)), None)
