"""Where the files of a request wait until all of them have come: one file on the gateway's disk, without a name.

It has no name from the moment it is there, so that nothing is left of it, however the request or the gateway ends.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import PIECE_BYTES_MAX

FREE_BYTES_MIN = 2**30
"""What stays free on the disk."""


@dataclass(frozen=True, slots=True)
class Spooled:
    """A file within the spool: where it lies, how long it is, and its SHA-256."""

    begin: int
    size_bytes: int
    digest: str


class Spool:
    """The files of one request, one behind the other; `bytes_max` is what all of them may be together."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self._folder = folder
        self._bytes_max = bytes_max
        self._file: Any = None
        self._held = bytearray()
        self._begin = self._size = 0
        self._sha = hashlib.sha256()

    def close(self) -> None:
        """Give the room on the disk back."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def begin(self) -> None:
        """A file begins."""
        self._begin, self._sha = self._size, hashlib.sha256()

    async def add(self, data: bytes) -> None:
        """Some bytes of it. Raises MESSAGE_TOO_LARGE, STORE_UNAVAILABLE."""
        self._size += len(data)
        if self._size > self._bytes_max:
            raise GpufleetError(
                Reason.MESSAGE_TOO_LARGE,
                f"the files are longer than {self._bytes_max:,} bytes",
                next_step="Upload them first, in pieces: PUT /api/v1/files/DIGEST; see docs/files.md.",
            )
        self._held += data
        if len(self._held) >= PIECE_BYTES_MAX:
            await self._flush()

    async def end(self) -> Spooled:
        """The file that ends here."""
        await self._flush()
        return Spooled(self._begin, self._size - self._begin, self._sha.hexdigest())

    async def pieces(self, spooled: Spooled, offset: int = 0) -> AsyncIterator[bytes]:
        """The bytes of a file from an offset on, a piece at a time."""
        at, end = spooled.begin + offset, spooled.begin + spooled.size_bytes
        while at < end:
            data = await asyncio.to_thread(os.pread, self._file.fileno(), min(PIECE_BYTES_MAX, end - at), at)
            assert data, "the spool is as long as what was written to it"
            yield data
            at += len(data)

    async def _flush(self) -> None:
        held, self._held = bytes(self._held), bytearray()
        if held:
            await asyncio.to_thread(self._write, held)

    def _write(self, data: bytes) -> None:
        try:
            if self._file is None:
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            if shutil.disk_usage(self._folder).free - len(data) < FREE_BYTES_MIN:
                raise GpufleetError(
                    Reason.STORE_UNAVAILABLE,
                    f"the gateway's disk has less than {FREE_BYTES_MIN:,} bytes free",
                    next_step="Try again later, or free the disk of the gateway's data folder.",
                )
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise GpufleetError(Reason.STORE_UNAVAILABLE, f"the gateway cannot keep the file: {why}") from error
        self._sha.update(data)
