"""Serves /metrics to Prometheus, on a port of its own, in the program's event loop.

Reading wants a bearer token, on loopback too: what is told names nodes and models. In Prometheus it is
`authorization: {credentials_file: …}`. TLS is that of the program's own port.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from gpufleet.config.shared_settings import MetricsSettings
from gpufleet.errors import GpufleetError
from gpufleet.net.addresses import Address
from gpufleet.net.listening import bound
from gpufleet.telemetry.metrics import library_missing

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
"""Connections at a time; further ones are told 503. A Prometheus has one for each program."""

READERS_MAX = 4
"""Pages that are made or waited for at a time; who comes beyond that is told to come later."""

BACKLOG = 64
STOP_S_MAX = 1
GZIP_LEVEL = 1
"""Names repeat in each line: the fastest level makes a page as good as small."""

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]


class MetricsDoor:
    """The port, once it is made: `serve` until cancelled. Raises EXTRA_MISSING, PORT_TAKEN, ADDRESS_INVALID.

    `check` raises for a token (None: there was none) that may not read. `page` answers the text, as it is or packed
    with gzip, and may raise too.
    """

    def __init__(
        self,
        metrics: MetricsSettings,
        *,
        check: Callable[[str | None], Awaitable[None]],
        page: Callable[[bool], Awaitable[bytes]],
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> None:
        assert metrics.port is not None
        try:
            import uvicorn

            from gpufleet.net.http_server import QuietServer, WatchedHttp
        except ImportError as problem:
            raise library_missing(problem) from None
        self._check = check
        self._page = page
        self._readers = 0
        self._listening = bound(Address(metrics.host, metrics.port), backlog=BACKLOG, flag="--metrics-port")
        self.address = Address(metrics.host, self._listening.getsockname()[1])
        # What every connection costs at info level is told at debug level, by ourselves.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        self._server = QuietServer(
            uvicorn.Config(
                self._app,
                ssl_certfile=cert_file,
                ssl_keyfile=key_file,
                http=WatchedHttp,
                ws="none",
                interface="asgi3",
                proxy_headers=False,
                lifespan="off",
                access_log=False,
                log_config=None,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=STOP_S_MAX,
                server_header=False,
            )
        )

    async def serve(self) -> None:
        """Answer until cancelled, and then let go of the port."""
        log.info("metrics are served on %s", self.address)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listening]), name="metrics-door")
        try:
            await asyncio.shield(serving)
        finally:
            self._server.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
            self._listening.close()

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/metrics":
            await _answer(send, 404, b"only /metrics is here\n")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, b"only GET is answered\n", (b"allow", b"GET, HEAD"))
        elif self._readers >= READERS_MAX:
            await _answer(send, 503, b"too many read the metrics at a time\n", (b"retry-after", b"5"))
        else:
            self._readers += 1
            try:
                await self._tell(dict(scope["headers"]), send)
            finally:
                self._readers -= 1

    async def _tell(self, headers: dict[bytes, bytes], send: Send) -> None:
        is_packed = b"gzip" in headers.get(b"accept-encoding", b"").lower()
        try:
            await self._check(_token_in(headers))
            body = await self._page(is_packed)
        except GpufleetError as error:
            is_unknown = error.code.name == "UNAUTHENTICATED"
            status = 401 if is_unknown else 403 if error.code.name == "PERMISSION_DENIED" else 503
            asked = ((b"www-authenticate", b"Bearer"),) if is_unknown else ()
            await _answer(send, status, f"{error.reason.name}: {error.message}\n{error.next_step}\n".encode(), *asked)
            return
        except Exception:
            log.exception("metrics could not be told")
            await _answer(send, 500, b"the program's log says why this failed\n")
            return
        packed = ((b"content-encoding", b"gzip"),) if is_packed else ()
        await _answer(send, 200, body, *packed, (b"vary", b"accept-encoding, authorization"), kind=CONTENT_TYPE)


def packed(text: bytes) -> bytes:
    """The text as gzip. Takes long for a large one: for a thread."""
    return gzip.compress(text, GZIP_LEVEL, mtime=0)


async def _answer(
    send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes], kind: bytes = b"text/plain; charset=utf-8"
) -> None:
    own = ((b"content-type", kind), (b"content-length", str(len(body)).encode()), (b"cache-control", b"no-store"))
    await send({"type": "http.response.start", "status": status, "headers": [*own, *headers]})
    await send({"type": "http.response.body", "body": body})


def _token_in(headers: dict[bytes, bytes]) -> str | None:
    scheme, _, token = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
    return token.strip() or None if scheme.lower() == "bearer" else None
