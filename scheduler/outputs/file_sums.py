"""The checksums of a segment in a file beside it: 1.0.stdout.sums is that of 1.0.stdout.

They are written after the bytes are durable and are not synced themselves, so a crash of the machine may lose the
newest, and no checksum is ever of bytes that may be gone.
"""

import os
import zlib
from contextlib import suppress
from pathlib import Path

from .segment_store import SegmentCheck
from .sums import ENTRY_BYTES, GrowingSums, packed, unpacked

READ_BYTES = 1024 * 1024
CAUGHT_UP_BYTES_MAX = 64 * 1024 * 1024
"""How much is read again to go on with checksums where a scheduler was killed; what is before that has none."""


def sums_path(segment: Path) -> str:
    """Where the checksums of a segment are."""
    return f"{segment}.sums"


def resumed(segment: Path, descriptor: int, size: int) -> GrowingSums:
    """The checksums of a segment that an earlier run of this program began, up to a size. Errors: OSError."""
    if not size:
        with suppress(OSError):  # of a segment that was here before: a crash may undo that both were removed
            Path(sums_path(segment)).unlink()
        return GrowingSums()
    known: bytes = b""
    with suppress(OSError):
        known = Path(sums_path(segment)).read_bytes()
    sums = GrowingSums.following(unpacked(known), size)
    sums.skip_to(size - CAUGHT_UP_BYTES_MAX)
    while sums.end < size:
        data = os.pread(descriptor, min(READ_BYTES, size - sums.end), sums.end)
        if not data:
            sums.skip_to(size)
        sums.add(memoryview(data))
    return sums


def store(segment: Path, sums: GrowingSums) -> None:
    """Write what is new of them. Bytes never wait for a checksum that fails: it is tried again at the next sync."""
    index, blocks = sums.unsettled()
    if not blocks:
        return
    with suppress(OSError):
        descriptor = os.open(sums_path(segment), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            if os.pwrite(descriptor, data := packed(blocks), index * ENTRY_BYTES) == len(data):
                sums.settle()
        finally:
            os.close(descriptor)


def examine(segment: Path, name: str, check: SegmentCheck) -> None:
    """Read a segment and compare it with its checksums. `name` is what sentences call it. Errors: OSError."""
    descriptor = os.open(segment, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        known: bytes = b""
        with suppress(FileNotFoundError):
            known = Path(sums_path(segment)).read_bytes()
        for block in unpacked(known):
            if block is None:
                check.problems.append(f"{name}: a checksum in {sums_path(segment)} is damaged")
            elif block.end > size:
                check.problems.append(
                    f"{name}: {segment} is cut off: it has {size:,} bytes, and {block.end:,} were stored"
                )
                break
            elif _checksum(descriptor, block.begin, block.end) != block.checksum:
                check.problems.append(
                    f"{name}: bytes {block.begin:,} to {block.end:,} of {segment} are not what was written"
                )
            else:
                check.checked_bytes += block.end - block.begin
    finally:
        os.close(descriptor)
    if not check.problems:
        check.unchecked_bytes += size - check.checked_bytes


def _checksum(descriptor: int, begin: int, end: int) -> int:
    checksum = 0
    while begin < end and (data := os.pread(descriptor, min(READ_BYTES, end - begin), begin)):
        checksum = zlib.crc32(data, checksum)
        begin += len(data)
    return checksum
