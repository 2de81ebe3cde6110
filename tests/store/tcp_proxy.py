"""A TCP proxy with faults: between the store and its server it can lose an answer, or leave the server hanging."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType
from typing import Literal

Mode = Literal["pass", "lose the answer", "leave the server hanging"]


class Proxy:
    """Forwards connections to a port of this machine.

    "lose the answer": the answer to the next bytes from a client that hold `request` is thrown away and both sides
    closed, once.
    "leave the server hanging": the next bytes from the client are thrown away and only its side closed, once.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.mode: Mode = "pass"
        self.request = b""
        self._is_asked = False
        self._peers: dict[socket.socket, socket.socket] = {}
        self._hanging: list[socket.socket] = []
        self._stop_reader, self._stop_writer = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="proxy")

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop_writer.send(b"x")
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stop_reader, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    source = key.fileobj
                    assert isinstance(source, socket.socket)
                    if source is self._stop_reader:
                        self._close_all()
                        return
                    if source is self._listener:
                        self._accept(selector)
                    elif source in self._peers:  # its other side may just have closed both
                        self._forward(selector, source)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(("127.0.0.1", self._target))
        self._peers |= {client: server, server: client}
        selector.register(client, selectors.EVENT_READ)
        selector.register(server, selectors.EVENT_READ)

    def _forward(self, selector: selectors.BaseSelector, source: socket.socket) -> None:
        try:
            data = source.recv(65536)
        except ConnectionError:
            data = b""
        peer = self._peers[source]
        is_from_server = source.getpeername()[1] == self._target if data else False
        if data and is_from_server and self._is_asked:
            self._is_asked, self.mode, data = False, "pass", b""
        if data and not is_from_server and self.mode == "lose the answer":
            self._is_asked = self.request in data
        if data and not is_from_server and self.mode == "leave the server hanging":
            self.mode = "pass"
            self._hanging.append(self._drop(selector, peer))
            self._drop(selector, source).close()
            return
        if data:
            peer.sendall(data)
            return
        for side in (source, peer):
            self._drop(selector, side).close()

    def _drop(self, selector: selectors.BaseSelector, side: socket.socket) -> socket.socket:
        selector.unregister(side)
        del self._peers[side]
        return side

    def _close_all(self) -> None:
        for side in (*self._peers, *self._hanging, self._listener, self._stop_reader, self._stop_writer):
            side.close()
