"""Uploads the files of a job that the scheduler does not have yet, before the job is submitted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.text.units import counted, format_size
from gpufleet.v1 import job_pb2

from ..blob_upload import Source, missing_blobs, upload_blobs
from ..client import connected
from ..notices import Notices
from ..settings import Settings
from .input_files import local_files
from .sharing import share_files

if TYPE_CHECKING:
    from ..folders.preparing import Prepared


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
        missing = missing_blobs(client, list(here))
        if not missing:
            return
        size = format_size(sum(here[digest][1] - stored for digest, stored in missing.items()))
        notices.tell(f"Uploading {counted(len(missing), 'file')}, {size}")
        upload_blobs(client, [_source(digest, *found) for digest, found in here.items()], missing)


def _source(digest: str, path: Path, size: int) -> Source:
    def read(offset: int) -> Iterator[bytes]:
        left = size - offset
        try:
            with path.open("rb") as file:
                file.seek(offset)
                while data := file.read(min(PIECE_BYTES_MAX, left)):
                    yield data
                    left -= len(data)
        except OSError as problem:
            raise GpufleetError(Reason.FILE_NOT_FOUND, f"{path} cannot be read: {problem.strerror}") from None

    return Source(digest, size, str(path), read)
