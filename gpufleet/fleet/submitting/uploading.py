"""Uploads the files of a job that the scheduler does not have yet, before the job is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import grpc

from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.text.units import counted, format_size
from gpufleet.v1 import files_pb2, job_pb2

from ..client import Client, connected, translated
from ..notices import Notices
from ..settings import Settings
from .input_files import local_files
from .sharing import share_files

if TYPE_CHECKING:
    from ..folders.preparing import Prepared

TRIES_MAX = 5
"""Of one upload that is cut; each goes on where the one before it stood."""


def upload_what_goes_along(
    settings: Settings,
    texts: Sequence[str],
    folder: Prepared | None,
    spec: job_pb2.JobSpec,
    notices: Notices,
    shared_root: Path | None = None,
) -> None:
    """Upload what is not stored there of a spec's files and of its folder. Errors: those of both."""
    if texts:
        upload_missing(settings, texts, spec, notices, shared_root)
    if folder is not None:
        from ..folders.sending import send

        send(settings, folder, notices)


def upload_missing(
    settings: Settings,
    texts: Sequence[str],
    spec: job_pb2.JobSpec,
    notices: Notices,
    shared_root: Path | None = None,
) -> None:
    """Upload what of a spec's files is here and not stored there, nor read in the shared folder, which the spec then
    says. Errors: those of UploadBlob and CheckFiles."""
    sources = local_files(texts)
    shared = share_files(settings, shared_root, texts, spec, notices)
    here = {
        each.digest: (sources[each.path], each.size_bytes)
        for each in spec.files
        if each.path in sources and each.digest not in shared
    }
    if not here:
        return
    with connected(settings) as client:
        missing = _missing(client, list(here))
        if missing:
            size = format_size(sum(here[digest][1] - stored for digest, stored in missing.items()))
            notices.tell(f"Uploading {counted(len(missing), 'file')}, {size}")
        for digest in missing:
            _upload(client, settings, digest, *here[digest])


def _missing(client: Client, digests: Sequence[str]) -> dict[str, int]:
    answer = client.call_again(
        client.scheduler.FindMissingBlobs, files_pb2.FindMissingBlobsRequest(digests=list(digests))
    )
    return dict(zip(answer.missing_digests, answer.stored_bytes, strict=True))


def _upload(client: Client, settings: Settings, digest: str, path: Path, size: int) -> None:
    for left in range(TRIES_MAX, 0, -1):
        stored = _missing(client, [digest]).get(digest)
        if stored is None:
            return
        try:
            answer = client.scheduler.UploadBlob(_pieces(path, digest, size, stored))
            if answer.stored_bytes == size:
                return
            raise GpufleetError(Reason.CONFLICT, f"{path} became shorter while it was uploaded")
        except grpc.RpcError as problem:
            error = translated(problem, settings)
            # What was stored of it may have been another file's: then nothing of it is kept, and it begins anew.
            is_worth_it = isinstance(error, UnavailableError) or (error.reason is Reason.DIGEST_MISMATCH and stored)
            if not is_worth_it or left == 1:
                raise error from None


def _pieces(path: Path, digest: str, size: int, offset: int) -> Iterator[files_pb2.UploadBlobRequest]:
    yield files_pb2.UploadBlobRequest(digest=digest, size_bytes=size, offset=offset)
    with path.open("rb") as file:
        file.seek(offset)
        while data := file.read(min(PIECE_BYTES_MAX, size - offset)):
            yield files_pb2.UploadBlobRequest(offset=offset, data=data)
            offset += len(data)
