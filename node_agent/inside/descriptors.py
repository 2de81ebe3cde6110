"""Bytes to and from descriptors that do not block, in the loop: as many as there are, and no more kept than a piece."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

RETRY_SECONDS = 0.1
"""A terminal that took nothing is tried again after this: not every kernel says when it has room."""


async def until_readable(fd: int, or_done: asyncio.Future[None]) -> None:
    """Wait until something can be read, or nothing ever will; or until that future is done."""
    loop = asyncio.get_running_loop()
    await _until_told(lambda tell: loop.add_reader(fd, tell), lambda: loop.remove_reader(fd), or_done)


async def write_all(fd: int, data: bytes) -> None:
    """Write all of it; waits while it is not taken. OSError when nobody ever will."""
    loop = asyncio.get_running_loop()
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            try:
                async with asyncio.timeout(RETRY_SECONDS if os.isatty(fd) else None):
                    await _until_told(lambda tell: loop.add_writer(fd, tell), lambda: loop.remove_writer(fd))
            except TimeoutError:
                continue


async def _until_told(
    watch: Callable[[Callable[[], None]], object],
    forget: Callable[[], object],
    or_done: asyncio.Future[None] | None = None,
) -> None:
    told: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def tell() -> None:
        if not told.done():
            told.set_result(None)

    watch(tell)
    try:
        await asyncio.wait({told} if or_done is None else {told, or_done}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        forget()
