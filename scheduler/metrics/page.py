"""The scheduler's page for Prometheus: taken on the event loop in short steps, written by a process beside it.

The process is started with the first page and again when it is gone. One page is made at a time, and whoever asks
while it is made, or within FRESH_S, is given the same.
"""

import asyncio
import logging
import pickle
import struct
import sys
import time
from contextlib import suppress

from gpufleet.errors import GpufleetError, Reason
from gpufleet.telemetry.logs import fields
from gpufleet.telemetry.metrics import Metrics

from ..engine import Engine
from ..state.units import SECOND
from .devices import stale_span, take_devices
from .snapshot import Ordered

log = logging.getLogger(__name__)

FRESH_S = 1.0
WRITE_S_MAX = 30.0
"""A page that takes longer is given up, and its process ended."""

PAGE_BYTES_MAX = 256 * 1024 * 1024
END_S_MAX = 2.0
DROPPED_BYTES_MAX = 64 * 1024
"""Of a page that nobody wants any more, so much is read at a time."""

_LENGTH = struct.Struct(">Q")


class Page:
    """Makes pages until `close`."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self._engine = engine
        self._metrics = metrics
        self._making = asyncio.Lock()
        self._made: dict[bool, tuple[float, bytes]] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def text(self, is_packed: bool) -> bytes:
        """The page, as it is or packed with gzip. Raises METRICS_UNAVAILABLE."""
        async with self._making:
            made_s, page = self._made.get(is_packed, (float("-inf"), b""))
            if time.monotonic() - made_s > FRESH_S:
                page = await self._make(is_packed)
                self._made = {is_packed: (time.monotonic(), page)}
        return page

    async def close(self) -> None:
        """End the process."""
        async with self._making:
            await self._end()

    async def _make(self, is_packed: bool) -> bytes:
        own = await asyncio.to_thread(self._metrics.text)
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                return await self._written(own, is_packed)
        except (OSError, EOFError, TimeoutError) as problem:
            why = str(problem) or type(problem).__name__
            log.error("a page of metrics was not written", extra=fields(why=why))
            await self._end()
            raise GpufleetError(
                Reason.METRICS_UNAVAILABLE, f"the page could not be written: {why}", retry_after_s=5.0
            ) from None
        except BaseException:
            # In the middle of an answer nobody could tell where the next one begins.
            await asyncio.shield(self._end())
            raise

    async def _written(self, own: bytes, is_packed: bool) -> bytes:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-P", "-m", f"{__package__}.rendering"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None and answers is not None
        count = 0
        async for step in take_devices(self._engine):
            count += len(step)
            # As plain tuples: naming the class of each would take ten times as long.
            await _give(given, [tuple(device) for device in step])
        left_out = sum(len(node.info.devices) for node in self._engine.view.durable.nodes.values()) - count
        stale_s = stale_span(self._engine.view.limits) / SECOND
        await _give(given, tuple(Ordered(own, max(0, left_out), stale_s, is_packed)))
        length = _LENGTH.unpack(await answers.readexactly(_LENGTH.size))[0]
        if length > PAGE_BYTES_MAX:
            raise OSError(f"the page has {length:,} bytes")
        return await answers.readexactly(length)

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(END_S_MAX):
                await _left(process)
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await _left(process)


async def _left(process: asyncio.subprocess.Process) -> None:
    """Return once it has left. What it still writes is dropped: to asyncio nobody has left whose pipe is not empty."""
    assert process.stdout is not None
    while await process.stdout.read(DROPPED_BYTES_MAX):
        pass
    await process.wait()


async def _give(given: asyncio.StreamWriter, message: object) -> None:
    packed = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    given.write(_LENGTH.pack(len(packed)) + packed)
    await given.drain()
