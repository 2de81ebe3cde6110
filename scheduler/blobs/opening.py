"""Makes the store of uploaded files of the settings, and says which of them jobs need."""

from collections.abc import Callable, Iterator
from pathlib import Path

from gpufleet.config.scheduler_settings import FileSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import ManifestError

from ..state.durable import Durable
from .on_disk import Key
from .store import BlobLimits, BlobStore

FOLDER = "blobs"
"""Where in the data folder the files are; also with PostgreSQL."""


def open_blobs(settings: Callable[[], FileSettings], data: Path) -> BlobStore:
    """The store of a data folder. Errors: STORE_UNAVAILABLE."""
    return BlobStore(data / FOLDER, lambda: limits_of(settings()))


def limits_of(files: FileSettings) -> BlobLimits:
    """The limits that the settings ask for."""
    return BlobLimits(
        file_bytes=files.file_bytes_max,
        user_bytes=files.user_bytes_max,
        user_files=files.user_files_max,
        free_bytes=files.free_bytes_min,
        folder_bytes=files.folder_bytes_max,
    )


def needed_by(durable: Durable) -> frozenset[Key]:
    """The files of all jobs that have not ended; of their folders the manifests."""
    with_files = (job for job in durable.jobs.values() if job.spec.files)
    files = frozenset((job.user, each.digest) for job in with_files for each in job.spec.files)
    return files | folders_needed_by(durable)


def folders_needed_by(durable: Durable) -> frozenset[Key]:
    """The manifests of the folders of all jobs that have not ended."""
    return frozenset((job.user, job.spec.folder.digest) for job in durable.jobs.values() if job.spec.folder)


def left_by_jobs(blobs: BlobStore) -> frozenset[Key]:
    """The manifests of what jobs left. It reads files: not for the event loop."""
    return frozenset((each.user, each.digest) for each in blobs.results.all())


def chunks_of(blobs: BlobStore, folders: frozenset[Key]) -> Iterator[Key]:
    """What is in these folders. It reads manifests: not for the event loop. Errors: STORE_UNAVAILABLE."""
    for user, digest in folders:
        try:
            contents = blobs.folders.contents(user, digest)
        except ManifestError:
            continue  # no job was ever taken with it
        except GpufleetError as error:
            if error.reason is not Reason.FILE_NOT_UPLOADED:
                raise
            continue  # somebody removed it: its jobs fail with FILES_GONE
        yield from ((user, each) for each in contents.chunks)
