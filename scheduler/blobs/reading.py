"""A whole file, piece by piece."""

import asyncio
import os
from collections.abc import AsyncGenerator

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.files import PIECE_BYTES_MAX


async def pieces_from(descriptor: int, offset: int) -> AsyncGenerator[tuple[int, bytes], None]:
    """The offset and the bytes of each piece from there on; closes the descriptor at its end.

    Errors: OFFSET_OUT_OF_RANGE.
    """
    try:
        size = os.fstat(descriptor).st_size
        if not 0 <= offset <= size:
            raise GpufleetError(Reason.OFFSET_OUT_OF_RANGE, f"{offset:,} is not within the file's {size:,} bytes")
        while offset < size and (data := await asyncio.to_thread(os.pread, descriptor, PIECE_BYTES_MAX, offset)):
            yield offset, data
            offset += len(data)
    finally:
        os.close(descriptor)
