"""Connections to replicas that end in the middle are told as what they are."""

import asyncio

import pytest

from gateway.proxy.upstream import CLOSED, Connection, Endpoint, ReplicaFailed, dial
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target


@pytest.mark.parametrize(
    ("said", "why"),
    [(b"", CLOSED), (b"HTTP/1.1 2", "its answer is no HTTP"), (b"SSH-2.0-x\r\n\r\n", "its answer is no HTTP")],
)
async def test_a_replica_that_closes_has_not_answered(said: bytes, why: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        endpoint = Endpoint(Target(address=Address("127.0.0.1", server.sockets[0].getsockname()[1])), b"k")
        connection = await dial(endpoint, None, lambda: Connection(endpoint.first_line))
        connection.begin("GET", b"/", [(b"host", b"m")], b"", is_all=True)
        with pytest.raises(ReplicaFailed, match=why):
            await connection.answer()
        connection.abort()
