"""From which address the request comes that a task answers, for what the scheduler is told of it."""

from __future__ import annotations

from contextvars import ContextVar

from starlette.types import ASGIApp, Receive, Scope, Send

CLIENT_ADDRESS: ContextVar[str] = ContextVar("client address", default="")
"""As the connection has it, or a proxy that the gateway's settings trust; empty where nobody knows."""


class NotesClientAddress:
    """Middleware: each request and WebSocket is answered in a task of its own, and what that begins has its context."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Note where it comes from, and pass it on."""
        if client := scope.get("client"):
            CLIENT_ADDRESS.set(client[0])
        await self._app(scope, receive, send)
