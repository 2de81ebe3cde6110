"""After a request of which two servers could disagree where it ends, nothing more is read from its connection.

What follows may be the rest of its body as somebody before us saw it (RFC 9112, section 6.1). It is refused where it is
looked at (`proxy/serving.py`); here its connection ends with whatever it is answered.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .proxy.core.headers import is_ambiguous


class ClosesAmbiguous:
    """Middleware for the whole gateway."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on; one that is ambiguous has a last answer."""
        if scope["type"] != "http" or not is_ambiguous(scope["headers"]):
            await self._app(scope, receive, send)
            return

        async def last(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
            await send(message)

        await self._app(scope, receive, last)
