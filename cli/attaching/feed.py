"""AttachJob as something to follow: the output as any follower sees it, and beside it what is typed."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError

from ..async_client import AsyncClient
from ..following.output import OutputFeed
from ..following.shell import Taken
from .window import InputWindow, News

Request = scheduler_pb2.AttachJobRequest
Response = scheduler_pb2.AttachJobResponse


class AttachFeed:
    """One attached session over all its connections."""

    ends_with_stream = False

    def __init__(
        self,
        client: AsyncClient,
        job_id: int,
        output: OutputFeed,
        window: InputWindow,
        *,
        size: Callable[[], job_pb2.TerminalSize | None],
        on_news: Callable[[scheduler_pb2.AttachedInput, int], None],
        take_over: bool = False,
    ) -> None:
        self._client = client
        self._job_id = job_id
        self._output = output
        self._window = window
        self._size = size
        self._on_news = on_news
        self._take_over = take_over
        self._session = uuid.uuid4().hex
        self._wake = asyncio.Event()
        self._has_new_size = False

    def typed(self) -> None:
        """There is something to send."""
        self._wake.set()

    def resized(self) -> None:
        """The terminal has another size."""
        self._has_new_size = True
        self._wake.set()

    async def open(self) -> AsyncIterator[Response]:
        """A call that goes on where the last one broke off."""
        self._window.lost()
        call = self._client.scheduler.AttachJob()
        writer = asyncio.create_task(self._write(call))
        try:
            async for response in call:
                yield response
        finally:
            writer.cancel()
            await asyncio.gather(writer, return_exceptions=True)
            call.cancel()

    async def ask(self) -> bool:
        """Whether the job lives."""
        return await self._output.ask()

    def take(self, message: Response) -> Taken:
        """Write what is new of the output; send what there is room for."""
        self._take_over = False  # it is ours now: after a lost connection it is not taken from anybody again
        match message.WhichOneof("body"):
            case "output":
                return self._output.take(message.output)
            case "input":
                self._hear(message.input)
                return Taken.NEWS
            case _:
                return Taken.SIGN_OF_LIFE

    def forgives(self, problem: GpufleetError) -> bool:
        """Whether the call can be made again after this refusal."""
        return self._output.forgives(problem)

    def _hear(self, told: scheduler_pb2.AttachedInput) -> None:
        news = News(
            attempt=told.attempt,
            offset=told.offset,
            is_open=told.is_open,
            is_new=told.is_new,
            is_continued=told.is_continued,
            has_ended=told.has_ended,
        )
        gone = self._window.heard(news)
        self._wake.set()
        self._on_news(told, gone)

    async def _write(self, call: Any) -> None:
        try:
            await call.write(self._first())
            while True:
                self._wake.clear()
                request = self._next()
                if request is not None:
                    await call.write(request)
                else:
                    await self._wake.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # whoever reads the call hears why it ended

    def _first(self) -> Request:
        self._has_new_size = False
        start = scheduler_pb2.AttachStart(
            attachment_id=self._session, take_over=self._take_over, size=self._size(), output=self._output.request()
        )
        return Request(job_id=self._job_id, start=start)

    def _next(self) -> Request | None:
        if self._has_new_size:
            self._has_new_size = False
            size = self._size()
            if size is not None:
                return Request(size=size)
        piece = self._window.next()
        if piece is None:
            return None
        if piece.data:
            return Request(stdin=piece.data, stdin_offset=piece.offset)
        return Request(stdin_end=True, stdin_offset=piece.offset)
