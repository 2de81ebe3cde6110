"""Makes the store of uploaded files of the settings, and says which of them jobs need."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from gpufleet.config.file_store import file_store_place
from gpufleet.config.scheduler_settings import FileSettings
from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import ManifestError
from gpufleet.telemetry.logs import fields

from ..state.durable import Durable
from ..state.indexes.equal_jobs import EqualJobs
from ..state.jobs import Job, folders_of
from ..state.specs import JobInput
from .backends.admission import admit
from .backends.backend import Backend
from .backends.folder import FolderBackend
from .backends.object_store import ObjectStoreBackend
from .on_disk import Key
from .store import BlobLimits, BlobStore
from .upkeep import Upkeep

log = logging.getLogger(__name__)

FOLDER = "blobs"
"""Where in the data folder files are, also with PostgreSQL; parts of them, where [files] store names another place."""


def open_blobs(settings: Callable[[], FileSettings], data: Path, fleet: str) -> tuple[BlobStore, Upkeep]:
    """The store of the settings, and what looks after it; `fleet` is the id of the database whose jobs they are for.

    Where the place of files is away, it is let in once it is back. Errors: STORE_UNAVAILABLE for the data folder,
    CONFIG_INVALID where the settings cannot be right, FILE_NOT_FOUND and TOKEN_FILE_EXPOSED for a file of keys.
    """
    folder = data / FOLDER
    backend = backend_of(settings(), folder)
    blobs = BlobStore(folder, lambda: limits_of(settings()), backend=backend)
    upkeep = Upkeep(blobs, None if backend is None else lambda: admit(backend, fleet, folder))
    try:
        upkeep.admit()
    except GpufleetError as problem:
        if problem.reason is not Reason.STORE_UNAVAILABLE:
            blobs.close()
            raise
        log.warning("stored files cannot be reached; jobs that need some wait", extra=fields(why=problem.message))
    return blobs, upkeep


def backend_of(files: FileSettings, folder: Path) -> Backend | None:
    """Where whole files go; None for the data folder. Errors: as `open_blobs`."""
    place = file_store_place(files.store)
    if place is None:
        return None
    if place.folder is None:
        return ObjectStoreBackend(place, files)
    return None if place.folder.resolve() == folder.resolve() else FolderBackend(place.folder, is_own=False)


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
    files = frozenset((job.user, each.digest) for job in _each_kind(durable) for each in job.spec.files)
    return files | folders_needed_by(durable)


def folders_needed_by(durable: Durable) -> frozenset[Key]:
    """The manifests of the folders of all jobs that have not ended, and of what their attempts keep."""
    return frozenset((job.user, folder.digest) for job in _each_kind(durable) for folder in folders_of(job))


def _each_kind(durable: Durable) -> Iterator[Job]:
    """Every job that has not ended; of those that are alike the first, which needs what all of them do."""
    return (each.first if isinstance(each, EqualJobs) else each for each in durable.jobs.entities())


def inputs_needed_by(durable: Durable) -> tuple[JobInput, ...]:
    """What jobs that have not ended are given of what other jobs left."""
    return tuple(dict.fromkeys(each for job in durable.jobs.values() for each in job.spec.inputs))


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
