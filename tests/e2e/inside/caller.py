"""A connection to a port of a job through the public contract: what goes up, and what comes down."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, until

Request = scheduler_pb2.ForwardPortRequest


class Caller:
    """`async with Caller(person, job, port)` connects; it raises the GpufleetError with which that is refused."""

    def __init__(self, person: Client, job_id: int, port: int, rank: int = 0) -> None:
        self._person = person
        self._target = scheduler_pb2.ForwardedPort(job_id=job_id, port=port, rank=rank)
        self._call: Any = None
        self.attempt = 0
        self.sent_bytes = 0

    async def __aenter__(self) -> Caller:
        self._call = self._person.stub.ForwardPort()
        try:
            await self.send(target=self._target)
            async with asyncio.timeout(DEADLINE_SECONDS):
                answer = await self._call.read()
            if answer is grpc.aio.EOF:
                await self._call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await self.refusal() from None
        self.attempt = answer.attempt
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()

    async def refusal(self) -> GpufleetError:
        """The error that the call ended with."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            code, details = await self._call.code(), await self._call.details()
            trailing = await self._call.trailing_metadata()
        return from_rpc_error(grpc.aio.AioRpcError(code, await self._call.initial_metadata(), trailing, details))

    async def send(self, data: bytes = b"", **fields: Any) -> None:
        """Send bytes, or what else a message has; waits while they are not taken."""
        await self._call.write(Request(data=data, **fields))
        self.sent_bytes += len(data)

    async def end(self) -> None:
        """No more bytes go up."""
        await self.send(is_end=True)

    async def read(self) -> bytes | None:
        """The next bytes; empty at the end of what the job sends, None when the connection was cut."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError:
                return None
        if message is grpc.aio.EOF:
            return None
        assert message.data or message.is_end
        return bytes(message.data)

    async def rest(self) -> bytes:
        """Everything up to the end of what the job sends."""
        gathered = b""
        while data := await self.read():
            gathered += data
        assert data is not None, f"it was cut behind {gathered!r}"
        return gathered


async def until_listens(person: Client, job_id: int, word: bytes = b"listening") -> int:
    """The port that a job says it listens on, as in `listening 8888`."""
    port = 0

    async def has_said() -> bool:
        nonlocal port
        lines = (await person.stdout(job_id, follow=False)).split(b"\n")
        port = next((int(line.split()[1]) for line in lines[:-1] if line.startswith(word)), 0)
        return port != 0

    await until(f"job {job_id} listens", has_said)
    return port
