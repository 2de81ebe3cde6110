"""Segments as files in the data folder: FOLDER/THOUSANDS/JOB/ATTEMPT.RANK.STREAM, a name one can guess and `cat`.

That file is the head. Segments of the tail have the offset of their first byte behind an @, as in 1.0.stdout@268435456.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ..state.ids import JobId, RankKey
from ..state.jobs import OutputStream
from ..state.units import Instant
from .errors import OutputStoreUnavailable, UnsyncedBytesLost
from .layout import Segment
from .retention import StoredJob
from .segmented import SegmentKey, StreamKey

JOBS_PER_FOLDER = 1000
OPEN_FILES_MAX = 256
"""Files that stay open between syncs; those with unsynced bytes stay open in any case."""

_NAME = re.compile(r"(?P<attempt>\d+)\.(?P<rank>\d+)\.(?P<stream>stdout|stderr)(?:@(?P<start>\d+))?")


class FileShelf:
    """The shelf on a local file system. Errors of opening: OutputStoreUnavailable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[Path, int] = OrderedDict()
        # Folders with entries that are not known to be durable; a file that cannot be found is not stored.
        self._unsynced_folders: dict[Path, None] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unavailable(folder, error) from error

    def find(self, job: JobId) -> Iterator[tuple[StreamKey, Segment]]:
        folder = self._job_folder(job)
        try:
            with os.scandir(folder) as entries:
                found = [(entry.name, entry.stat().st_size) for entry in entries]
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(folder, error) from error
        for name, size in found:
            if matched := _NAME.fullmatch(name):
                key = RankKey(job, int(matched["attempt"]), int(matched["rank"]))
                segment = Segment(int(matched["start"] or 0), is_head=matched["start"] is None, size=size)
                yield (key, OutputStream[matched["stream"].upper()]), segment

    def write(self, segment: SegmentKey, position: int, data: memoryview) -> None:
        path = self._path(segment)
        descriptor = None
        try:
            descriptor = self._descriptor(path)
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], position + written)
        except OSError as error:
            if descriptor is not None:
                with suppress(OSError):
                    os.ftruncate(descriptor, position)
            raise _unavailable(path, error) from error

    def read(self, segment: SegmentKey, position: int, limit: int) -> bytes:
        path = self._path(segment)
        try:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                return os.pread(descriptor, limit, position)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise _unavailable(path, error) from error

    def sync(self, segments: Sequence[SegmentKey]) -> None:
        path = self._folder
        try:
            for segment in segments:
                path = self._path(segment)
                os.fdatasync(self._descriptor(path))
            for path in self._unsynced_folders:
                _sync_folder(path)
        except OSError as error:
            # The kernel reports a failed write-back once and then believes the pages to be clean.
            raise UnsyncedBytesLost(f"{path}: {error.strerror}") from error
        self._unsynced_folders.clear()
        while len(self._open) > OPEN_FILES_MAX:
            os.close(self._open.popitem(last=False)[1])

    def cut(self, segment: SegmentKey, size: int) -> None:
        with suppress(OSError):
            os.ftruncate(self._descriptor(self._path(segment)), size)

    def drop(self, segment: SegmentKey) -> None:
        path = self._path(segment)
        if (descriptor := self._open.pop(path, None)) is not None:
            os.close(descriptor)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _unavailable(path, error) from error

    def delete(self, job: JobId) -> None:
        folder = self._job_folder(job)
        for path in [path for path in self._open if path.parent == folder]:
            os.close(self._open.pop(path))
        self._unsynced_folders.pop(folder, None)
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            return
        except OSError as error:
            raise _unavailable(folder, error) from error

    def inventory(self) -> list[StoredJob]:
        found = []
        try:
            for folder in self._folder.glob("*/*"):
                if folder.name.isdecimal():
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found.append(_stored_job(folder))
        except OSError as error:
            raise _unavailable(self._folder, error) from error
        return found

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, segment: SegmentKey) -> Path:
        key = segment.key
        name = f"{key.attempt}.{key.rank}.{segment.stream.name.lower()}"
        return self._job_folder(key.job) / (name if segment.is_head else f"{name}@{segment.start}")

    def _job_folder(self, job: JobId) -> Path:
        return self._folder / f"{job // JOBS_PER_FOLDER:06d}" / str(job)

    def _descriptor(self, path: Path) -> int:
        descriptor = self._open.get(path)
        if descriptor is None:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = self._open[path] = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            # Also for a file that was there: who made it may have died before its name was durable.
            self._unsynced_folders |= dict.fromkeys((path.parent, path.parent.parent, self._folder))
        self._open.move_to_end(path)
        return descriptor


def _stored_job(folder: Path) -> StoredJob:
    newest, size = 0, 0
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            newest, size = max(newest, status.st_mtime_ns // 1000), size + status.st_size
    return StoredJob(JobId(int(folder.name)), size, Instant(newest))


def _sync_folder(folder: Path) -> None:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:  # its job was deleted
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unavailable(path: Path, error: OSError) -> OutputStoreUnavailable:
    return OutputStoreUnavailable(f"{path}: {error.strerror}")
