"""The keeper's socket: agents of the same account come in, the newest one is listened to."""

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from .frames import PROTOCOL_VERSION, BadFrame, FrameTooLong, Unpacker, pack
from .reactor import Reactor
from .state_dir import socket_address
from .values import Json

READ_BYTES = 256 * 1024
UNSENT_BYTES_MAX = 32 * 1024 * 1024
"""An agent that lets more than this pile up is cut off; it comes back and reads the inventory."""

GUESTS_MAX = 4
"""Connections that have not said hello; the oldest goes first."""


class Answers(Protocol):
    """Who knows what to say."""

    def hello(self) -> Json:
        """Say who this keeper is."""
        ...

    def answer(self, request: Json) -> Json | None:
        """Do what is asked; None when the answer comes later."""
        ...

    def enter(self, request: Json, channel_fd: int) -> Json | None:
        """Hand the connection that asks to an attempt; else say why not."""
        ...


class Door:
    """Listens in the keeper's directory, and holds at most one agent."""

    def __init__(
        self,
        reactor: Reactor,
        directory: Path,
        answers: Answers,
        welcomed: Callable[[], None],
    ) -> None:
        self._reactor = reactor
        self._answers = answers
        self._welcomed = welcomed
        self._agent: Connection | None = None
        self._guests: list[Connection] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            mask = os.umask(0o177)
            self._listener.bind(socket_address(directory_fd))
            os.umask(mask)
        finally:
            os.close(directory_fd)
        self._listener.listen(16)
        reactor.call_when_readable(self._listener.fileno(), self._accept)

    def send(self, message: Json) -> None:
        """Send to the agent, if one is there."""
        if self._agent is not None:
            self._agent.send(message)

    def close(self) -> None:
        """Let nobody in any more; what was said is delivered as far as the sockets take it."""
        for connection in (*self._guests, *((self._agent,) if self._agent else ())):
            connection.close()
        self._reactor.forget(self._listener.fileno())
        self._listener.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        _, user, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user not in (0, os.geteuid()):
            peer.close()
            return
        self._guests.append(Connection(self._reactor, peer, self._heard, self._gone))
        if len(self._guests) > GUESTS_MAX:
            self._guests[0].close()

    def _heard(self, connection: "Connection", message: Json) -> None:
        if connection is not self._agent:
            self._greet(connection, message)
            return
        answer = self._answers.answer(message)
        if answer is not None:
            connection.send({"re": message.get("id"), **answer})

    def _greet(self, connection: "Connection", message: Json) -> None:
        if message.get("do") == "enter":
            refused = self._answers.enter(message, connection.fileno())
            connection.send(refused or {"handed": True})
            connection.close()  # of one that was handed over its own descriptor
            return
        if message.get("do") != "hello" or message.get("protocol") != PROTOCOL_VERSION:
            connection.send({"bye": "PROTOCOL", "protocol": PROTOCOL_VERSION})
            connection.close()
            return
        if self._agent is not None:
            self._agent.send({"bye": "REPLACED"})
            self._agent.close()
        self._guests.remove(connection)
        self._agent = connection
        connection.send({"re": message.get("id"), "protocol": PROTOCOL_VERSION, **self._answers.hello()})
        self._welcomed()

    def _gone(self, connection: "Connection") -> None:
        if connection is self._agent:
            self._agent = None
        if connection in self._guests:
            self._guests.remove(connection)


class Connection:
    """One accepted socket: whole messages in and out, never blocking."""

    def __init__(
        self,
        reactor: Reactor,
        peer: socket.socket,
        heard: Callable[["Connection", Json], None],
        gone: Callable[["Connection"], None],
    ) -> None:
        peer.setblocking(False)
        self._reactor = reactor
        self._peer = peer
        self._heard = heard
        self._gone = gone
        self._unpacker = Unpacker()
        self._unsent = bytearray()
        self._buffer = memoryview(bytearray(READ_BYTES))
        self._is_open = True
        reactor.call_when_readable(peer.fileno(), self._ready)

    def send(self, message: Json) -> None:
        """Send a message at the end of this turn, with all others of it, or when the socket takes more."""
        if not self._is_open:
            return
        try:
            self._unsent += pack(message)
        except FrameTooLong as error:
            raise AssertionError(f"the keeper bounds what it says: {error}") from error
        self._reactor.call_after_turn(self._flush)
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self.close()

    def fileno(self) -> int:
        """Its descriptor."""
        return self._peer.fileno()

    def close(self) -> None:
        """Hang up, after a last try to deliver what was said; nothing is called back any more."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(OSError):
                self._peer.send(self._unsent)
            self._reactor.forget(self._peer.fileno())
            self._peer.close()
            self._gone(self)

    def _ready(self) -> None:
        if self._unsent:
            self._flush()
        try:
            data = self._read() if self._is_open else b""
            messages = self._unpacker.feed(data)
        except BlockingIOError:
            return
        except (OSError, BadFrame):
            self.close()
            return
        for message in messages:
            self._heard(self, message)
        if not data:
            self.close()

    def _read(self) -> bytes:
        # Memory of this size, asked for anew for each message of a few hundred bytes, is mapped and unmapped each time.
        count = self._peer.recv_into(self._buffer)
        return bytes(self._buffer[:count])

    def _flush(self) -> None:
        if not self._is_open:
            return
        try:
            while self._unsent:
                del self._unsent[: self._peer.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        self._reactor.watch_writable(self._peer.fileno(), bool(self._unsent))
