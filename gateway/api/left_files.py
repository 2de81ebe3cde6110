"""The bytes of a file that a job left: whole or in part, for who may read what the job writes.

Its name and its content are whatever the job's owner wished. It is told in such a way that a browser runs nothing of it
with the rights of this gateway's own pages: `media_types.py` says as what, and HEADERS that it has no origin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from gpufleet.v1 import files_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.json_messages import NUMBER, shown
from gpufleet.net.status import from_rpc_error
from gpufleet.telemetry.logs import fields

from ..dashboard.bounds import Streams
from ..dashboard.calls import CALL_S_MAX, Scheduler
from ..dashboard.guard import NOT_KEPT, error_object
from ..dashboard.login import person_of
from ..dashboard.serving import Dashboard
from ..dashboard.streamed import BrokenOff, Streamed
from .byte_ranges import NotSatisfiable, part_wanted
from .media_types import disposition_of, media_type_of
from .table import PREFIX

log = logging.getLogger(__name__)

LEFT_PATH = f"{PREFIX}/jobs/{{job_id}}/files/{{path:path}}"

HEADERS = {
    **NOT_KEPT,
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Accept-Ranges": "bytes",
}
"""Of every answer: a page in the file would have an origin of its own, no script, and nothing to load."""

JOB_STEP = "Give a job's id, such as 41."
AGAIN = "Ask for it again."


class LeftFiles:
    """What is done with /jobs/{job_id}/files/{path}."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._streams = Streams()

    async def get(self, request: Request) -> Response:
        """The file, or the part that Range wants; HEAD says as much without the bytes."""
        wanted = _wanted(request)
        token = self._dashboard.token_in(request)
        person = person_of(token)
        self._streams.open(person)
        is_sent = False
        try:
            response = await self._dashboard.asked(request, lambda: self._answer(request, wanted, token))
            is_sent = isinstance(response, Streamed)
        finally:
            if not is_sent:
                self._streams.closed(person)
        return response

    async def _answer(self, request: Request, wanted: files_pb2.DownloadFileRequest, token: str) -> Response:
        said, version = request.headers, ""
        part: tuple[int, int] | None = None
        if request.method == "HEAD" or "range" in said or "if-none-match" in said:
            # A byte of it tells how long it is, which decides what is wanted.
            look = files_pb2.DownloadFileRequest(length_bytes=1)
            look.MergeFrom(wanted)
            reading = await self._begun(look, token)
            await reading.close()
            size, version = reading.size_bytes, reading.version
            headers = _headers(wanted.path, version)
            if headers["ETag"] in said.get("if-none-match", ""):
                return Response(status_code=304, headers=headers)
            if request.method == "HEAD":
                return Response(headers=headers | {"Content-Length": str(size)}, media_type=media_type_of(wanted.path))
            try:
                if said.get("if-range", headers["ETag"]) == headers["ETag"]:
                    part = part_wanted(said.get("range"), size)
            except NotSatisfiable:
                why = f"{wanted.path[:200]!r} has {size:,} bytes, and none of them is within Range"
                error = error_object(GpufleetError(Reason.OFFSET_OUT_OF_RANGE, why))
                return JSONResponse(error, 416, headers | {"Content-Range": f"bytes */{size}"})
        if part is not None:
            wanted.offset, wanted.length_bytes = part
        reading = await self._begun(wanted, token)
        if version not in ("", reading.version):
            await reading.close()
            raise GpufleetError(Reason.CONFLICT, f"another attempt left {wanted.path[:200]!r} anew", next_step=AGAIN)
        headers, size, status = _headers(wanted.path, reading.version), reading.size_bytes, 200
        if part is not None:
            offset, length = part
            headers["Content-Range"], size, status = f"bytes {offset}-{offset + length - 1}/{size}", length, 206
        headers["Content-Length"] = str(size)
        person = person_of(token)
        return Streamed(
            reading,
            reading.bytes(),
            media_type_of(wanted.path),
            lambda: self._streams.closed(person),
            headers=headers,
            status_code=status,
        )

    async def _begun(self, wanted: files_pb2.DownloadFileRequest, token: str) -> Reading:
        reading = Reading(self._dashboard.scheduler, wanted, token)
        try:
            await reading.begin()
        except BaseException:
            await reading.close()
            raise
        return reading


class Reading:
    """A file on its way from the scheduler. `begin` first, which raises what is refused; in the end `close`."""

    def __init__(self, scheduler: Scheduler, wanted: files_pb2.DownloadFileRequest, token: str) -> None:
        self._scheduler = scheduler
        self._call: Any = scheduler.method("DownloadFile")(wanted, metadata=scheduler.metadata(token))
        self._reading: asyncio.Task[Any] = self._next()
        self.size_bytes = 0
        self.version = ""

    async def begin(self) -> None:
        """Return once it is known what there is. Raises what the scheduler refuses, and DEADLINE."""
        await asyncio.wait([self._reading], timeout=CALL_S_MAX)
        if not self._reading.done():
            raise GpufleetError(Reason.DEADLINE, "the scheduler did not answer in time")
        first = self._read()
        if first is grpc.aio.EOF or not first.HasField("size_bytes"):
            why = "this gateway wants a scheduler that says how long a file is"
            raise GpufleetError(Reason.NOT_BUILT, why, next_step="Update the scheduler; or use: gpuctl cp JOB:PATH .")
        self.size_bytes, self.version = first.size_bytes, first.version

    async def bytes(self) -> AsyncIterator[bytes]:
        """What is wanted of the file, as it comes."""
        try:
            while (piece := self._read()) is not grpc.aio.EOF:
                self._reading = self._next()
                if piece.data:
                    yield piece.data
                await asyncio.wait([self._reading])
        except GpufleetError as error:
            log.info("a file breaks off", extra=fields(why=error.message))
            raise BrokenOff from None

    async def close(self) -> None:
        """Be gone, at the scheduler too."""
        # The call is cancelled and not the read: one of grpc.aio that is cancelled while it waits loses memory.
        self._call.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    def _next(self) -> asyncio.Task[Any]:
        return asyncio.create_task(self._call.read(), name="left file")

    def _read(self) -> Any:
        try:
            return self._reading.result()
        except grpc.aio.AioRpcError as problem:
            raise from_rpc_error(problem) from None


def _wanted(request: Request) -> files_pb2.DownloadFileRequest:
    """Which file. Raises INVALID_ARGUMENT."""
    job, path = request.path_params["job_id"], request.path_params["path"]
    if not NUMBER.fullmatch(job) or not 0 < int(job) < 2**63:
        raise invalid("job_id", "is no job's id", next_step=JOB_STEP)
    rank = 0
    for name, value in request.query_params.multi_items():
        if name != "rank":
            raise invalid(shown(name), "is not taken here; the query may say rank")
        if not NUMBER.fullmatch(value) or not 0 <= int(value) < 2**31:
            raise invalid("rank", "is no rank: they are counted from 0")
        rank = int(value)
    return files_pb2.DownloadFileRequest(job_id=int(job), path=path, rank=rank)


def _headers(path: str, version: str) -> dict[str, str]:
    return {**HEADERS, "Content-Disposition": disposition_of(path), "ETag": f'"{version}"'}
