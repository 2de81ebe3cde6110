"""Streams of messages between two programs of one machine, over an abstract Unix socket of Linux.

Each message goes behind a byte that says what it is and its length. It takes half of the processor time of a message of
gRPC, which is for everywhere else; what is said is the same.

The name of a socket is made of a public key, which who connects has from somebody they trust. They send random bytes,
and whoever listens signs them: anybody on the machine may take a name that is free, and nobody else has its key.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_log = logging.getLogger(__name__)

NAME = "\0gpufleet-worker-"
NONCE_BYTES = 32
KEY_BYTES = 32
SIGNED = b"gpufleet local stream 1\0"
"""Before the random bytes that are signed, so that the signature is good for nothing else."""

PROOF_S_MAX = 2.0
"""How long the signature may take to come."""

HEAD = struct.Struct("<BI")
PROOF, MESSAGE, STATUS = 0, 1, 2
"""What a message is: part of the beginning, a message of the stream, or the google.rpc.Status that it ends with."""

BUFFER_BYTES = 4_096
"""To begin with: a stream of short messages needs no more, and one of frames soon has what they need."""

WAITING_MAX, WAITING_BYTES_MAX = 64, 2**20
"""What may wait to be read, in messages and in bytes; then the socket is read no further."""


class Lost(Exception):
    """The stream is gone, or never was one; the words say why."""


class NotProved(Lost):
    """Who answers has not the key that the name is made of."""


class LocalStream(asyncio.BufferedProtocol):
    """One connection: whole messages in both directions. For one reader and one writer, on the event loop.

    A message that is longer than `message_bytes_max` ends the stream.
    """

    def __init__(self, message_bytes_max: int) -> None:
        self._message_bytes_max = message_bytes_max
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(BUFFER_BYTES)
        self._filled = 0
        self._messages: deque[tuple[int, bytes]] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._has_come = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._is_over = False
        self._why = "the other side hung up"

    async def read(self) -> tuple[int, bytes]:
        """The next message, and what it is. Errors: Lost, behind all that came."""
        while not self._messages:
            if self._is_over:
                raise Lost(self._why)
            self._has_come.clear()
            await self._has_come.wait()
        kind, data = self._messages.popleft()
        self._waiting_bytes -= len(data)
        if self._is_paused and self._transport is not None and not self._is_full(2):
            self._is_paused = False
            self._transport.resume_reading()
        return kind, data

    async def write(self, data: bytes, kind: int = MESSAGE) -> None:
        """Send a message, once there is room for it. Errors: Lost."""
        await self._has_room.wait()
        if self._is_over or self._transport is None:
            raise Lost(self._why)
        self._transport.write(HEAD.pack(kind, len(data)) + data)

    def close(self) -> None:
        """End it behind what was written."""
        if self._transport is not None:
            self._transport.close()

    def abort(self, why: str = "it was ended here") -> None:
        """End it at once: who reads or writes is told so."""
        if not self._is_over:
            self._why = why
            self._end()
        if self._transport is not None:
            self._transport.abort()

    # --- what the loop says

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one, and no subclass of it

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        if not self._is_over:
            if exc is not None:
                self._take_rest()
            self._why = str(exc) if exc is not None else self._why
            self._end()

    def pause_writing(self) -> None:
        """See asyncio."""
        self._has_room.clear()

    def resume_writing(self) -> None:
        """See asyncio."""
        self._has_room.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        """See asyncio. A message that is longer than the buffer gets a larger one."""
        if self._filled == len(self._buffer):
            larger = bytearray(2 * len(self._buffer))  # the loop may still hold the old one
            larger[: self._filled] = self._buffer
            self._buffer = larger
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See asyncio."""
        self._filled += nbytes
        at = 0
        while self._filled - at >= HEAD.size:
            kind, length = HEAD.unpack_from(self._buffer, at)
            if length > self._message_bytes_max:
                self.abort(f"a message of {length:,} bytes came, and {self._message_bytes_max:,} are the most")
                return
            begin, at_next = at + HEAD.size, at + HEAD.size + length
            if at_next > self._filled:
                break
            self._messages.append((kind, bytes(memoryview(self._buffer)[begin:at_next])))
            self._waiting_bytes += length
            at = at_next
        if at:
            rest = self._filled - at
            self._buffer[:rest] = self._buffer[at : self._filled]
            self._filled = rest
            self._has_come.set()
        if self._is_full() and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        """See asyncio: nobody writes to who says no more."""
        return False

    def _take_rest(self) -> None:
        """Take what came and was not read yet when a write failed, as the other side had hung up behind it.

        It is no more than a socket holds, so it goes beyond what may wait.
        """
        transport, self._transport = self._transport, None
        if transport is None:
            return
        own = transport.get_extra_info("socket")
        with suppress(OSError):
            while not self._is_over and (count := os.readv(own.fileno(), [self.get_buffer(-1)])):
                self.buffer_updated(count)

    def _is_full(self, share: int = 1) -> bool:
        """Whether as much waits as may, or a share of that."""
        return len(self._messages) * share >= WAITING_MAX or self._waiting_bytes * share >= WAITING_BYTES_MAX

    def _end(self) -> None:
        self._is_over = True
        self._has_come.set()
        self._has_room.set()


async def connect_local(key: bytes, message_bytes_max: int) -> LocalStream:
    """A stream to who listens by this public key. Errors: Lost, where nobody does; NotProved."""
    if not can_be_local() or len(key) != KEY_BYTES:
        raise Lost("there are no local sockets here")
    try:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except OSError as problem:
        raise Lost(str(problem)) from None
    try:
        own.setblocking(False)
        own.connect(_name(key))  # of a local socket it never waits
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_unix_connection(lambda: LocalStream(message_bytes_max), sock=own)
    except OSError as problem:
        own.close()
        raise Lost(str(problem)) from None
    nonce = os.urandom(NONCE_BYTES)
    try:
        async with asyncio.timeout(PROOF_S_MAX):
            await stream.write(nonce, PROOF)
            kind, signature = await stream.read()
        if kind != PROOF or not _is_signed(key, nonce, signature):
            raise NotProved("what answers there has not the key that the worker told the scheduler")
    except TimeoutError:
        stream.abort()
        raise Lost(f"nothing answered within {PROOF_S_MAX:g} s") from None
    except BaseException:
        stream.abort()
        raise
    return stream


class LocalListener:
    """Listens by a key of its own. `serve` is called for each stream behind its proof, in a task of its own.

    `streams_max`: of more connections at once, each is closed. Made inside the running loop.
    """

    def __init__(
        self, serve: Callable[[LocalStream], Awaitable[None]], *, message_bytes_max: int, streams_max: int
    ) -> None:
        self._serve = serve
        self._message_bytes_max = message_bytes_max
        self._streams_max = streams_max
        self._server: asyncio.Server | None = None
        self._key: Ed25519PrivateKey | None = None
        self._open: dict[asyncio.Task[None], LocalStream] = {}

    async def listen(self) -> bytes:
        """Begin; answers the public key, or nothing where this machine has no such sockets, or lets nobody have one."""
        if not can_be_local():
            return b""
        try:
            return await self._listen()
        except OSError as problem:  # of a sandbox without sockets of this kind, say
            _log.info("there is no local socket: %s", problem)
            return b""

    async def _listen(self) -> bytes:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        self._key = Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes_raw()
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            own.bind(_name(public))
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(
                lambda: _Accepted(self._message_bytes_max, self._begin), sock=own
            )
        except BaseException:
            own.close()
            raise
        return public

    async def stop(self, grace_s: float) -> None:
        """Take no more streams, and end those that are still there after the grace."""
        if self._server is not None:
            self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=grace_s)
        for task, stream in list(self._open.items()):
            task.cancel()
            stream.abort()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _begin(self, stream: LocalStream) -> None:
        if len(self._open) >= self._streams_max:
            stream.abort()
            return
        task = asyncio.create_task(self._proved(stream), name="local-stream")
        self._open[task] = stream
        task.add_done_callback(lambda done: self._open.pop(done))

    async def _proved(self, stream: LocalStream) -> None:
        assert self._key is not None
        try:
            try:
                async with asyncio.timeout(PROOF_S_MAX):
                    kind, nonce = await stream.read()
            except TimeoutError:
                return
            if kind != PROOF or len(nonce) != NONCE_BYTES:
                return
            await stream.write(self._key.sign(SIGNED + nonce), PROOF)
            await self._serve(stream)
        except Lost:
            pass
        finally:
            stream.close()


class _Accepted(LocalStream):
    """A stream that tells its listener that it is there."""

    def __init__(self, message_bytes_max: int, begin: Callable[[LocalStream], None]) -> None:
        super().__init__(message_bytes_max)
        self._begin = begin

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._begin(self)


def can_be_local() -> bool:
    """Whether this system has abstract Unix sockets."""
    return sys.platform == "linux" and hasattr(socket, "AF_UNIX")


def _name(key: bytes) -> str:
    return NAME + key.hex()


def _is_signed(key: bytes, nonce: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, SIGNED + nonce)
    except (InvalidSignature, ValueError):
        return False
    return True
