"""Blobs: whole ones in their place (backends/), and FOLDER/USER/DIGEST.part in the data folder for what is not whole.

A part is appended to in order, and goes to its place when it is whole, synced and has its digest; so a crash leaves a
part, which the next upload goes on with. What is wrong in it shows in its digest, and it is dropped. Files that came
together are synced together, as `receiving.py` does, and their folder once for all of them.

What is in a place of our own is known from the start. Of one that is shared, or far away, `look_around` learns it
behind the start; until then a file is asked for by its name, and nothing is dropped for its age.
"""

import hashlib
import os
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from gpufleet.errors import GpufleetError, Reason
from gpufleet.host.whole_file import sync_path

from ..state.ids import UserName
from .backends.backend import Backend, Reader
from .backends.folder import FolderBackend
from .folders import Folders
from .on_disk import PART, FoundBlob, Key, digest_of, explained, found_in, write_at
from .place import Place
from .results import Results
from .upload_places import UploadPlaces

P = ParamSpec("P")
T = TypeVar("T")

COUNTED_BYTES_MIN = 4_096
"""A file counts as so many bytes at least, as it does on a disk."""
SYNCS_AT_ONCE = 16
"""Files of a group that are synced at the same time: a disk writes them together."""
USED_GRAIN_SECONDS = 60.0
"""When a file was last needed is written down no finer: after a restart it may seem to be so much longer ago."""
LOOKUPS_AT_ONCE = 16
"""Files that are asked for by their names at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobLimits:
    """The limits that the settings ask for, in bytes; `free_bytes` is what must stay free on the disk."""

    file_bytes: int
    user_bytes: int
    user_files: int
    free_bytes: int
    folder_bytes: int = 2**50


@dataclass(slots=True)
class _Blob:
    """What is known of a file; `sha` is that of its bytes so far, None after a restart.

    `is_named`: it has the name of a whole one. `is_whole` it is once a crash cannot take that from it. `noted_at` is
    the `used_at` that its file tells.
    """

    size: int
    used_at: float
    is_named: bool
    is_whole: bool
    noted_at: float
    sha: Any = None
    asked_at: float = 0.0
    """When a person asked for it last, who may be about to submit a job that names it."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When the state was looked at, and which files were held then: see `holding`."""

    at: float
    held: frozenset[Key]


@dataclass(slots=True)
class _Used:
    """What a user has stored, as it is counted."""

    bytes: int = 0
    files: int = 0


@dataclass(slots=True)
class _Turn:
    """Who writes a file, and how many do or wait to."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    users: int = 0


class BlobStore:
    """Every method may be called from any thread. Errors of the disk: STORE_UNAVAILABLE."""

    def __init__(
        self,
        folder: Path,
        limits: Callable[[], BlobLimits],
        wall_clock: Callable[[], float] = time.time,
        backend: Backend | None = None,
    ) -> None:
        """`backend` is where whole files go; without one that is the folder itself. Errors: STORE_UNAVAILABLE."""
        self._folder = folder
        self._limits = limits
        self._now = wall_clock
        self._lock = threading.RLock()
        self._blobs: dict[Key, _Blob] = {}
        self._used: dict[UserName, _Used] = {}
        self._turns: dict[Key, _Turn] = {}
        self._held: Counter[Key] = Counter()
        self._unmoved: set[Key] = set()
        self.place = Place(backend or FolderBackend(folder, is_own=True))
        self._began = wall_clock()
        self._is_listed = not self.place.is_remote
        self.folders = Folders(self.open)
        self.results = Results(self.place, wall_clock)
        self.upload_places = UploadPlaces()
        """For who receives files on the event loop."""
        with explained("opened", folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for found in found_in(folder):
                if self.place.is_remote and found.is_whole:
                    self._unmoved.add(found.key)  # of a time when files were stored here
                known = self._blobs.get(found.key)
                if known is None or not known.is_whole:
                    self._note(found.key, _blob_of(found))

    async def on_thread(self, act: Callable[P, T], *args: P.args, **words: P.kwargs) -> T:
        """Do it elsewhere than on the event loop; what may wait for another machine keeps nobody else waiting."""
        return await self.place.on_thread(act, *args, **words)

    def close(self) -> None:
        """Give up what is under way."""
        self.place.close()

    @property
    def file_bytes_max(self) -> int:
        """How many bytes a file may have."""
        return self._limits().file_bytes

    @property
    def folder_bytes_max(self) -> int:
        """How many bytes the files of a folder may have together."""
        return self._limits().folder_bytes

    def size_of(self, user: UserName, digest: str) -> int | None:
        """The size of a whole file in bytes; None where the user has none."""
        blob = self._blobs.get((user, digest))
        return blob.size if blob is not None and blob.is_whole else None

    def stored_bytes(self, user: UserName, digest: str) -> int:
        """How many of its first bytes are stored."""
        blob = self._blobs.get((user, digest))
        return 0 if blob is None else blob.size

    @contextmanager
    def holding(self, keys: Iterable[Key]) -> Iterator[None]:
        """Let nobody drop these as superseded, until a record says who needs them."""
        held = Counter(keys)
        with self._lock:
            self._held += held
        try:
            yield
        finally:
            with self._lock:
                self._held -= held

    def moment(self) -> Moment:
        """Return what `drop_superseded` needs: this moment, before the state says what jobs need."""
        with self._lock:
            return Moment(self._now(), frozenset(self._held))

    def drop_superseded(self, keys: Iterable[Key], moment: Moment, unused_s: float) -> int:
        """Drop what no job needed at a moment, unless it is held, or somebody asked for it lately; how many files."""
        dropped = 0
        for key in keys:
            with self._writer(*key):
                blob = self._blobs.get(key)
                is_free = key not in moment.held and key not in self._held
                if blob is not None and is_free and blob.used_at < moment.at and blob.asked_at < moment.at - unused_s:
                    self._drop(key)
                    dropped += 1
        return dropped

    def keep(self, wanted: Iterable[Key], *, is_asked: bool = True) -> None:
        """Somebody needs these now: they are dropped no sooner than `unused` after this.

        With `is_asked` it is a person, and not a job that has them.
        """
        wanted = list(wanted)
        if not self._is_listed:
            self._look_up(wanted)
        for user, digest in wanted:
            with self._lock:
                blob = self._blobs.get((user, digest))
                if blob is None:
                    continue
                blob.used_at = now = self._now()
                blob.asked_at = now if is_asked else blob.asked_at
                if abs(now - blob.noted_at) < USED_GRAIN_SECONDS:
                    continue
            if blob.is_named:
                if (user, digest) not in self._unmoved and not self.place.touch((user, digest), now):
                    self._forget((user, digest), blob)
                    continue
            else:
                path = self._path(user, digest)
                with explained("kept", path), suppress(FileNotFoundError):  # it has just got its name
                    os.utime(path, (now, now))
            blob.noted_at = now

    def _look_up(self, wanted: Iterable[Key]) -> None:
        """Learn which of these are in their place, by their names."""
        unknown = [
            key for key in dict.fromkeys(wanted) if (known := self._blobs.get(key)) is None or not known.is_named
        ]
        if not unknown:
            return
        with ThreadPoolExecutor(min(LOOKUPS_AT_ONCE, len(unknown))) as pool:
            for found in pool.map(self.place.find, unknown):
                if found is not None:
                    self._learn(found)

    def look_around(self) -> int:
        """Learn all that is in a place that others store in, too, or that is far away; how many files are there.

        Errors: STORE_UNAVAILABLE.
        """
        self._move_in()
        with self._lock:
            before = {key for key, blob in self._blobs.items() if blob.is_whole}
        count = 0
        for found in self.place.files():
            if found.is_whole:
                before.discard(found.key)
                self._learn(found)
                count += 1
        for key in before:  # somebody else has dropped them
            with self._lock:
                if (blob := self._blobs.get(key)) is not None and blob.is_whole:
                    self._note(key, None)
        self._is_listed = True
        return count

    def _move_in(self) -> None:
        """Bring what was stored in the data folder, before there was another place, to where it belongs now."""
        own = FolderBackend(self._folder, is_own=True)
        for note in list(own.notes()):
            if (found := own.read_note(note.name)) is not None:
                self.place.write_note(note.name, found[0])
                own.remove_note(note.name)
        for key in list(self._unmoved):
            with self._writer(*key):
                path = self._folder / key[0] / key[1]
                if path.exists():
                    self.place.put(key, path)
                    self.place.settle(key)
                self._unmoved.discard(key)

    def _learn(self, found: FoundBlob) -> None:
        with self._lock:
            known = self._blobs.get(found.key)
            if known is None or not known.is_whole:
                used_at = max(found.used_at, self._began)  # what was needed before that is not known of every place
                self._note(found.key, _blob_of(found, used_at))

    def _forget(self, key: Key, blob: _Blob) -> None:
        with self._lock:
            if self._blobs.get(key) is blob:
                self._note(key, None)

    def check_room(self, user: UserName, digest: str, size: int) -> None:
        """Refuse a file that is not to be stored. Errors: FILE_TOO_LARGE, QUOTA_EXCEEDED, STORE_UNAVAILABLE."""
        limits = self._limits()
        if size > limits.file_bytes:
            raise GpufleetError(
                Reason.FILE_TOO_LARGE, f"the file has {size:,} bytes; at most {limits.file_bytes:,} are taken"
            )
        self._check_quota(user, digest, size, limits)
        self._check_disk(size - self.stored_bytes(user, digest), limits)

    def write(self, user: UserName, digest: str, offset: int, data: bytes) -> int:
        """Add a piece; how many bytes are stored then. What is stored already is passed over.

        Errors: OFFSET_OUT_OF_RANGE for a piece behind a hole, and those of `check_room`.
        """
        with self._writer(user, digest):
            blob = self._blobs.get((user, digest))
            stored = 0 if blob is None else blob.size
            if offset > stored:
                raise GpufleetError(
                    Reason.OFFSET_OUT_OF_RANGE,
                    f"the piece begins at byte {offset:,}, and {stored:,} are stored",
                    next_step="Send the piece before it first; FindMissingBlobs tells how many bytes are stored.",
                    metadata={"digest": digest},
                )
            fresh = memoryview(data)[stored - offset :]
            if blob is not None and (blob.is_named or not fresh):
                return stored
            limits = self._limits()
            self._check_quota(user, digest, stored + len(fresh), limits)
            self._check_disk(len(fresh), limits)
            path = self._path(user, digest)
            with explained("written", path):
                path.parent.mkdir(mode=0o700, exist_ok=True)
                write_at(path, stored, fresh)
            with self._lock:
                sha = hashlib.sha256() if blob is None else blob.sha
                now = self._now()
                blob = _Blob(stored + len(fresh), now, is_named=False, is_whole=False, noted_at=now, sha=sha)
                self._note((user, digest), blob)
            if sha is not None:
                sha.update(fresh)
            return blob.size

    def finish(self, user: UserName, digest: str, size: int) -> int:
        """`finish_all` of one file; how many bytes of it are stored."""
        return self.finish_all(user, {digest: size})

    def finish_all(self, user: UserName, sizes: Mapping[str, int]) -> int:
        """Make durable what came of these files, and files of those that are whole; how many bytes of them are stored.

        `sizes` says how many bytes each is to have, by its digest. Errors: DIGEST_MISMATCH names one that has another
        digest, and is dropped; all others are stored then, too.
        """
        away: list[GpufleetError] = []
        with ThreadPoolExecutor(max(1, min(SYNCS_AT_ONCE, len(sizes)))) as pool:
            named_all = pool.map(lambda each: self._name(user, each[0], each[1], away), sizes.items())
            wrong = [each for each in named_all if each is not None]
        found = ((each, self._blobs.get((user, each))) for each in sizes)
        named = next((each for each, blob in found if blob is not None and blob.is_named), None)
        self._sync_folder(user, named)
        with self._lock:
            blobs = [blob for each in sizes if (blob := self._blobs.get((user, each))) is not None]
            for blob in blobs:
                blob.is_whole = blob.is_named
        if wrong:
            raise wrong[0]
        return sum(blob.size for blob in blobs)

    def _name(self, user: UserName, digest: str, size: int, away: list[GpufleetError]) -> GpufleetError | None:
        """Sync what came of a file, and put it into its place if it is whole; drops it and says why where it is wrong.

        `away`: why the place took none of the files before this one; then it is not asked again.
        """
        with self._writer(user, digest):
            blob = self._blobs.get((user, digest))
            if blob is None or blob.is_named:
                return None  # another upload of it has just failed, or has finished it
            path = self._path(user, digest)
            with explained("synced", path):
                sync_path(path)
                if blob.size < size:
                    return None
                is_right = blob.size == size and digest_of(path, blob.sha) == digest
            if not is_right:
                self._drop((user, digest))
                why = f"{blob.size:,} bytes came, and they are not {digest}"
                return GpufleetError(Reason.DIGEST_MISMATCH, why, metadata={"digest": digest})
            if away:
                return away[0]
            try:
                self.place.put((user, digest), path)
            except GpufleetError as problem:  # those that were put are to be whole all the same
                away.append(problem)
                return problem
            with self._lock:
                blob.is_named, blob.sha = True, None
            return None

    def _sync_folder(self, user: UserName, named: str | None) -> None:
        """Make durable the names of a user's parts, and of files of theirs, one of which is `named`."""
        folder = self._folder / user
        if named is not None:
            self.place.settle((user, named))
        if named is None or self.place.is_remote:
            with explained("stored", folder):
                if folder.exists():  # else nothing of theirs was ever written
                    sync_path(folder)

    def open(self, user: UserName, digest: str) -> Reader | None:
        """Read a whole file; None where it is not stored."""
        if (user, digest) in self._unmoved and (
            reader := FolderBackend(self._folder, is_own=True).open((user, digest))
        ):
            return reader
        reader = self.place.open((user, digest))
        if reader is None and (blob := self._blobs.get((user, digest))) is not None and blob.is_whole:
            self._forget((user, digest), blob)
        return reader

    def measure(self, user: UserName, data: bytes) -> tuple[float, float]:
        """How long storing a file of these bytes takes, and reading it, in seconds; it does not stay.

        Errors: those of `check_room`.
        """
        digest = hashlib.sha256(data).hexdigest()
        self.check_room(user, digest, len(data))
        began = time.monotonic()
        self.write(user, digest, 0, data)
        try:
            self.finish(user, digest, len(data))
            written = time.monotonic()
            reader = self.open(user, digest)
            if reader is None or reader.read(0, len(data)) != data:
                raise GpufleetError(Reason.STORE_UNAVAILABLE, "what was stored just now is not read back as it was")
            reader.close()
            return written - began, time.monotonic() - written
        finally:
            with self._writer(user, digest):
                self._drop((user, digest))

    def prune(self, unused_s: float, needed: Collection[Key]) -> int:
        """Drop what no job has needed for this long; how many files. What is needed counts as used now."""
        if not self._is_listed:
            return 0
        self.keep((key for key in needed if key in self._blobs), is_asked=False)
        before = self._now() - unused_s
        dropped = 0
        for key in [key for key, blob in list(self._blobs.items()) if blob.used_at < before]:
            with self._writer(*key):
                blob = self._blobs.get(key)
                if blob is not None and blob.used_at < before and key not in needed:
                    self._drop(key)
                    dropped += 1
        return dropped

    @contextmanager
    def _writer(self, user: UserName, digest: str) -> Iterator[None]:
        """One at a time writes a file; two uploads of the same one take turns, piece by piece."""
        key = (user, digest)
        with self._lock:
            turn = self._turns.setdefault(key, _Turn())
            turn.users += 1
        try:
            with turn.lock:
                yield
        finally:
            with self._lock:
                turn.users -= 1
                if not turn.users:
                    del self._turns[key]

    def _note(self, key: Key, blob: _Blob | None) -> None:
        """Know a file, or know no more of it, and count it."""
        used = self._used.setdefault(key[0], _Used())
        before = self._blobs.pop(key, None)
        if before is not None:
            used.bytes, used.files = used.bytes - max(before.size, COUNTED_BYTES_MIN), used.files - 1
        if blob is not None:
            self._blobs[key] = blob
            used.bytes, used.files = used.bytes + max(blob.size, COUNTED_BYTES_MIN), used.files + 1

    def _drop(self, key: Key) -> None:
        with self._lock:
            known = self._blobs.get(key)
            self._note(key, None)
        path = self._path(*key)
        with explained("dropped", path):
            path.unlink(missing_ok=True)
        if known is not None and known.is_named:
            self.place.remove(key)

    def _check_quota(self, user: UserName, digest: str, size: int, limits: BlobLimits) -> None:
        with self._lock:
            all_, own = self._used.get(user, _Used()), self._blobs.get((user, digest))
            files, used = all_.files, all_.bytes
        if own is not None:
            files, used = files - 1, used - max(own.size, COUNTED_BYTES_MIN)
        if files >= limits.user_files:
            raise _over(f"{files:,} files of {user} are stored, and {limits.user_files:,} are the most")
        if used + max(size, COUNTED_BYTES_MIN) > limits.user_bytes:
            what = f"{user} has {used:,} bytes of files stored; with {size:,} more"
            raise _over(f"{what} they would be over {limits.user_bytes:,}")

    def _check_disk(self, size: int, limits: BlobLimits) -> None:
        with explained("measured", self._folder):
            free = shutil.disk_usage(self._folder).free
        if size > 0 and free - size < limits.free_bytes:
            raise GpufleetError(
                Reason.STORE_UNAVAILABLE,
                f"the disk of the scheduler's data folder has {free:,} bytes free, of which {limits.free_bytes:,} "
                "are kept for what it stores itself",
                next_step="Free the disk; then try again. The upload goes on where it stands.",
            )

    def _path(self, user: UserName, digest: str) -> Path:
        return self._folder / user / (digest + PART)


def _over(why: str) -> GpufleetError:
    return GpufleetError(
        Reason.QUOTA_EXCEEDED,
        why,
        next_step="Files that no job needs are dropped after [files] keep_unused; an admin can raise the limits there.",
    )


def _blob_of(found: FoundBlob, used_at: float | None = None) -> _Blob:
    is_whole, at = found.is_whole, found.used_at
    used_at = at if used_at is None else used_at
    # Who asked for it before this start is not known: somebody may have.
    return _Blob(found.size, used_at, is_named=is_whole, is_whole=is_whole, noted_at=at, asked_at=used_at)
