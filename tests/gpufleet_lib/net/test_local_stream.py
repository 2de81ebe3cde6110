"""Streams over abstract Unix sockets: whole messages, nobody with another key, and bounds of everything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gpufleet.net import local_stream
from gpufleet.net.local_stream import (
    HEAD,
    MESSAGE,
    NAME,
    NONCE_BYTES,
    PROOF,
    STATUS,
    WAITING_BYTES_MAX,
    WAITING_MAX,
    LocalListener,
    LocalStream,
    Lost,
    NotProved,
    can_be_local,
    connect_local,
)
from tests.e2e.processes import until

pytestmark = pytest.mark.skipif(not can_be_local(), reason="this system has no abstract Unix sockets")

LONG = 1_000_000


async def echo(stream: LocalStream) -> None:
    """Say everything back, until the other side hangs up."""
    while True:
        kind, data = await stream.read()
        await stream.write(data, kind)


@asynccontextmanager
async def listening(
    serve: Callable[[LocalStream], Awaitable[None]] = echo, *, longest: int = LONG, streams_max: int = 8
) -> AsyncIterator[bytes]:
    """A listener, by its key."""
    listener = LocalListener(serve, message_bytes_max=longest, streams_max=streams_max)
    try:
        yield await listener.listen()
    finally:
        await listener.stop(0.0)


async def test_messages_come_whole_in_order_and_as_what_they_were_sent() -> None:
    said = [b"", b"x", b"y" * 5_000, bytes(range(256)) * 2_000, b"z" * LONG, b"last"]
    async with listening() as key:
        stream = await connect_local(key, LONG)

        async def say() -> None:
            for data in said:
                await stream.write(data)
            await stream.write(b"over", STATUS)

        saying = asyncio.create_task(say())
        assert [await stream.read() for _ in said] == [(MESSAGE, data) for data in said]
        assert await stream.read() == (STATUS, b"over")
        await saying
        stream.close()


@pytest.mark.parametrize("length", [10, 3_000, 20_000])
async def test_what_came_before_the_other_side_hung_up_is_read_though_a_write_fails(length: int) -> None:
    said = [bytes([number]) * length for number in range(5)]

    async def say_and_leave(stream: LocalStream) -> None:
        await stream.read()
        for data in said:
            await stream.write(data)
        await stream.write(b"over", STATUS)
        stream.close()
        has_left.set()

    has_left = asyncio.Event()
    async with listening(say_and_leave) as key:
        stream = await connect_local(key, LONG)
        await stream.write(b"begin")
        await has_left.wait()
        with pytest.raises(Lost):
            while True:
                await stream.write(b"typed on")
                await asyncio.sleep(0)
        assert [await stream.read() for _ in said] == [(MESSAGE, data) for data in said]
        assert await stream.read() == (STATUS, b"over")
        with pytest.raises(Lost):
            await stream.read()


async def test_a_message_in_pieces_is_one_message() -> None:
    stream = LocalStream(LONG)
    for byte in HEAD.pack(MESSAGE, 10_000) + b"a" * 10_000 + HEAD.pack(MESSAGE, 0):
        stream.get_buffer(-1)[0] = byte
        stream.buffer_updated(1)
    assert await stream.read() == (MESSAGE, b"a" * 10_000)
    assert await stream.read() == (MESSAGE, b"")


async def test_where_nobody_listens_there_is_no_stream() -> None:
    async with listening() as key:
        pass
    for nobody in (key, b"k" * 32, b"short", b""):
        with pytest.raises(Lost):
            await connect_local(nobody, LONG)


async def test_who_took_the_name_of_another_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stream, "PROOF_S_MAX", 0.2)
    async with listening() as key:
        pass
    heard: list[bytes] = []

    async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readexactly(HEAD.size + NONCE_BYTES))
        for answer in answers[len(heard) - 1]:
            writer.write(answer)
        heard[-1] += await reader.read()
        writer.close()

    answers = [
        [HEAD.pack(PROOF, 64), b"s" * 64],
        [HEAD.pack(MESSAGE, 64), b"s" * 64],
        [HEAD.pack(PROOF, 0)],
        [b"\xff" * 100],
        [],
    ]
    taken = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    taken.bind(NAME + key.hex())
    server = await asyncio.start_unix_server(impostor, sock=taken)
    async with server:
        for number in range(len(answers)):
            with pytest.raises(NotProved if number < 3 else Lost):
                await connect_local(key, LONG)
        await until("all were heard", lambda: len(heard) == len(answers))
    # Each was told random bytes, and nothing else.
    assert {len(each) for each in heard} == {HEAD.size + NONCE_BYTES}


@pytest.mark.parametrize(
    "said",
    [b"", b"\x00", HEAD.pack(PROOF, 3) + b"abc", HEAD.pack(MESSAGE, 32) + b"n" * 32, HEAD.pack(PROOF, LONG + 1)],
    ids=["nothing", "half a head", "too short", "no proof", "too long"],
)
async def test_who_begins_otherwise_is_not_served(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stream, "PROOF_S_MAX", 0.2)
    served: list[LocalStream] = []

    async def serve(stream: LocalStream) -> None:
        served.append(stream)

    async with listening(serve) as key:
        own = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        own.setblocking(False)
        own.connect(NAME + key.hex())
        reader, writer = await asyncio.open_unix_connection(sock=own)
        writer.write(said)
        assert await reader.read() == b""
        writer.close()
        assert not served
        (await connect_local(key, LONG)).close()
        await until("one that begins well is served", lambda: len(served) == 1)


async def test_a_message_that_is_too_long_ends_the_stream_before_it_has_come() -> None:
    why: list[str] = []

    async def serve(stream: LocalStream) -> None:
        try:
            await stream.read()
        except Lost as lost:
            why.append(str(lost))

    async with listening(serve, longest=1_000) as key:
        stream = await connect_local(key, LONG)
        await stream.write(b"x" * 1_001)
        with pytest.raises(Lost):
            await stream.read()
    assert why == ["a message of 1,001 bytes came, and 1,000 are the most"]


@pytest.mark.parametrize(("length", "most"), [(10_000, WAITING_MAX), (100_000, -(-WAITING_BYTES_MAX // 100_000))])
async def test_who_does_not_read_holds_up_who_writes_and_no_memory_grows(length: int, most: int) -> None:
    streams: list[LocalStream] = []
    reads = asyncio.Event()

    async def serve(stream: LocalStream) -> None:
        streams.append(stream)
        await reads.wait()
        await echo(stream)

    async with listening(serve) as key:
        stream = await connect_local(key, LONG)
        written = 0

        async def flood() -> None:
            nonlocal written
            while True:
                await stream.write(b"x" * length)
                written += 1

        flooding = asyncio.create_task(flood())
        before = -1
        while written != before:
            before = written
            await asyncio.sleep(0.2)
        (held,) = streams
        # One read of the socket may have held more than one message.
        assert most <= len(held._messages) < 2 * most
        assert written < 10 * WAITING_MAX, "the sockets' own buffers are all that is beside them"
        flooding.cancel()
        reads.set()
        for _ in range(written):
            assert await stream.read() == (MESSAGE, b"x" * length)
        stream.close()


async def test_of_too_many_streams_each_further_one_is_closed() -> None:
    async with listening(streams_max=2) as key:
        first, second = await connect_local(key, LONG), await connect_local(key, LONG)
        with pytest.raises(Lost):
            await connect_local(key, LONG)
        first.close()
        third: list[LocalStream] = []

        async def has_room() -> bool:
            try:
                third.append(await connect_local(key, LONG))
            except Lost:
                return False
            return True

        await until("there is room again", has_room)
        for stream in (second, *third):
            stream.close()


async def test_who_is_left_is_told_and_what_came_before_is_read_first() -> None:
    async def serve(stream: LocalStream) -> None:
        await stream.write(b"one")
        await stream.write(b"two")

    async with listening(serve) as key:
        stream = await connect_local(key, LONG)
        assert [await stream.read(), await stream.read()] == [(MESSAGE, b"one"), (MESSAGE, b"two")]
        with pytest.raises(Lost):
            await stream.read()
        with pytest.raises(Lost):
            await stream.write(b"three")


async def test_a_stream_that_is_aborted_tells_who_reads() -> None:
    async with listening() as key:
        stream = await connect_local(key, LONG)
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.abort()
        with pytest.raises(Lost, match="it was ended here"):
            await reading


async def test_where_nobody_may_have_such_a_socket_there_is_none_and_all_else_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def denied(*_: object) -> socket.socket:
        raise PermissionError("Operation not permitted")

    monkeypatch.setattr("gpufleet.net.local_stream.socket.socket", denied)
    async with listening() as key:
        assert key == b""
    with pytest.raises(Lost, match="not permitted"):
        await connect_local(b"k" * 32, LONG)
