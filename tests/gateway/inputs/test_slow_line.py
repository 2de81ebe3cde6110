"""A person behind a line that carries little: pictures of lower quality, and better ones once it carries more."""

from __future__ import annotations

import asyncio
import io

import numpy as np
import simplejpeg
from PIL import Image

from inference.core.pacing import QUALITIES
from tests.e2e.processes import DEADLINE_SECONDS
from tests.gateway.line import WIDE_BYTES_PER_SECOND, Line
from tests.gateway.stage import Browser, Stage, browser

NARROW_BYTES_PER_SECOND = 200_000

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
    line = Line(stage.gateway, NARROW_BYTES_PER_SECOND)
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
