"""A request of which two servers could disagree where it ends is refused, whatever it is for, and its connection ends.

What follows it may be the rest of its body, as somebody before us saw it (RFC 9112, section 6.1).
"""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gpufleet.errors import invalid

from .dashboard.guard import refusal
from .proxy.core.headers import is_ambiguous

WHY = "stands beside a Content-Length: where the body ends is not clear"
PROTOCOL_ERROR = 1002
"""The close code of a WebSocket whose handshake is ambiguous; before it is accepted that is an HTTP refusal."""


class RefusesAmbiguous:
    """Middleware for the whole gateway."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "lifespan" or not is_ambiguous(scope["headers"]):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": PROTOCOL_ERROR, "reason": WHY})
        else:
            response = refusal(invalid("transfer-encoding", WHY), {"Connection": "close"})
            await response(scope, receive, send)
