"""The manifests of folders that jobs name: which chunks they need. What was read of one lately is kept."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import accumulate

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import MANIFEST_BYTES_MAX, Entry, Folder, ManifestError, folder_of, folders_above

from ..state.ids import UserName
from ..state.specs import InputFile
from .backends.backend import Reader

OF_NOTHING = hashlib.sha256(b"").hexdigest()
"""The manifest of an empty folder has no bytes, and is stored nowhere."""
CHUNKS_KEPT_MAX = 200_000
"""Of all manifests that are kept together."""
INDEXED_KEPT_MAX = 50_000
"""Entries and chunks of all folders whose files are asked for one by one."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a manifest asks for: the size of each chunk by its digest, how many entries, how many bytes in all."""

    chunks: Mapping[str, int]
    entry_count: int
    content_bytes: int


@dataclass(frozen=True, slots=True)
class IndexedFolder:
    """A folder, where in its contents each file begins by its path, and where each chunk does."""

    folder: Folder
    entries: Mapping[str, tuple[Entry, int]]
    chunk_begins: tuple[int, ...]

    @property
    def weight(self) -> int:
        """What counts towards INDEXED_KEPT_MAX."""
        return 1 + len(self.entries) + len(self.chunk_begins)


def indexed(folder: Folder) -> IndexedFolder:
    """The index of a folder."""
    sizes = (each.size_bytes for each in folder.entries)
    entries = {each.path: (each, begin) for each, begin in zip(folder.entries, _begins(sizes), strict=True)}
    return IndexedFolder(folder, entries, _begins(each.size_bytes for each in folder.chunks))


def _begins(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes, initial=0))[:-1]


class Folders:
    """Reads manifests with `open_blob`. Every method may be called from any thread."""

    def __init__(self, open_blob: Callable[[UserName, str], Reader | None]) -> None:
        self._open = open_blob
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[UserName, str], Contents] = OrderedDict()
        self._chunks = 0
        self._indexed: OrderedDict[tuple[UserName, str], IndexedFolder] = OrderedDict()
        self._indexed_weight = 0

    def contents(self, user: UserName, digest: str) -> Contents:
        """What a user's manifest asks for. Raises ManifestError, and FILE_NOT_UPLOADED where it is not stored."""
        with self._lock:
            if (known := self._known.get((user, digest))) is not None:
                self._known.move_to_end((user, digest))
                return known
        folder = self.read(user, digest)
        sizes = {each.digest: each.size_bytes for each in folder.chunks}
        if any(sizes[each.digest] != each.size_bytes for each in folder.chunks):
            raise ManifestError("it gives a chunk two sizes")
        found = Contents(sizes, len(folder.entries), folder.content_bytes)
        self._keep((user, digest), found)
        return found

    def clash_with(self, user: UserName, digest: str, files: Iterable[InputFile]) -> str | None:
        """The path of the first of these files that the folder leaves no room for. Raises as `contents`."""
        paths = {each.path for each in self.read(user, digest).entries}
        folders = folders_above(paths)
        for each in files:
            if each.path in paths or each.path in folders or folders_above([each.path]) & paths:
                return each.path
        return None

    def indexed(self, user: UserName, digest: str) -> IndexedFolder:
        """The same as of `read`, kept for who asks for one file after another. Raises as `contents`."""
        key = user, digest
        with self._lock:
            if (known := self._indexed.get(key)) is not None:
                self._indexed.move_to_end(key)
                return known
        found = indexed(self.read(user, digest))
        with self._lock:
            if key not in self._indexed and found.weight <= INDEXED_KEPT_MAX:
                self._indexed[key] = found
                self._indexed_weight += found.weight
            while self._indexed_weight > INDEXED_KEPT_MAX:
                _, dropped = self._indexed.popitem(last=False)
                self._indexed_weight -= dropped.weight
        return found

    def read(self, user: UserName, digest: str) -> Folder:
        """All that a manifest says. Raises as `contents`."""
        if digest == OF_NOTHING:
            return Folder((), ())
        reader = self._open(user, digest)
        if reader is None:
            raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"manifest {digest} is not stored for {user}")
        with closing(reader):
            return folder_of(reader.read(0, MANIFEST_BYTES_MAX + 1))

    def _keep(self, key: tuple[UserName, str], contents: Contents) -> None:
        with self._lock:
            if key in self._known or len(contents.chunks) > CHUNKS_KEPT_MAX:
                return
            self._known[key] = contents
            self._chunks += len(contents.chunks) + 1
            while self._chunks > CHUNKS_KEPT_MAX:
                _, dropped = self._known.popitem(last=False)
                self._chunks -= len(dropped.chunks) + 1
