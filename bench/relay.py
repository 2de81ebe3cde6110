"""The least that stands between clients and a program: a relay that reads heads of HTTP, and knows nothing of anybody.

`python bench/relay.py PORT TO` passes each GET on, by a connection that is kept, and its answer back, if that has a
Content-Length. What it reaches is what a gateway in Python could, on the event loop that gpufleet's programs take.
"""

import asyncio
import sys
from collections import deque
from typing import cast

import httptools

from gpufleet.host.event_loop import AUTO, run

Header = tuple[bytes, bytes]


class Upstream(asyncio.Protocol):
    """A connection to the program, for one request at a time."""

    def __init__(self) -> None:
        self._client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)

    def ask(self, client: "Client", head: bytes) -> None:
        """Send a client's request."""
        self._client, self._headers, self._body = client, list[Header](), b""
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(head)

    def data_received(self, data: bytes) -> None:
        """More of the answer."""
        self._parser.feed_data(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of its head."""
        self._headers.append((name.lower(), value))

    def on_body(self, data: bytes) -> None:
        """A piece of its body."""
        self._body += data

    def on_message_complete(self) -> None:
        """It is whole."""
        client, self._client = self._client, None
        assert client is not None
        client.answer(self._parser.get_status_code(), self._headers, self._body)
        client.kept.append(self)


class Client(asyncio.Protocol):
    """A connection of a client. `kept` are connections to the program that nobody uses."""

    def __init__(self, to: int, kept: deque[Upstream]) -> None:
        self._to = to
        self.kept = kept
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Somebody came."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """More of a request."""
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        """A request begins."""
        self._url, self._headers = url, list[Header]()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A line of its head."""
        self._headers.append((name.lower(), value))

    def on_message_complete(self) -> None:
        """It is whole."""
        head = b"GET %b HTTP/1.1\r\n%b\r\n" % (self._url, _text(self._headers))
        if self.kept:
            self.kept.pop().ask(self, head)
        else:
            self._asking = asyncio.get_running_loop().create_task(self._ask(head))

    async def _ask(self, head: bytes) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", self._to)
        upstream.ask(self, head)

    def answer(self, status: int, headers: list[Header], body: bytes) -> None:
        """Pass the program's answer on."""
        self._transport.write(b"HTTP/1.1 %d OK\r\n%b\r\n%b" % (status, _text(headers), body))


def _text(headers: list[Header]) -> bytes:
    return b"".join([b"%b: %b\r\n" % header for header in headers])


async def _serve(port: int, to: int) -> None:
    kept = deque[Upstream]()
    server = await asyncio.get_running_loop().create_server(lambda: Client(to, kept), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    run(_serve(int(sys.argv[1]), int(sys.argv[2])), AUTO)
