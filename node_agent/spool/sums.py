"""Checksums of what is spooled, beside each segment: the keeper makes them of the bytes as they came from the pipe.

    crc32.stdout.<offset>     8 bytes of header, then 8 bytes for each 16 KiB of the segment: how many of its bytes
                              are there by now, and their CRC-32; big-endian

An entry is written behind the bytes that it is of: there is never one for bytes that are not there yet. What has
none, as all that a keeper of before has spooled, and the last bytes of one that was killed, is not checked.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from struct import Struct

BLOCK_BYTES = 16 * 1024
"""So many bytes of a segment have one checksum: that is read again to check less of them."""

PREFIX = "crc32."
_ENTRY = Struct(">II")
_HEADER = _ENTRY.pack(BLOCK_BYTES, 1)

Sum = tuple[int, int]
"""How many bytes of a block are there, and their CRC-32."""


def sums_path(segment: Path) -> Path:
    """Answer the file that holds the checksums of a segment."""
    return segment.with_name(PREFIX + segment.name)


class SumsWriter:
    """The checksums of one segment that grows. What the disk refuses is written with what comes next."""

    def __init__(self, segment: Path) -> None:
        self._path = sums_path(segment)
        self._fd: int | None = None
        self._length = self._checksum = 0
        self._entries = bytearray(_HEADER)
        self._unwritten_from = 0

    def add(self, data: memoryview) -> None:
        """Take in bytes that were written to the segment."""
        while data:
            if self._length == BLOCK_BYTES:
                self._length = self._checksum = 0
            is_new = self._length == 0
            piece = data[: BLOCK_BYTES - self._length]
            self._checksum = zlib.crc32(piece, self._checksum)
            self._length += len(piece)
            entry = _ENTRY.pack(self._length, self._checksum)
            if is_new:
                self._entries += entry
            else:
                self._entries[-_ENTRY.size :] = entry
            data = data[len(piece) :]

    def save(self) -> None:
        """Write what is not written yet. An error of the disk is none of the output's: it only goes unchecked."""
        try:
            if self._fd is None:
                self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            written = os.pwrite(self._fd, memoryview(self._entries)[self._unwritten_from :], self._unwritten_from)
        except OSError:
            return
        if self._unwritten_from + written == len(self._entries):
            # The last block may still grow.
            self._unwritten_from = len(self._entries) - (_ENTRY.size if self._length < BLOCK_BYTES else 0)

    def close(self) -> None:
        """The segment grows no more."""
        if self._unwritten_from < len(self._entries) - _ENTRY.size:
            self.save()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def read_sums(segment: Path) -> list[Sum] | None:
    """The checksums of a segment's blocks, in order; None where there are none, or none that can be read."""
    try:
        data = sums_path(segment).read_bytes()
    except OSError:
        return None
    if not data.startswith(_HEADER):
        return None
    whole = len(data) - len(data) % _ENTRY.size
    return list(_ENTRY.iter_unpack(data[_ENTRY.size : whole]))


def is_damaged(block: bytes | memoryview, known: Sum | None) -> bool:
    """Whether a block holds other bytes than were written. One that was cut off is another matter."""
    if known is None:
        return False
    length, checksum = known
    return len(block) >= length and zlib.crc32(memoryview(block)[:length]) != checksum
