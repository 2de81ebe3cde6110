"""A person behind a line that carries little: pictures of lower quality, and better ones once it carries more."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
import simplejpeg
from PIL import Image

from inference.core.quality import QUALITIES
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.stage import Browser, Stage, browser

NARROW_BYTES_PER_SECOND = 200_000
WIDE_BYTES_PER_SECOND = 100_000_000
CHUNK_BYTES = 4_096
BUFFER_BYTES = 16_384

MODEL = '''
import numpy as np

class Noise:
    """Pictures that are hard to encode, thirty a second."""

    seats, width, height, ticks_per_second = 1, 256, 192, 30.0

    def __init__(self) -> None:
        self.chance = np.random.default_rng(7)

    def open(self, session):
        return session.id

    def step(self, state, inputs):
        return self.chance.integers(0, 256, (192, 256, 3), np.uint8)

    def close(self, state):
        pass
'''


class Line:
    """Between a browser and the gateway: what comes down passes at this rate."""

    def __init__(self, gateway: str) -> None:
        self.bytes_per_second = NARROW_BYTES_PER_SECOND
        self._host, _, port = gateway.rpartition(":")
        self._port = int(port)
        self.address = ""

    @asynccontextmanager
    async def laid(self) -> AsyncIterator[None]:
        """While the block lasts."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server:
            yield

    async def _carry(self, up_reader: asyncio.StreamReader, down_writer: asyncio.StreamWriter) -> None:
        # A small buffer here, so that what does not pass waits where it is made.
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, (self._host, self._port))
        down_reader, up_writer = await asyncio.open_connection(sock=made, limit=BUFFER_BYTES)
        both = [
            asyncio.create_task(self._pass(up_reader, up_writer, is_limited=False)),
            asyncio.create_task(self._pass(down_reader, down_writer, is_limited=True)),
        ]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for writer in (up_writer, down_writer):
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_limited: bool) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                writer.write(data)
                await writer.drain()
                if is_limited:
                    await asyncio.sleep(len(data) / self.bytes_per_second)


def tables_of(picture: bytes) -> tuple[tuple[int, ...], ...]:
    """A JPEG's tables of quantization, which are those of its quality."""
    quantization = Image.open(io.BytesIO(picture)).quantization  # type: ignore[attr-defined]
    return tuple(tuple(quantization[key]) for key in sorted(quantization))


async def until_quality(ann: Browser, wanted: frozenset[int]) -> int:
    """Watch, and click now and then, until a picture is of one of these qualities; answers which."""
    sample = np.zeros((16, 16, 3), np.uint8)
    known = {
        tables_of(simplejpeg.encode_jpeg(sample, quality=each, colorspace="RGB", colorsubsampling="420")): each
        for each in QUALITIES
    }
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            _, _, picture = await ann.frame()
            if (quality := known[tables_of(picture)]) in wanted:
                return quality
            if ann.frames % 20 == 0:
                await ann.click(0.5, 0.5)


async def test_the_quality_falls_on_a_narrow_line_and_rises_when_it_is_wide_again(stage: Stage) -> None:
    (stage.folder / "noise.py").write_text(MODEL)
    worker = stage.worker("noisy", "noise:Noise")
    await worker.is_served()
    line = Line(stage.gateway)
    async with line.laid(), browser(stage, gateway=line.address) as ann:
        await ann.hello("noisy")
        await ann.text("turn")
        assert await until_quality(ann, frozenset(QUALITIES)) == max(QUALITIES)
        low = await until_quality(ann, frozenset(each for each in QUALITIES if each <= 45))
        line.bytes_per_second = WIDE_BYTES_PER_SECOND
        assert await until_quality(ann, frozenset(each for each in QUALITIES if each > low)) > low
        await ann.say(type="leave")
        await ann.text("end")
    worker.end()
