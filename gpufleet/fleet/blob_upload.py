"""Uploads files that the scheduler lacks, by their digests: all of them in one stream, and again after a cut.

The stream is read as fast as it is sent, so no more than one file's pieces are held. Imports grpc.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc

from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.v1 import files_pb2

from .client import Client, translated

ASKED_AT_ONCE = 10_000
"""Digests of one question."""
TRIES_MAX = 5
"""Streams that bring nothing further, until it is given up; each goes on where the one before it stood."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file to upload; `read` gives its bytes from an offset on, in parts of any size, and may raise.

    `name` is what people call it.
    """

    digest: str
    size_bytes: int
    name: str
    read: Callable[[int], Iterable[bytes]]


def missing_blobs(client: Client, digests: Sequence[str]) -> dict[str, int]:
    """Those that are not stored for the caller, and how many of their first bytes are."""
    found: dict[str, int] = {}
    for start in range(0, len(digests), ASKED_AT_ONCE):
        request = files_pb2.FindMissingBlobsRequest(digests=digests[start : start + ASKED_AT_ONCE])
        answer = client.call_again(client.scheduler.FindMissingBlobs, request)
        found |= zip(answer.missing_digests, answer.stored_bytes, strict=True)
    return found


def upload_blobs(client: Client, sources: Sequence[Source], missing: Mapping[str, int]) -> None:
    """Upload those of the files that are missing, in their order; `missing` is what `missing_blobs` said.

    Errors: those of UploadBlob, CONFLICT where a file became shorter, and what `read` raises.
    """
    stored, tries_left = dict(missing), TRIES_MAX
    while stored:
        left = [each for each in sources if each.digest in stored]
        try:
            answer = _sent(client, left, stored)
            if answer.stored_bytes == sum(each.size_bytes for each in left):
                return
            error = GpufleetError(Reason.CONFLICT, "the scheduler does not have all that was uploaded just now")
        except GpufleetError as problem:
            # What was stored of it may have been another's: then nothing of it is kept, and it begins anew.
            is_about_before = stored.get(problem.metadata.get("digest", ""), 0) > 0
            if not (isinstance(problem, UnavailableError) or is_about_before):
                raise
            error = problem
        now = missing_blobs(client, [each.digest for each in left])
        tries_left = TRIES_MAX if _has_grown(stored, now) else tries_left - 1
        if not tries_left:
            raise error
        stored = now


def _sent(client: Client, sources: Sequence[Source], stored: Mapping[str, int]) -> files_pb2.UploadBlobResponse:
    """What the scheduler says of one stream of all these files."""
    troubles: list[Exception] = []
    try:
        answer = client.scheduler.UploadBlob(_stream(sources, stored, troubles))
    except grpc.RpcError as problem:
        raise (troubles[0] if troubles else translated(problem, client.settings)) from None
    if troubles:
        raise troubles[0]
    return answer


def _has_grown(before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    """Whether more is stored than there was."""
    return len(now) < len(before) or sum(now.values()) > sum(before.values())


def _stream(
    sources: Sequence[Source], stored: Mapping[str, int], troubles: list[Exception]
) -> Iterator[files_pb2.UploadBlobRequest]:
    """The messages of a stream. What goes wrong while gRPC reads them it would hide: it is put into `troubles`."""
    try:
        for source in sources:
            yield from _messages(source, stored[source.digest])
    except Exception as problem:  # raised again by who sends
        troubles.append(problem)


def _messages(source: Source, offset: int) -> Iterator[files_pb2.UploadBlobRequest]:
    """A file from an offset on. Its first message says which it is, and has bytes already."""
    digest, size = source.digest, source.size_bytes
    for part in source.read(offset) if offset < source.size_bytes else ():
        for start in range(0, len(part), PIECE_BYTES_MAX):
            data = part[start : start + PIECE_BYTES_MAX]
            yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=size, offset=offset, data=data)
            offset, digest, size = offset + len(data), "", 0
    if offset != source.size_bytes:
        raise GpufleetError(Reason.CONFLICT, f"{source.name} became shorter while it was uploaded")
    if digest:
        yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=size, offset=offset)
