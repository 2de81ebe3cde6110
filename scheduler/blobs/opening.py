"""Makes the store of uploaded files of the settings, and says which of them jobs need."""

from collections.abc import Callable
from pathlib import Path

from gpufleet.config.scheduler_settings import FileSettings

from ..state.durable import Durable
from .store import BlobLimits, BlobStore, Key

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
    )


def needed_by(durable: Durable) -> frozenset[Key]:
    """The files of all jobs that have not ended."""
    with_files = (job for job in durable.jobs.values() if job.spec.files)
    return frozenset((job.user, each.digest) for job in with_files for each in job.spec.files)
