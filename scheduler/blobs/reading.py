"""A whole file, piece by piece."""

from collections.abc import AsyncGenerator
from contextlib import suppress

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import PIECE_BYTES_MAX

from .backends.backend import Reader
from .store import BlobStore


async def pieces_from(blobs: BlobStore, reader: Reader, offset: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """The offset and the bytes of each piece from there on; closes the reader at its end.

    Errors: OFFSET_OUT_OF_RANGE, and those of the reader.
    """
    try:
        size = reader.size
        if not 0 <= offset <= size:
            raise GpufleetError(Reason.OFFSET_OUT_OF_RANGE, f"{offset:,} is not within the file's {size:,} bytes")
        while offset < size and (data := await blobs.on_thread(reader.read, offset, PIECE_BYTES_MAX)):
            yield offset, data
            offset += len(data)
    finally:
        with suppress(OSError):
            reader.close()
