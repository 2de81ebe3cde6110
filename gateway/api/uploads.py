"""Bytes that come in a request, on their way to the scheduler: who may send them, how many at once, and in pieces."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc.aio
from gpufleet.v1 import files_pb2
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.net.status import from_rpc_error

from ..dashboard.calls import Scheduler
from ..dashboard.login import person_of
from ..dashboard.serving import Dashboard
from .forms import FormFile
from .spool import Spool

WAIT_S_MAX = 60.0
"""A request of which no byte comes for so long is given up; what it uploaded until then is stored."""

PER_PERSON_MAX, AT_ONCE_MAX = 8, 64
"""Requests with files that one person, and all people of a gateway together, may have at once."""

SPOOL_FOLDER = "spool"


class Uploads:
    """What the paths with files have in common. `bytes_max` is what all files of one request may be together."""

    def __init__(self, dashboard: Dashboard, folder: Callable[[], Path], bytes_max: Callable[[], int]) -> None:
        self._dashboard = dashboard
        self._folder = folder
        self._bytes_max = bytes_max
        self._open: Counter[str] = Counter()

    async def token_of(self, request: HTTPConnection) -> str:
        """The token of who sends files, which the scheduler knows: nothing long is read of anybody else.

        A cookie does not do: a form of another site sends one along. Raises what the scheduler refuses.
        """
        token = self._dashboard.token_in(request, by_cookie=False)
        await self._dashboard.who_asks(request, token)
        return token

    @contextmanager
    def one_of(self, token: str) -> Iterator[None]:
        """Count a request for as long as it lasts. Raises TOO_MANY_STREAMS."""
        person = person_of(token)
        if self._open[person] >= PER_PERSON_MAX or self._open.total() >= AT_ONCE_MAX:
            raise GpufleetError(
                Reason.TOO_MANY_STREAMS,
                f"{PER_PERSON_MAX} requests with files of one person, or {AT_ONCE_MAX} of all, are under way",
                next_step="Wait until one has ended.",
                retry_after_s=1.0,
            )
        self._open[person] += 1
        try:
            yield
        finally:
            self._open[person] -= 1
            if not self._open[person]:
                del self._open[person]

    @contextmanager
    def spool(self) -> Iterator[Spool]:
        """Room for the files of one request."""
        spool = Spool(self._folder() / SPOOL_FOLDER, self._bytes_max())
        try:
            yield spool
        finally:
            spool.close()

    async def store(self, token: str, digest: str, size: int, offset: int, pieces: AsyncIterator[bytes]) -> int:
        """Upload a file from an offset on; how many of its bytes are stored then. Raises what the scheduler refuses."""
        scheduler = self._dashboard.scheduler
        call: Any = scheduler.method("UploadBlob")(metadata=scheduler.metadata(token))
        try:
            await call.write(files_pb2.UploadBlobRequest(digest=digest, size_bytes=size, offset=offset))
            async for data in in_pieces(pieces):
                await call.write(files_pb2.UploadBlobRequest(offset=offset, data=data))
                offset += len(data)
            await call.done_writing()
            return await _answer(call, scheduler)
        except asyncio.InvalidStateError:
            return await _answer(call, scheduler)
        except GpufleetError as error:
            # What came of a request that broke off is stored, so that the next one goes on there.
            if error.reason in (Reason.CANCELLED, Reason.DEADLINE) and not call.done():
                await call.done_writing()
                await asyncio.wait([asyncio.ensure_future(call)], timeout=WAIT_S_MAX)
            raise
        finally:
            call.cancel()

    async def store_missing(self, token: str, spool: Spool, files: Sequence[FormFile]) -> None:
        """Upload those of the files that the scheduler does not have. Raises what it refuses."""
        by_digest = {each.spooled.digest: each.spooled for each in files}
        asked = files_pb2.FindMissingBlobsRequest(digests=list(by_digest))
        answer: Any = await self._dashboard.scheduler.call("FindMissingBlobs", asked, token)
        for digest in answer.missing_digests:
            spooled = by_digest[digest]
            await self.store(token, digest, spooled.size_bytes, 0, spool.pieces(spooled))

    def download(self, token: str, digest: str) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """The size of a file that was uploaded, and its bytes. Raises FILE_NOT_UPLOADED, and what else is refused."""
        return _download(self._dashboard.scheduler, token, digest)


@asynccontextmanager
async def _download(scheduler: Scheduler, token: str, digest: str) -> AsyncIterator[tuple[int, AsyncIterator[bytes]]]:
    call: Any = scheduler.method("DownloadBlob")(
        files_pb2.DownloadBlobRequest(digest=digest), metadata=scheduler.metadata(token)
    )
    try:
        first = await call.read()
        if first is grpc.aio.EOF:
            raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"file {digest} is not stored")
        yield first.size_bytes, _rest(call, scheduler)
    except grpc.aio.AioRpcError as problem:
        raise from_rpc_error(problem) from None
    finally:
        call.cancel()


async def _rest(call: Any, scheduler: Scheduler) -> AsyncIterator[bytes]:
    try:
        while (answer := await call.read()) is not grpc.aio.EOF:
            yield answer.data
    except grpc.aio.AioRpcError as problem:
        raise from_rpc_error(problem) from None


async def _answer(call: Any, scheduler: Scheduler) -> int:
    """How much is stored, once the scheduler has ended an upload. Raises what it refuses."""
    try:
        return int((await call).stored_bytes)
    except grpc.aio.AioRpcError as problem:
        raise from_rpc_error(problem) from None


async def in_pieces(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The same bytes in pieces as long as a message takes them."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        while len(held) >= PIECE_BYTES_MAX:
            yield bytes(held[:PIECE_BYTES_MAX])
            del held[:PIECE_BYTES_MAX]
    if held:
        yield bytes(held)


async def chunks_of(request: Request) -> AsyncIterator[bytes]:
    """The bytes of a request's body as they come. Raises DEADLINE, CANCELLED."""
    stream = request.stream()
    try:
        while True:
            async with asyncio.timeout(WAIT_S_MAX):
                chunk = await anext(stream, None)
            if chunk is None:
                return
            if chunk:
                yield chunk
    except TimeoutError:
        message = f"nothing of the request came for {WAIT_S_MAX:g} s"
        raise GpufleetError(Reason.DEADLINE, message, next_step="Send it again.") from None
    except ClientDisconnect:
        raise GpufleetError(Reason.CANCELLED) from None
