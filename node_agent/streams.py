"""Writing to a stream that may be over."""

from __future__ import annotations

import asyncio
from typing import Any


async def write(call: Any, message: object) -> None:
    """Write one message; waits while the other side takes none. Raises AioRpcError or ConnectionResetError."""
    try:
        await call.write(message)
    except asyncio.InvalidStateError:
        # gRPC's word for a stream that has ended since the last write.
        raise ConnectionResetError(await call.details() or "the stream has ended") from None
