"""HTTP/1.1 to one origin, on asyncio: connections that are kept, bounded answers, and failures as values.

A request that fails, is cancelled or times out takes its connection with it: what was asked is then not asked any more.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import h11

from .core.outcomes import ErrorKind, Failure

KEPT_S_MAX = 4.0
"""A connection that was idle for longer is not used again: usual servers close theirs after 5 s."""

FRESH_S = 1.0
"""No usual server closes a connection that was idle for less."""

HEAD_BYTES_MAX = 65_536
READ_BYTES = 262_144


class RequestFailed(Exception):
    """A request has no answer; `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Origin:
    """Where requests go: `prefix` stands before every path. The token stays out of its repr."""

    host: str
    port: int
    is_tls: bool = False
    prefix: str = ""
    token: str = field(default="", repr=False)
    ca_file: Path | None = None

    @property
    def url(self) -> str:
        """For people, and as a worker's name."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.prefix}"


def parse_url(text: str, *, token: str = "", ca_file: Path | None = None) -> Origin:
    """Read `HOST:PORT`, `http://HOST:PORT` or `https://HOST/prefix`. Raises ValueError that says what is wrong."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{text} is neither http nor https")
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise ValueError(f"{parts.hostname}: give a host, a port and a path, and nothing else")
    if not parts.hostname:
        raise ValueError(f"{text!r} has no host")
    try:
        port = parts.port
    except ValueError:
        raise ValueError(f"{text} has no port from 1 to 65535") from None
    is_tls = parts.scheme == "https"
    default = 443 if is_tls else 80
    return Origin(parts.hostname, port or default, is_tls, parts.path.rstrip("/"), token, ca_file)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A whole answer; headers by their names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self.idle_since_s = 0.0
        self.has_heard = False
        """Whether anything of the present answer has come."""

    async def exchange(self, request: h11.Request, body: bytes, answer_bytes_max: int) -> HttpAnswer:
        """Send a request and read its answer. Raises RequestFailed."""
        self.has_heard = False
        with suppress(OSError):  # It may have answered before it closed: what it said is told below.
            await self._send(request, body)
        try:
            return await self._answer(answer_bytes_max)
        except OSError as problem:
            raise _broken(f"the connection broke: {problem.strerror or problem}") from None
        except h11.RemoteProtocolError as problem:
            kind = ErrorKind.BROKEN if self._reader.at_eof() else ErrorKind.BAD_ANSWER
            raise RequestFailed(Failure(kind, f"the answer is no HTTP: {problem}")) from None

    async def _send(self, request: h11.Request, body: bytes) -> None:
        parts = [self._http.send(request)]
        if body:
            parts.append(self._http.send(h11.Data(data=body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        self._writer.writelines([part for part in parts if part])
        await self._writer.drain()

    async def _answer(self, answer_bytes_max: int) -> HttpAnswer:
        response: h11.Response | None = None
        received = bytearray()
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(READ_BYTES)
                self.has_heard = self.has_heard or bool(data)
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                received += event.data
                if len(received) > answer_bytes_max:
                    text = f"the answer is larger than answer_bytes_max, {answer_bytes_max} bytes"
                    raise RequestFailed(Failure(ErrorKind.BAD_ANSWER, text))
            elif isinstance(event, h11.EndOfMessage):
                assert response is not None
                headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
                return HttpAnswer(response.status_code, headers, bytes(received))
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise _broken("it closed the connection before it had answered")

    def is_reusable(self) -> bool:
        """Whether another request can follow."""
        with suppress(h11.LocalProtocolError):
            self._http.start_next_cycle()
            return not self._writer.is_closing() and self._http.trailing_data == (b"", False)
        return False

    def is_alive(self) -> bool:
        """Whether the server has not closed it meanwhile, as far as is known."""
        return not (self._writer.is_closing() or self._reader.at_eof())

    def abort(self) -> None:
        """End it now."""
        self._writer.transport.abort()


def _broken(message: str) -> RequestFailed:
    return RequestFailed(Failure(ErrorKind.BROKEN, message))


class HttpOriginClient:
    """Requests to one origin. To be made, used and closed in one event loop."""

    def __init__(self, origin: Origin, *, connect_timeout_s: float, answer_bytes_max: int, kept_max: int) -> None:
        self.origin = origin
        self._connect_timeout_s = connect_timeout_s
        self._answer_bytes_max = answer_bytes_max
        self._kept_max = kept_max
        self._kept: list[_Connection] = []
        self._context = ssl.create_default_context(cafile=origin.ca_file) if origin.is_tls else None

    async def request(
        self, method: str, path: str, headers: Sequence[tuple[str, str]] = (), body: bytes = b""
    ) -> HttpAnswer:
        """One request and its answer, of any status. Raises RequestFailed. It has no time-out of its own."""
        request = self._request(method, path, headers, len(body))
        connection = self._take()
        if connection is not None:
            idle_s = asyncio.get_running_loop().time() - connection.idle_since_s
            try:
                return await self._exchange(connection, request, body)
            except RequestFailed as problem:
                # The server closed a connection that nobody used, in the moment in which it was used again.
                is_race = idle_s > FRESH_S and not connection.has_heard
                if not is_race or problem.failure.kind is not ErrorKind.BROKEN:
                    raise
        return await self._exchange(await self._connect(), request, body)

    async def check_listens(self) -> None:
        """Return where anybody takes connections now. Raises RequestFailed."""
        (await self._connect()).abort()

    def close(self) -> None:
        """Close what is kept."""
        while self._kept:
            self._kept.pop().abort()

    def _request(self, method: str, path: str, headers: Sequence[tuple[str, str]], length: int) -> h11.Request:
        origin = self.origin
        host = f"[{origin.host}]" if ":" in origin.host else origin.host
        said = [("Host", f"{host}:{origin.port}"), ("User-Agent", "gpufleet"), ("Accept", "*/*"), *headers]
        if origin.token:
            said.append(("Authorization", f"Bearer {origin.token}"))
        if method == "POST":
            said.append(("Content-Length", str(length)))
        return h11.Request(method=method, target=origin.prefix + path, headers=said)

    async def _exchange(self, connection: _Connection, request: h11.Request, body: bytes) -> HttpAnswer:
        is_whole = False
        try:
            answer = await connection.exchange(request, body, self._answer_bytes_max)
            is_whole = True
            return answer
        finally:
            if is_whole and len(self._kept) < self._kept_max and connection.is_reusable():
                connection.idle_since_s = asyncio.get_running_loop().time()
                self._kept.append(connection)
            else:
                connection.abort()

    def _take(self) -> _Connection | None:
        now_s = asyncio.get_running_loop().time()
        while self._kept:
            connection = self._kept.pop()
            if now_s - connection.idle_since_s < KEPT_S_MAX and connection.is_alive():
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        origin = self.origin
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                reader, writer = await asyncio.open_connection(
                    origin.host,
                    origin.port,
                    ssl=self._context,
                    server_hostname=origin.host if self._context is not None else None,
                )
        except TimeoutError:
            raise _unreachable(f"it took no connection within {self._connect_timeout_s:g} s") from None
        except OSError as problem:  # also what TLS finds wrong
            raise _unreachable(f"it took no connection: {problem.strerror or problem}") from None
        return _Connection(reader, writer)


def _unreachable(message: str) -> RequestFailed:
    return RequestFailed(Failure(ErrorKind.UNREACHABLE, message))
