"""Segments as files in the data folder: FOLDER/THOUSANDS/JOB/ATTEMPT.RANK.LINEAGE.STREAM, to be found and to `cat`.

That file is the head. The lineage, which files of before there were any lack, keeps apart attempts that a store which
was put back gave the same numbers. Segments of the tail have the offset of their first byte behind an @, as in
1.0.LINEAGE.stdout@268435456. Beside it, 1.0.LINEAGE.stdout.times holds the stream's marks of time. They are written
after the bytes and are not synced: a crash may lose the newest ones. So are the checksums of each
segment, in 1.0.LINEAGE.stdout.sums (file_sums.py).
"""

import errno
import os
import re
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..ports import Mark
from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from ..state.units import Instant
from . import file_sums
from .errors import OutputStoreUnavailable, SegmentsGone, UnsyncedBytesLost
from .layout import Segment
from .segment_store import SegmentCheck, SegmentKey, StoredJob, StreamKey
from .sums import GrowingSums
from .times import ENTRY_BYTES, packed, unpacked

JOBS_PER_FOLDER = 1000
OPEN_FILES_MAX = 256
"""Files that stay open between syncs; those with unsynced bytes stay open in any case."""

_NAME = re.compile(
    r"(?P<attempt>\d+)\.(?P<rank>\d+)\.(?:(?P<lineage>[0-9a-f]{16})\.)?(?P<stream>stdout|stderr)(?:@(?P<start>\d+))?"
)


class FileShelf:
    """The shelf on a local file system. Errors of opening: OutputStoreUnavailable."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[Path, int] = OrderedDict()
        self._sums: dict[Path, GrowingSums] = {}
        # Folders with entries that are not known to be durable; a file that cannot be found is not stored.
        self._unsynced_folders: dict[Path, None] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise OutputStoreUnavailable(f"{folder}: {os.strerror(errno.ENOTDIR)}") from error
        except OSError as error:
            raise _unavailable(folder, error) from error

    def find(self, job: JobId) -> Iterator[tuple[StreamKey, Segment]]:
        folder = self._job_folder(job)
        found: list[tuple[str, int]] = []
        with _explained(folder), suppress(FileNotFoundError), os.scandir(folder) as entries:
            found = [(entry.name, entry.stat().st_size) for entry in entries]
        for name, size in found:
            if matched := _NAME.fullmatch(name):
                key = RankKey(job, int(matched["attempt"]), int(matched["rank"]), matched["lineage"] or "")
                segment = Segment(int(matched["start"] or 0), is_head=matched["start"] is None, size=size)
                yield (key, OutputStream[matched["stream"].upper()]), segment

    def write(self, segment: SegmentKey, position: int, data: memoryview) -> None:
        path = self._path(segment)
        descriptor = None
        try:
            descriptor = self._descriptor(path)
            if (sums := self._sums.get(path)) is None or sums.end != position:
                sums = self._sums[path] = file_sums.resumed(path, descriptor, position)
            written = 0
            while written < len(data):
                written += os.pwrite(descriptor, data[written:], position + written)
        except OSError as error:
            if descriptor is not None:
                with suppress(OSError):
                    os.ftruncate(descriptor, position)
            raise _unavailable(path, error) from error
        sums.add(data)

    def read(self, segment: SegmentKey, position: int, limit: int) -> bytes:
        path = self._path(segment)
        with _explained(path), suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                return os.pread(descriptor, limit, position)
            finally:
                os.close(descriptor)
        return b""

    def sync(self, segments: Sequence[SegmentKey], marks: Mapping[StreamKey, Sequence[Mark]]) -> None:
        path, paths = self._folder, [self._path(segment) for segment in segments]
        try:
            for path in paths:
                os.fdatasync(self._descriptor(path))
            if gone := [number for number, path in enumerate(paths) if not os.access(path, os.F_OK)]:
                raise self._forgotten([segments[number] for number in gone])
            for path in self._unsynced_folders:
                _sync_folder(path)
        except OSError as error:
            # The kernel reports a failed write-back once and then believes the pages to be clean.
            raise UnsyncedBytesLost(f"{path}: {error.strerror}") from error
        self._unsynced_folders.clear()
        for path in paths:
            self._store_sums(path)
        for stream, added in marks.items():
            _add_marks(self._marks_path(stream), added)
        while len(self._open) > OPEN_FILES_MAX:
            path, descriptor = self._open.popitem(last=False)
            os.close(descriptor)
            self._sums.pop(path, None)

    def _store_sums(self, path: Path) -> None:
        with suppress(OSError):
            if (sums := self._sums.get(path)) is None:  # after a restart
                descriptor = self._descriptor(path)
                sums = self._sums[path] = file_sums.resumed(path, descriptor, os.fstat(descriptor).st_size)
            file_sums.store(path, sums)

    def _forgotten(self, gone: Sequence[SegmentKey]) -> SegmentsGone:
        """Let go of files that somebody removed: nobody would find again what goes on in them."""
        for segment in gone:
            self._let_go(self._path(segment))
        return SegmentsGone(gone, f"{self._path(gone[0])}: the file was removed; what it held is lost")

    def _let_go(self, path: Path) -> None:
        self._sums.pop(path, None)
        if (descriptor := self._open.pop(path, None)) is not None:
            os.close(descriptor)

    def marks(self, stream: StreamKey) -> list[Mark]:
        path = self._marks_path(stream)
        with _explained(path), suppress(FileNotFoundError):
            return unpacked(path.read_bytes())
        return []

    def replace_marks(self, stream: StreamKey, marks: Sequence[Mark]) -> None:
        path = self._marks_path(stream)
        unfinished = path.with_name(f"{path.name}.new")
        with _explained(path):
            with open(unfinished, "wb", opener=_private) as file:
                file.write(packed(marks))
            unfinished.replace(path)

    def cut(self, segment: SegmentKey, size: int) -> None:
        path = self._path(segment)
        if (sums := self._sums.get(path)) is not None and not sums.go_back(size):
            del self._sums[path]
        with suppress(OSError):
            os.ftruncate(self._descriptor(path), size)

    def drop(self, segment: SegmentKey) -> None:
        path = self._path(segment)
        self._let_go(path)
        with _explained(path):
            for each in (path, Path(file_sums.sums_path(path))):
                each.unlink(missing_ok=True)

    def delete(self, job: JobId) -> None:
        folder = self._job_folder(job)
        for path in [path for path in self._open if path.parent == folder]:
            self._let_go(path)
        self._unsynced_folders.pop(folder, None)
        with _explained(folder), suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def examine(self, job: JobId) -> Iterator[SegmentCheck]:
        for (key, stream), segment in list(self.find(job)):
            path = self._path(SegmentKey(key, stream, segment.start, segment.is_head))
            check = SegmentCheck((key, stream))
            with _explained(path):
                file_sums.examine(path, f"output of {key}, {stream.name.lower()}", check)
            yield check

    def inventory(self) -> list[StoredJob]:
        found = []
        with _explained(self._folder):
            for folder in self._folder.glob("*/*"):
                if folder.name.isdecimal():
                    with suppress(FileNotFoundError):  # deleted meanwhile
                        found.append(_stored_job(folder))
        return found

    def close(self) -> None:
        self._sums.clear()
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, segment: SegmentKey) -> Path:
        path = self._stream_path(segment.key, segment.stream)
        return path if segment.is_head else path.with_name(f"{path.name}@{segment.start}")

    def _marks_path(self, stream: StreamKey) -> Path:
        path = self._stream_path(*stream)
        return path.with_name(f"{path.name}.times")

    def _stream_path(self, key: RankKey, stream: OutputStream) -> Path:
        lineage = f".{key.lineage}" if key.lineage else ""
        return self._job_folder(key.job) / f"{key.attempt}.{key.rank}{lineage}.{stream.name.lower()}"

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


def _add_marks(path: Path, marks: Sequence[Mark]) -> None:
    """At the end, over half an entry that a crash or a full disk left there."""
    with suppress(OSError):  # nothing but exactness is lost
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            os.pwrite(descriptor, packed(marks), size - size % ENTRY_BYTES)
        finally:
            os.close(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _stored_job(folder: Path) -> StoredJob:
    newest, size = 0, 0
    with os.scandir(folder) as entries:
        for entry in entries:
            status = entry.stat()
            newest = max(newest, status.st_mtime_ns // 1000)
            size += status.st_size if _NAME.fullmatch(entry.name) else 0
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


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unavailable(path, error) from error


def _unavailable(path: Path, error: OSError) -> OutputStoreUnavailable:
    return OutputStoreUnavailable(f"{path}: {error.strerror}")
