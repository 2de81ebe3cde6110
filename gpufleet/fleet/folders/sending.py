"""Uploads what the scheduler lacks of a folder: chunks first, and the manifest that names them last."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc

from gpufleet.errors import Reason, UnavailableError
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.text.units import counted, format_size
from gpufleet.v1 import files_pb2

from ..client import Client, connected, translated
from ..notices import Notices
from ..settings import Settings
from .preparing import Prepared, bytes_of, changed
from .scanning import LEFT_OUT_SHOWN, largest

ASKED_AT_ONCE = 10_000
"""Digests of one question."""
SENDERS = 4
"""Chunks on their way at the same time, of 8 MiB at most each."""
TRIES_MAX = 5


def send(settings: Settings, prepared: Prepared, notices: Notices) -> None:
    """Upload what is missing, and say how much that is. Errors: CONFLICT, and those of UploadBlob."""
    digest = prepared.folder.digest
    sizes = {each: sum(part.size for part in plan) for each, plan in prepared.plans.items()}
    with connected(settings) as client:
        missing = _missing(client, [*sizes, digest])
        chunks = [each for each in missing if each != digest]
        _tell(notices, prepared, len(chunks), sum(sizes[each] - missing[each] for each in chunks))

        def upload(each: str) -> None:
            plan = prepared.plans[each]
            data = bytes_of(prepared.found.root, plan)
            if hashlib.sha256(data).hexdigest() != each:
                raise changed(plan[0].file.path)
            _upload(client, settings, each, data, missing[each])

        if chunks:
            _each(upload, chunks)
        if digest in missing:
            _upload(client, settings, digest, prepared.manifest, missing[digest])


def _each(upload: Callable[[str], None], chunks: Sequence[str]) -> None:
    """Upload all of them; after a failure no other is begun."""
    pool = ThreadPoolExecutor(SENDERS)
    try:
        for done in [pool.submit(upload, each) for each in chunks]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _missing(client: Client, digests: Sequence[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for start in range(0, len(digests), ASKED_AT_ONCE):
        request = files_pb2.FindMissingBlobsRequest(digests=digests[start : start + ASKED_AT_ONCE])
        answer = client.call_again(client.scheduler.FindMissingBlobs, request)
        found |= zip(answer.missing_digests, answer.stored_bytes, strict=True)
    return found


def _upload(client: Client, settings: Settings, digest: str, data: bytes, stored: int) -> None:
    for left in range(TRIES_MAX, 0, -1):
        try:
            client.scheduler.UploadBlob(_pieces(digest, data, stored))
            return
        except grpc.RpcError as problem:
            error = translated(problem, settings)
            # What was stored of it may have been another's: then nothing of it is kept, and it begins anew.
            is_worth_it = isinstance(error, UnavailableError) or (
                stored and error.reason in (Reason.DIGEST_MISMATCH, Reason.OFFSET_OUT_OF_RANGE)
            )
            if not is_worth_it or left == 1:
                raise error from None
        now = _missing(client, [digest]).get(digest)
        if now is None:
            return
        stored = now


def _pieces(digest: str, data: bytes, offset: int) -> Iterator[files_pb2.UploadBlobRequest]:
    yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=len(data), offset=offset)
    for start in range(offset, len(data), PIECE_BYTES_MAX):
        yield files_pb2.UploadBlobRequest(offset=start, data=data[start : start + PIECE_BYTES_MAX])


def _tell(notices: Notices, prepared: Prepared, count: int, size: int) -> None:
    found = prepared.found
    notices.say(
        f"--upload {found.root}: {counted(found.count, 'file')}, {format_size(found.content_bytes)}; "
        + (f"sends {format_size(size)} in {counted(count, 'chunk')}" if count else "nothing of it is new")
    )
    if found.files:
        notices.say(f"largest: {largest(found)}")
    if found.left_out:
        more = len(found.left_out) - LEFT_OUT_SHOWN
        shown = ", ".join(map(ascii, found.left_out[:LEFT_OUT_SHOWN])) + (f" and {more} more" if more > 0 else "")
        notices.say(f"left out: {shown}")
