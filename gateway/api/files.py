"""The files of jobs over HTTP: PUT one, whole or in pieces with checksums; HEAD and GET what is stored of it.

A piece says where it lies by Content-Range, as a range of an answer does (RFC 9110, 14.4), and may say the SHA-256 of
itself by Content-Digest (RFC 9530): it is then stored only if it has it.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import AsyncIterator
from typing import Any

from gpufleet.v1 import files_pb2
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import FILE_BYTES_MAX, is_digest

from ..dashboard.guard import NOT_KEPT, error_object
from ..dashboard.serving import Dashboard
from .uploads import Uploads, chunks_of

RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})")
RANGE_STEP = "Say it as Content-Range: bytes FIRST-LAST/SIZE, such as bytes 0-1048575/5000000."
DIGEST_STEP = "Give the 64 digits that sha256sum prints."
DIGEST_HEADER_STEP = "Say it as Content-Digest: sha-256=:BASE64:, of the 32 bytes of the SHA-256."
STORED_HEADER = "Upload-Offset"
"""How many of a file's first bytes are stored: where an upload goes on."""


class Files:
    """What is done with /files/{digest}."""

    def __init__(self, dashboard: Dashboard, uploads: Uploads) -> None:
        self._dashboard = dashboard
        self._uploads = uploads

    async def put(self, request: Request) -> Response:
        """Store a file, or a piece of one."""
        digest, offset, length, size = _place_of(request)
        wanted = _digest_said(request)
        token = await self._uploads.token_of(request)
        with self._uploads.one_of(token):
            body = _exactly(chunks_of(request), length)
            if wanted is None:
                stored = await self._uploads.store(token, digest, size, offset, body)
            else:
                stored = await self._checked(token, digest, size, offset, body, wanted)
        status = 200 if stored == size else 202
        return JSONResponse({"stored_bytes": str(stored)}, status, NOT_KEPT | {STORED_HEADER: str(stored)})

    async def _checked(
        self, token: str, digest: str, size: int, offset: int, body: AsyncIterator[bytes], wanted: str
    ) -> int:
        """Store a piece once all of it has come and has its checksum. Raises DIGEST_MISMATCH."""
        with self._uploads.spool() as spool:
            spool.begin()
            async for chunk in body:
                await spool.add(chunk)
            spooled = await spool.end()
            if spooled.digest != wanted:
                message = f"what came has the SHA-256 {spooled.digest}, and Content-Digest says {wanted}"
                raise GpufleetError(Reason.DIGEST_MISMATCH, message, next_step="Send the piece again.")
            return await self._uploads.store(token, digest, size, offset, spool.pieces(spooled))

    async def get(self, request: Request) -> Response:
        """The file; of one that is not whole how much is stored, with a 404. HEAD says as much without the bytes."""
        digest = _digest_in(request)
        token = self._dashboard.token_in(request)
        await self._dashboard.who_asks(request, token)
        download = self._uploads.download(token, digest)
        try:
            size, pieces = await download.__aenter__()
        except GpufleetError as error:
            if error.reason is not Reason.FILE_NOT_UPLOADED:
                raise
            return await self._missing(token, digest, error)
        headers = NOT_KEPT | {"Content-Length": str(size), "Content-Disposition": "attachment"}
        if request.method == "HEAD":
            await download.__aexit__(None, None, None)
            return Response(headers=headers, media_type="application/octet-stream")
        return _Download(pieces, download, headers)

    async def _missing(self, token: str, digest: str, error: GpufleetError) -> Response:
        asked = files_pb2.FindMissingBlobsRequest(digests=[digest])
        answer: Any = await self._dashboard.scheduler.call("FindMissingBlobs", asked, token)
        stored = next(iter(answer.stored_bytes), 0)
        return JSONResponse(error_object(error), 404, NOT_KEPT | {STORED_HEADER: str(stored)})


class _Download(StreamingResponse):
    """A file on its way to its reader."""

    def __init__(self, pieces: AsyncIterator[bytes], download: Any, headers: dict[str, str]) -> None:
        super().__init__(pieces, headers=headers, media_type="application/octet-stream")
        self._download = download

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, to its end or to that of the connection."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._download.__aexit__(None, None, None)


def _digest_in(request: Request) -> str:
    digest: str = request.path_params["digest"]
    if not is_digest(digest):
        raise invalid("digest", "is not a SHA-256 in lower-case hexadecimal", next_step=DIGEST_STEP)
    return digest


def _place_of(request: Request) -> tuple[str, int, int, int]:
    """The digest, the offset of what comes, how much that is, and the size of the whole. Raises INVALID_ARGUMENT."""
    digest = _digest_in(request)
    length = request.headers.get("content-length")
    said = request.headers.get("content-range")
    if said is None:
        if length is None:
            step = "Send the file with its length, or in pieces. " + RANGE_STEP
            raise invalid("content-length", "is not said, nor is Content-Range", next_step=step)
        first, size = 0, int(length)
        last = size - 1
    else:
        found = RANGE.fullmatch(said)
        if found is None:
            raise invalid("content-range", "cannot be read", next_step=RANGE_STEP)
        first, last, size = (int(each) for each in found.groups())
        if not first <= last < size:
            raise invalid("content-range", f"{first:,} to {last:,} is not within {size:,} bytes", next_step=RANGE_STEP)
        if length is not None and int(length) != last - first + 1:
            raise invalid("content-range", f"is of {last - first + 1:,} bytes, and {int(length):,} come")
    if size > FILE_BYTES_MAX:
        raise invalid("content-length", f"the file has {size:,} bytes; at most {FILE_BYTES_MAX:,} are taken")
    return digest, first, last - first + 1, size


def _digest_said(request: Request) -> str | None:
    """The SHA-256 that the piece is to have, in hexadecimal; None where nothing is said. Raises INVALID_ARGUMENT."""
    said = request.headers.get("content-digest")
    if said is None:
        return None
    for each in said.split(","):
        name, found, value = each.strip().partition("=")
        if name.lower() == "sha-256" and found and len(value) > 2 and value[0] == value[-1] == ":":
            try:
                digest = base64.b64decode(value[1:-1], validate=True)
            except binascii.Error:
                break
            if len(digest) == 32:
                return digest.hex()
    raise invalid("content-digest", "holds no SHA-256", next_step=DIGEST_HEADER_STEP)


async def _exactly(chunks: AsyncIterator[bytes], length: int) -> AsyncIterator[bytes]:
    """The bytes, which must be as many as was said. Raises INVALID_ARGUMENT, behind those that came."""
    left = length
    async for chunk in chunks:
        left -= len(chunk)
        if left < 0:
            break
        yield chunk
    if left:
        what = "more" if left < 0 else f"{left:,} fewer"
        raise invalid("body", f"has {what} bytes than was said", next_step="Send as much as is said.")
