"""The Scheduler service: files that people upload for their jobs, and which of them a job may name."""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Any

from gpufleet.v1 import files_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import FILE_BYTES_MAX, PIECE_BYTES_MAX, is_digest

from ...blobs.reading import pieces_from
from ...blobs.receiving import Receiving
from ...blobs.store import BlobStore
from ...state.ids import UserName
from ...state.specs import InputFile, JobSpec
from ..answers import Calls
from ..roles import caller

DIGESTS_MAX = 10_000
PIECE_WAIT_SECONDS = 60.0
"""An upload that is silent for longer ends; what came is stored, and the next one goes on there."""
NOT_A_DIGEST = "is not a SHA-256 in lower-case hexadecimal"
DIGEST_STEP = "give the 64 digits that sha256sum prints"


class FileCalls(Calls):
    """What people upload. Each public method is one RPC."""

    blobs: BlobStore
    one_stream: Callable[[], AbstractContextManager[None]]

    async def FindMissingBlobs(self, request: files_pb2.FindMissingBlobsRequest) -> files_pb2.FindMissingBlobsResponse:
        """Which of the caller's files are not stored whole; those that are, are kept for a while."""
        if len(request.digests) > DIGESTS_MAX:
            raise invalid("digests", f"holds {len(request.digests):,}; at most {DIGESTS_MAX:,} are taken at once")
        for number, digest in enumerate(request.digests):
            if not is_digest(digest):
                raise invalid(f"digests[{number}]", NOT_A_DIGEST, next_step=DIGEST_STEP)
        user, wanted = caller().user, tuple(dict.fromkeys(request.digests))
        await self.blobs.on_thread(self.blobs.keep, [(user, each) for each in wanted])
        missing = [each for each in wanted if self.blobs.size_of(user, each) is None]
        return files_pb2.FindMissingBlobsResponse(
            missing_digests=missing, stored_bytes=[self.blobs.stored_bytes(user, each) for each in missing]
        )

    async def UploadBlob(
        self, request_iterator: AsyncIterator[files_pb2.UploadBlobRequest], context: Any
    ) -> files_pb2.UploadBlobResponse:
        """Store the pieces of file after file as they come; at the end of the stream all that came is durable."""
        piece = await _next(request_iterator)
        if piece is None:
            raise invalid("digest", "is not set: the stream is empty", next_step=DIGEST_STEP)
        digest, size = "", 0
        with self.one_stream():
            async with Receiving(self.blobs, caller().user) as files:
                while piece is not None:
                    if not digest or piece.digest not in ("", digest):
                        digest, size = _file_of(piece)
                        await files.begin(digest, size)
                    _check_piece(piece, size)
                    await files.take(piece.offset, piece.data)
                    piece = await _next(request_iterator)
                stored = await files.finish()
        return files_pb2.UploadBlobResponse(stored_bytes=stored)

    async def DownloadBlob(
        self, request: files_pb2.DownloadBlobRequest
    ) -> AsyncIterator[files_pb2.DownloadBlobResponse]:
        """The bytes of the caller's own file from the offset on; the first message tells its size."""
        if not is_digest(request.digest):
            raise invalid("digest", NOT_A_DIGEST, next_step=DIGEST_STEP)
        user = caller().user
        with self.one_stream():
            await self.blobs.on_thread(self.blobs.keep, [(user, request.digest)])
            reader = await self.blobs.on_thread(self.blobs.open, user, request.digest)
            if reader is None:
                raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"file {request.digest} is not stored for {user}")
            async with aclosing(pieces_from(self.blobs, reader, request.offset)) as pieces:
                yield files_pb2.DownloadBlobResponse(offset=request.offset, size_bytes=reader.size)
                async for offset, data in pieces:
                    yield files_pb2.DownloadBlobResponse(offset=offset, data=data)


def _file_of(first: files_pb2.UploadBlobRequest) -> tuple[str, int]:
    """The digest and the size of the file that begins with this piece. Errors: INVALID_ARGUMENT."""
    if not is_digest(first.digest):
        raise invalid("digest", NOT_A_DIGEST, next_step=DIGEST_STEP)
    if not 0 <= first.size_bytes <= FILE_BYTES_MAX:
        raise invalid("size_bytes", f"is {first.size_bytes:,}; it must be 0 to {FILE_BYTES_MAX:,}")
    return first.digest, first.size_bytes


def _check_piece(piece: files_pb2.UploadBlobRequest, size: int) -> None:
    if len(piece.data) > PIECE_BYTES_MAX:
        raise invalid("data", f"has {len(piece.data):,} bytes; at most {PIECE_BYTES_MAX:,} come in one message")
    if not 0 <= piece.offset <= size - len(piece.data):
        why = f"is {piece.offset:,}; with {len(piece.data):,} bytes behind it that is not within the file"
        raise invalid("offset", why, next_step="size_bytes of the file's first message is the whole file's")


async def _next(requests: AsyncIterator[files_pb2.UploadBlobRequest]) -> files_pb2.UploadBlobRequest | None:
    """The next piece; None at the end. Errors: DEADLINE."""
    try:
        async with asyncio.timeout(PIECE_WAIT_SECONDS):
            return await anext(requests, None)
    except TimeoutError:
        raise GpufleetError(
            Reason.DEADLINE,
            f"nothing of the file came for {PIECE_WAIT_SECONDS:.0f} s; what came is stored",
            next_step="Upload it again: it goes on where it stands.",
        ) from None


@dataclass(frozen=True, slots=True)
class Missing:
    """A file that a job names and that is not there: of which spec the how-manieth, and why.

    `is_other`: it is there, and has another size than was said.
    """

    spec: int
    number: int
    file: InputFile
    why: str
    is_other: bool = False


def missing_files(blobs: BlobStore, user: UserName, specs: Sequence[JobSpec]) -> list[Missing]:
    """The files that are not stored for this user with the size that is said; the others are kept for a while."""
    blobs.keep({(user, each.digest): None for spec in specs for each in spec.files})
    found: list[Missing] = []
    for number, spec in enumerate(specs):
        for place, each in enumerate(spec.files):
            size = blobs.size_of(user, each.digest)
            if size is None:
                found.append(Missing(number, place, each, f"{each.path!r} is not uploaded"))
            elif size != each.size_bytes:
                why = f"{each.path!r} has {size:,} bytes, not {each.size_bytes:,}"
                found.append(Missing(number, place, each, why, is_other=True))
    return found


def only_shared(missing: Sequence[Missing], roots: Container[str]) -> tuple[list[Missing], list[Missing]]:
    """Those that nodes read in a shared folder of these, and all others. Errors: INVALID_ARGUMENT."""
    found: list[Missing] = []
    others: list[Missing] = []
    for each in missing:
        if each.is_other or not each.file.shared_root:
            others.append(each)
        elif each.file.shared_root not in roots:
            why = f"{each.why}, and no node was found to see the shared folder {each.file.shared_root}"
            others.append(replace(each, why=why))
        else:
            found.append(each)
    first: dict[int, str] = {}
    for each in found:
        root = first.setdefault(each.spec, each.file.shared_root)
        if root != each.file.shared_root:
            raise invalid(
                f"specs[{each.spec}].files[{each.number}].shared_root",
                "is another shared folder than that of a file before it",
                next_step="upload those of one of the two",
            )
    return found, others


def not_uploaded(missing: Sequence[Missing], field: str) -> GpufleetError:
    """The refusal of a submit."""
    first = missing[0]
    more = f", nor {len(missing) - 1:,} more" if len(missing) > 1 else ""
    return invalid(field.format(first.spec, first.number), first.why + more, reason=Reason.FILE_NOT_UPLOADED)
