"""WebSockets through the gateway to a program, which is a real server of them behind a replica's door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection
from websockets.asyncio.server import serve as serve_sockets
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.proxy.web_socket import MESSAGE_BYTES_MAX
from tests.e2e.processes import DEADLINE_SECONDS, until
from tests.gateway.proxy.stage import Call, Replica, Stage, program, stage


@asynccontextmanager
async def socket_program(
    handler: Callable[[ServerConnection], Awaitable[None]], **options: Any
) -> AsyncIterator[Replica]:
    """A replica whose program serves WebSockets."""
    async with serve_sockets(handler, "127.0.0.1", 0, **options) as server:
        port = server.sockets[0].getsockname()[1]

        async def splice(call: Call) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(call.head.text)
            await asyncio.gather(copy(call.reader, writer), copy(reader, call.writer))
            call.keeps = False

        async with program("sockets", splice) as replica:
            yield replica


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.close()


def socket(at: Stage, path: str, **options: Any) -> connect:
    return connect(f"ws://{at.address}{path}", proxy=None, max_size=None, compression=None, **options)


async def echo(connection: ServerConnection) -> None:
    async for message in connection:
        await connection.send(message)


async def test_messages_pass_both_ways_with_the_subprotocol_that_the_program_chose() -> None:
    async with stage() as at, socket_program(echo, subprotocols=["b"], max_size=None) as replica:
        await at.serve("chat", replica)
        async with socket(at, "/m/chat/live?a=1", subprotocols=["a", "b"], origin="https://x") as client:
            assert client.subprotocol == "b"
            for message in ("text ä", b"bytes", "", b"x" * (MESSAGE_BYTES_MAX - 1)):
                await client.send(message)
                assert await client.recv() == message
            await until("it is told", lambda: at.scheduler.reported("chat") == (1, 0))
        assert replica.calls[0].target == "/live?a=1" and replica.calls[0]["origin"] == "https://x"
        assert len(replica.calls[0].all("host")) == 1 and replica.calls[0]["host"] == at.address
        assert replica.calls[0]["x-forwarded-prefix"] == "/m/chat"
        await until("it is told", lambda: at.scheduler.reported("chat") == (0, 0))


async def test_the_code_with_which_a_program_closes_reaches_the_client() -> None:
    async def leaves(connection: ServerConnection) -> None:
        await connection.close(int(await connection.recv()), "enough")

    async with stage() as at, socket_program(leaves) as replica:
        await at.serve("chat", replica)
        for code in (1000, 1008, 4321):
            async with asyncio.timeout(DEADLINE_SECONDS), socket(at, "/m/chat/") as client:
                await client.send(str(code))
                with suppress(ConnectionClosed):
                    await client.recv()
                assert (client.close_code, client.close_reason) == (code, "enough")


async def test_the_code_with_which_a_client_closes_reaches_the_program() -> None:
    codes: asyncio.Queue[int | None] = asyncio.Queue()

    async def listens(connection: ServerConnection) -> None:
        await connection.wait_closed()
        await codes.put(connection.close_code)

    async with stage() as at, socket_program(listens) as replica:
        await at.serve("chat", replica)
        async with asyncio.timeout(DEADLINE_SECONDS):
            async with socket(at, "/m/chat/") as client:
                await client.close(4001, "bye")
            assert await codes.get() == 4001
            async with socket(at, "/m/chat/") as client:
                client.transport.abort()
            assert await codes.get() == 1001


async def test_a_program_that_goes_on_sending_waits_for_a_client_that_does_not_read() -> None:
    sent = 0

    async def pours(connection: ServerConnection) -> None:
        nonlocal sent
        while True:
            await connection.send(b"x" * 100_000)
            sent += 100_000

    async with stage() as at, socket_program(pours) as replica:
        await at.serve("chat", replica)
        read = 0
        async with asyncio.timeout(DEADLINE_SECONDS), socket(at, "/m/chat/", max_queue=1) as client:
            while read < 50_000_000:
                read += len(await client.recv())
                assert sent - read < 30_000_000


async def test_a_message_that_is_too_long_ends_the_connection() -> None:
    async def says(connection: ServerConnection) -> None:
        await connection.send(b"x" * (MESSAGE_BYTES_MAX + 1))
        await connection.wait_closed()

    async with stage() as at, socket_program(says) as replica:
        await at.serve("chat", replica)
        async with asyncio.timeout(DEADLINE_SECONDS), socket(at, "/m/chat/") as client:
            with pytest.raises(ConnectionClosed):
                await client.recv()
            assert client.close_code == 1009


async def refused(at: Stage, path: str, **options: Any) -> int:
    with pytest.raises(InvalidStatus) as problem:
        async with socket(at, path, **options):
            pass
    return int(problem.value.response.status_code)


async def test_who_may_not_is_refused_before_the_handshake() -> None:
    async with stage() as at, socket_program(echo) as replica:
        await at.serve("chat", replica, access=sessions_pb2.MODEL_ACCESS_LOGIN)
        token = at.person("ann")
        assert await refused(at, "/m/chat/") == 401
        assert await refused(at, "/m/nobody/") == 404
        foreign = {"Cookie": at.cookie(token)}
        assert await refused(at, "/m/chat/", additional_headers=foreign, origin="https://evil") == 401
        async with socket(at, "/m/chat/", additional_headers=foreign, origin=f"http://{at.address}") as client:
            await client.send("hello")
            assert await client.recv() == "hello"
        assert not replica.calls[0].all("cookie") and replica.calls[0]["gpufleet-user"] == "ann"


async def test_a_program_that_refuses_a_web_socket_says_so_itself() -> None:
    async def forbids(call: Call) -> None:
        await call.reply(b"no", "418 I'm a teapot", {"Set-Cookie": "gpufleet_x=1"})

    async def hangs(call: Call) -> None:
        await call.is_left()

    async def closes(call: Call) -> None:
        call.keeps = False

    async with (
        stage() as at,
        program("r1", forbids) as one,
        program("r2", closes) as two,
        program("r3", hangs) as three,
    ):
        await at.serve("forbids", one)
        await at.serve("closes", two)
        await at.serve("hangs", three)
        assert await refused(at, "/m/forbids/") == 418
        assert await refused(at, "/m/closes/") == 502
        upgrade = b"GET /m/hangs/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        keys = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        async with at.raw(upgrade + keys):
            await until("it hangs", lambda: three.calls)
        await until("who leaves is gone", lambda: three.open == 0)
