"""A page that the job shows at one of its ports: where it is, and a browser on it."""

from __future__ import annotations

import asyncio
import webbrowser
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from gpufleet.errors import GpufleetError
from gpufleet.fleet.inside.forwarding import Forwarding
from gpufleet.fleet.inside.ports import HERE, Listening


@asynccontextmanager
async def showing(
    forwarding: Forwarding, port: Listening, page: str, say: Callable[[str], None], *, opens: bool
) -> AsyncIterator[None]:
    """As soon as the job answers at the port, say where its page is, or open a browser on it."""
    waiting = asyncio.create_task(_show(forwarding, port, f"http://{HERE}:{port.local}/{page}", say, opens=opens))
    try:
        yield
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def _show(
    forwarding: Forwarding, port: Listening, address: str, say: Callable[[str], None], *, opens: bool
) -> None:
    try:
        await forwarding.until_answers(port.port)
    except GpufleetError as problem:
        say(f"port {port.port}: {problem.message}")
        return
    if not opens:
        say(f"it answers at {address}")
    elif not await asyncio.to_thread(webbrowser.open, address):
        say(f"no browser could be opened; the address is {address}")
