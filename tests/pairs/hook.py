"""What takes the notices of --notify URL."""

from __future__ import annotations

import asyncio
import json
from typing import Any


class Hook:
    """A small server of HTTP that keeps what is posted, by path."""

    def __init__(self) -> None:
        self._posted: list[tuple[str, dict[str, Any]]] = []
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def end(self) -> None:
        """Listen no longer."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def notices(self, path: str) -> list[dict[str, Any]]:
        """What was posted there, oldest first."""
        return [body for posted, body in self._posted if posted == f"/{path}"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split()[0])
        self._posted.append((head.split()[1].decode(), json.loads(await reader.readexactly(length))))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()
