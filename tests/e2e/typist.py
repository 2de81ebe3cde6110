"""A session that types to a job through the public contract, and sees what it shows."""

from __future__ import annotations

import asyncio
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS

Request = scheduler_pb2.AttachJobRequest


class Typist:
    """`async with Typist(person, job)` attaches; `type` waits until the node has taken it."""

    def __init__(self, person: Client, job_id: int, session: str = "me", **start: Any) -> None:
        self._person = person
        self._job_id = job_id
        output = start.pop("output", scheduler_pb2.StreamOutputRequest())
        self._start = scheduler_pb2.AttachStart(attachment_id=session, output=output, **start)
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.shown = b""
        self.news: list[scheduler_pb2.AttachedInput] = []
        self.exit: job_pb2.ExitStatus | None = None
        self.job = job_pb2.Job()
        self.offset = 0

    async def __aenter__(self) -> Typist:
        self._call = self._person.stub.AttachJob()
        self._reader = asyncio.create_task(self._read())
        await self._call.write(Request(job_id=self._job_id, start=self._start))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._call.cancel()
        assert self._reader is not None
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        del self._call

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._take(response)
                self._changed.set()
        finally:
            self._changed.set()

    def _take(self, response: scheduler_pb2.AttachJobResponse) -> None:
        match response.WhichOneof("body"):
            case "input":
                self.news.append(response.input)
                if response.input.is_new:
                    self.offset = response.input.offset
            case "exit":
                self.exit = response.exit
            case "output":
                self.shown += response.output.data
                if response.output.HasField("job"):
                    self.job = response.output.job
            case _:
                raise AssertionError("a message without a body")

    async def until(self, what: str, is_so: Any) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            while not is_so():
                assert self._reader is not None
                if self._reader.done():
                    self._reader.result()
                    assert is_so(), f"the call ended without {what}; shown: {self.shown!r}, news: {self.news}"
                    return
                self._changed.clear()
                await self._changed.wait()

    async def is_open(self) -> scheduler_pb2.AttachedInput:
        await self.until("an open way", lambda: self.news and self.news[-1].is_open)
        return self.news[-1]

    async def shows(self, text: bytes, after: int = 0) -> int:
        await self.until(repr(text), lambda: self.shown.find(text, after) >= 0)
        return self.shown.find(text, after) + len(text)

    async def send(self, **body: Any) -> None:
        await self._call.write(Request(**body))

    async def type(self, data: bytes) -> None:
        await self.is_open()
        await self.send(stdin=data, stdin_offset=self.offset)
        self.offset += len(data)
        await self.until("its being taken", lambda: self.news[-1].offset >= self.offset)

    async def end_input(self) -> None:
        await self.send(stdin_end=True, stdin_offset=self.offset)

    async def end(self) -> None:
        """Wait until the scheduler ends the call; raises what it ended it with."""
        assert self._reader is not None
        async with asyncio.timeout(DEADLINE_SECONDS):
            await self._reader
