"""A command in a job's world through the public contract: what goes up, and what comes down."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS

Request = scheduler_pb2.ExecJobRequest


class Execution:
    """`async with Execution(person, job, "cat")` begins it; it raises the GpufleetError with which that is refused."""

    def __init__(self, person: Client, job_id: int, *argv: str, **fields: Any) -> None:
        self._person = person
        self._start = job_pb2.ExecStart(job_id=job_id, argv=argv, **fields)
        self._call: Any = None
        self.stdout = b""
        self.stderr = b""
        self.sent_bytes = 0
        self.exit: job_pb2.ExitStatus | None = None
        self.problem = ""

    async def __aenter__(self) -> Execution:
        self._call = self._person.stub.ExecJob()
        try:
            await self.send(start=self._start)
            async with asyncio.timeout(DEADLINE_SECONDS):
                answer = await self._call.read()
            if answer is grpc.aio.EOF:
                await self._call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise await self.refusal() from None
        assert answer.attempt >= 1
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

    async def hear(self) -> bool:
        """Take in the next message; False when nothing more comes."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                message = await self._call.read()
            except grpc.aio.AioRpcError:
                return False
        if message is grpc.aio.EOF:
            return False
        if message.stream == job_pb2.STREAM_STDERR:
            self.stderr += message.data
        else:
            self.stdout += message.data
        if message.HasField("exit"):
            self.exit, self.problem = message.exit, message.problem
        return True

    async def until_shows(self, part: bytes) -> None:
        """Until it has written this to its standard output."""
        while part not in self.stdout:
            assert await self.hear(), (self.stdout, self.stderr, self.exit)

    async def end(self) -> job_pb2.ExitStatus | None:
        """Hear all until it has ended, and how; None where the call was cut."""
        while self.exit is None and await self.hear():
            pass
        return self.exit
