"""The file of a backup: a tar of members that each fit into memory, the manifest last.

Any tar lists and unpacks it. It is read here header by header and not by `tarfile.TarFile`, which follows extensions of
the format (long names, sparse files, links) that a backup never has, and would believe the sizes in them.
"""

import hashlib
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from gpufleet.errors import GpufleetError, Reason

from .manifest import MANIFEST, MANIFEST_BYTES_MAX, Manifest, Member, read_manifest, written_manifest

BLOCK = tarfile.BLOCKSIZE
MEMBER_BYTES_MAX = 64 * 1024 * 1024
"""How large a member is at most, as it lies in the file."""
MEMBERS_MAX = 1_000_000
"""How many members a backup has at most."""

NAMES = re.compile(
    r"tables/[a-z_]{1,40}/\d{6}\.jsonl\.gz|keys/[a-z]{1,20}\.(?:key|token)|outputs/\d{6}\.jsonl\.gz"
    r"|bytes/\d{6}\.gz|manifest\.json"
)
"""What a member may be called; none is ever written to a path of that name."""


class Writer:
    """Writes members one behind the other, and remembers their sums for the manifest."""

    def __init__(self, file: BinaryIO, made_seconds: int) -> None:
        self._file = file
        self._made_seconds = made_seconds
        self.members: list[Member] = []
        self.bytes = 0

    def add(self, name: str, data: bytes, content_bytes: int) -> None:
        """Add a member; `content_bytes` is what it holds once it is unpacked. Errors: OSError."""
        assert NAMES.fullmatch(name), name
        if len(self.members) >= MEMBERS_MAX or len(data) > MEMBER_BYTES_MAX:
            raise _invalid(f"the store is larger than a backup can be: member {len(self.members) + 1}, {name}")
        self.members.append(Member(name, len(data), content_bytes, hashlib.sha256(data).hexdigest()))
        self._put(name, data)

    def finish(self, manifest: Manifest) -> None:
        """End the file: without a manifest it is no backup. Errors: OSError."""
        self._put(MANIFEST, written_manifest(manifest))
        self._write(bytes(2 * BLOCK))
        self._file.flush()

    def _put(self, name: str, data: bytes) -> None:
        header = tarfile.TarInfo(name)
        header.size, header.mode, header.mtime = len(data), 0o600, self._made_seconds
        self._write(header.tobuf(tarfile.USTAR_FORMAT))
        self._write(data + bytes(-len(data) % BLOCK))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the bytes of a member are."""

    offset: int
    size: int


class Archive:
    """A backup that is opened to be read. What is read of it has the sums that its manifest says, at every reading."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self.path = path
        self._places = self._index()
        place = self._places.pop(MANIFEST)
        self.manifest = read_manifest(self._bytes(place), path)
        self._compare()
        self._sums = {member.name: member for member in self.manifest.members}

    def check_sums(self) -> None:
        """Read every byte. Errors: BACKUP_INVALID, naming the first member that is not what was written."""
        for member in self.manifest.members:
            self.read(member.name)

    def read(self, name: str) -> bytes:
        """The bytes of a member. Errors: BACKUP_INVALID."""
        data = self._bytes(self._places[name])
        if hashlib.sha256(data).hexdigest() != self._sums[name].sha256:
            raise _invalid(f"{self.path}: {name} is not what was written: its SHA-256 is another")
        return data

    def _index(self) -> dict[str, _Place]:
        """Where each member is; the manifest is the last, and behind it there is nothing."""
        places: dict[str, _Place] = {}
        size = os.fstat(self._file.fileno()).st_size
        offset = 0
        while MANIFEST not in places:
            header = self._header(offset, size)
            name, begin = header.name, offset + BLOCK
            bound = MANIFEST_BYTES_MAX if name == MANIFEST else MEMBER_BYTES_MAX
            if header.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
                raise _invalid(f"{self.path}: {name!r} is no plain file, and a backup has no other")
            if NAMES.fullmatch(name) is None:
                raise _invalid(f"{self.path}: a backup has nothing by the name {name!r}")
            if name in places:
                raise _invalid(f"{self.path}: {name} is in it twice")
            if not 0 <= header.size <= bound or len(places) > MEMBERS_MAX:
                raise _invalid(f"{self.path}: {name} is larger than anything in a backup ({header.size:,} bytes)")
            places[name] = _Place(begin, header.size)
            offset = begin + header.size + -header.size % BLOCK
            if offset > size:
                raise self._cut_off(size)
        self._file.seek(offset)
        if self._file.read(2 * BLOCK + 1) != bytes(2 * BLOCK):
            raise _invalid(f"{self.path}: something else follows the end of the backup, or the end is missing")
        return places

    def _header(self, offset: int, size: int) -> tarfile.TarInfo:
        self._file.seek(offset)
        block = self._file.read(BLOCK)
        if len(block) < BLOCK or not any(block):
            raise self._cut_off(size) if offset else _no_backup(self.path)
        try:
            return tarfile.TarInfo.frombuf(block, "ascii", "backslashreplace")
        except tarfile.HeaderError as error:
            raise (
                _no_backup(self.path)
                if not offset
                else _invalid(f"{self.path}: what stands at byte {offset:,} is not what was written ({error})")
            ) from None

    def _cut_off(self, size: int) -> GpufleetError:
        return _invalid(f"{self.path}: it is cut off: it has no manifest up to its end at byte {size:,}")

    def _bytes(self, place: _Place) -> bytes:
        self._file.seek(place.offset)
        data = self._file.read(place.size)
        if len(data) != place.size:
            raise self._cut_off(place.offset + len(data))
        return data

    def _compare(self) -> None:
        """The members that the manifest names are those that are there, and as large."""
        named = {member.name: member.bytes for member in self.manifest.members}
        for name in sorted(self._places.keys() | named.keys()):
            if name not in self._places:
                raise _invalid(f"{self.path}: {name} is missing, and the manifest names it")
            if name not in named:
                raise _invalid(f"{self.path}: {name} is not in the manifest")
            if named[name] != self._places[name].size:
                raise _invalid(f"{self.path}: {name} is not as large as the manifest says")


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """A backup to be read. Errors: FILE_NOT_FOUND, BACKUP_INVALID."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise _no_backup(path)
    try:
        file = path.open("rb")
    except OSError as problem:
        raise GpufleetError(Reason.FILE_NOT_FOUND, f"the backup {path} cannot be read: {problem.strerror}") from None
    with file:
        yield Archive(file, path)


def _no_backup(path: Path) -> GpufleetError:
    return _invalid(f"{path} is no backup: gpuctl scheduler backup FILE makes one")


def _invalid(why: str) -> GpufleetError:
    return GpufleetError(Reason.BACKUP_INVALID, why)
