"""The examples of model classes do what they say, on files that are made here, over real HTTP."""

from __future__ import annotations

import asyncio
import io
import random
import re
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw

from gpufleet.client import InferenceClient
from tests.inference.predict.answers import Answering, answering

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def client_of(server: Answering) -> InferenceClient:
    return InferenceClient(model=server.name, addresses=[f"127.0.0.1:{server.port}"])


# --- finder.py and read_pages.py


@pytest.fixture
def torch() -> Iterator[Any]:
    """With one thread: several only wait for each other where the machine has other work."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield torch
    torch.set_num_threads(threads)


def page(*lines: str, scale: int = 1, form: str = "PNG", is_paper: bool = False) -> bytes:
    """A file with a picture of these digits, a little noisy, light on dark or dark on paper."""
    import digits  # type: ignore[import-not-found]

    ink = np.zeros((14 * len(lines) + 8, 9 * max(map(len, lines)) + 8))
    for row, line in enumerate(lines):
        for column, digit in enumerate(line):
            if digit != " ":
                top, left = 4 + 14 * row, 5 + 9 * column
                ink[top : top + 7, left : left + 5] = digits.DIGITS[int(digit)].numpy()
    grey = 20 + 220 * (1 - ink if is_paper else ink) + np.random.default_rng(0).normal(0, 8, ink.shape)
    picture = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
    file = io.BytesIO()
    picture.resize((scale * picture.width, scale * picture.height), Image.Resampling.NEAREST).save(file, form)
    return file.getvalue()


@pytest.mark.slow
async def test_one_model_finds_digits_and_another_one_reads_them(torch: Any) -> None:
    from read_pages import read_pages  # type: ignore[import-not-found]

    photo = Image.new("RGB", (64, 64), "white")
    ImageDraw.Draw(photo).ellipse((10, 10, 50, 50), "black")
    blank = io.BytesIO()
    Image.new("L", (40, 40)).save(blank, "GIF")
    pages = [
        page("31415 92653", "58979 32384", scale=2),
        b"no picture",
        page("0123456789", form="JPEG", scale=3, is_paper=True),
        page("27")[:200],
        blank.getvalue(),
    ]
    async with (
        answering("", entry_point="finder:Finder") as finder,
        answering("", entry_point="digits:Digits", steps="300") as digits,
    ):
        with client_of(finder) as finds, client_of(digits) as reads:
            texts = await asyncio.to_thread(read_pages, pages, finds, reads)
    assert texts[0] == "31415926535897932384" and texts[2] == "0123456789" and texts[4] == ""
    assert "no picture that can be read" in texts[1] and "no picture that can be read" in texts[3]


# --- sentences.py

KITCHEN = ("cook", "pan", "onion", "butter", "oven", "soup", "pepper", "knife", "bread", "salt", "stir", "boil")
RAILWAY = ("train", "track", "signal", "station", "driver", "rail", "ticket", "platform", "brake", "tunnel", "depart")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A folder with texts about two things, in no sentence about both."""
    chance = random.Random(7)
    for name, words in (("kitchen.md", KITCHEN), ("railway.txt", RAILWAY)):
        sentences = [f"{' '.join(chance.sample(words, 6))}.\n" for _ in range(200)]
        (tmp_path / name).write_text("".join(sentences))
    return tmp_path


async def test_sentences_that_mean_alike_are_near(texts: Path) -> None:
    import sentences  # type: ignore[import-not-found]

    asked = ["cook the onion in butter", "a soup boils in the oven", "the train leaves the tunnel", "xyz"]
    async with answering("", entry_point="sentences:Sentences", texts=str(texts)) as server:
        with client_of(server) as client:
            results = await asyncio.to_thread(client.predict, [each.encode() for each in asked])
            near = await asyncio.to_thread(sentences.nearest, asked, client)
    assert [text for _, text in near] == asked[1:3]
    cook, soup, train = (np.asarray(each.value) for each in results[:3])
    assert cook @ soup > 0.4 > 0 > max(cook @ train, soup @ train)
    assert abs(cook @ cook - 1) < 1e-5
    assert results[3].error is not None and "none of its words" in results[3].error.message


# --- speech.py

VOWELS = ((700, 1200, 2500), (300, 2200, 2900), (400, 800, 2600), (500, 1800, 2500))
"""The formants, in Hz, of an a, an i, an o and an e."""


def voice(rate: int, seconds: float, pitch: float) -> np.ndarray:
    """Somebody who says a, i, o, e: the pulses of a larynx whose pitch glides, through the formants of each vowel."""
    time = np.arange(int(rate * seconds)) / rate
    swings = np.cumsum(pitch * (1 + 0.15 * np.sin(2 * np.pi * 0.7 * time))) / rate
    pulses = np.diff(np.floor(swings), prepend=0)
    said = np.zeros(len(time))
    length = rate // 5
    for number, begin in enumerate(range(0, len(time), length)):
        part = pulses[begin : begin + length]
        hertz = np.fft.rfftfreq(2 * length, 1 / rate)
        mouth = sum(1 / (1 - (hertz / at) ** 2 + 0.12j * hertz / at) for at in VOWELS[number % len(VOWELS)])
        sound = np.fft.irfft(np.fft.rfft(part, 2 * length) * mouth)[: len(part)]
        said[begin : begin + length] = sound * np.hanning(len(part)) ** 0.5
    return np.asarray(0.5 * said / np.abs(said).max())


def recording(rate: int, channels: int, noise: float, *spoken: tuple[float, float, float]) -> bytes:
    """A WAV file of 6 s: noise, the hum of the mains, a clap at its end, and who speaks from when to when how high."""
    chance = np.random.default_rng(1)
    sound = chance.normal(0, noise, 6 * rate) + 0.02 * np.sin(2 * np.pi * 50 * np.arange(6 * rate) / rate)
    for begin, end, pitch in spoken:
        said = voice(rate, end - begin, pitch)
        sound[int(begin * rate) :][: len(said)] += said
    sound[int(5.4 * rate) :][: rate // 50] += chance.normal(0, 0.6, rate // 50)
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        samples = (32_767 * sound.clip(-1, 1)).astype("<i2")
        opened.writeframes(np.repeat(samples, channels).tobytes())
    return file.getvalue()


async def test_speech_is_heard_in_noise_and_neither_a_hum_nor_a_clap_is_speech() -> None:
    spoken = ((1.0, 2.2, 110.0), (3.5, 4.9, 210.0))
    whole = recording(16_000, 1, 0.02, *spoken)
    files = [
        whole,
        b"no sound",
        recording(44_100, 2, 0.003, *spoken),
        recording(8_000, 1, 0.02),
        whole[: len(whole) // 2],
    ]
    async with answering("", entry_point="speech:Speech", body_max=1 << 22) as server:
        with client_of(server) as client:
            results = await asyncio.to_thread(client.predict, files)
    assert not results[2].error
    for heard in (results[0].value, results[2].value):
        assert len(heard) == 2
        for found, said in zip(heard, spoken, strict=True):
            assert found == pytest.approx(said[:2], abs=0.15)
    assert results[1].error is not None and "no WAV file" in results[1].error.message
    assert results[3].value == []
    assert results[4].is_ok and len(results[4].value) == 1  # of a file that was cut off, what is there


def test_no_broken_file_is_more_than_an_error_of_its_own() -> None:
    import speech  # type: ignore[import-not-found]

    model = speech.Speech()
    whole = recording(8_000, 1, 0.02)
    chance = random.Random(3)
    broken = [whole[:length] for length in (0, 4, 12, 30, 43, 44, 45, 700)]
    for _ in range(300):
        changed = bytearray(whole[:4_000])
        changed[chance.randrange(60)] = chance.randrange(256)
        broken.append(bytes(changed))
    for file, found in zip(broken, model.predict(broken), strict=True):
        assert isinstance(found, list | ValueError), file[:60]


# --- the class of docs/serving.md


async def test_the_class_of_the_page_on_serving_tells_colours_of_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (EXAMPLES.parent / "serving.md").read_text()
    code = re.search(r"Save this as colours\.py.*?```python\n(.*?)```", text, re.DOTALL)
    assert code and "gpuctl serve colours:Colours --predict" in text
    (tmp_path / "colours.py").write_text(code[1])
    monkeypatch.syspath_prepend(tmp_path)
    red = io.BytesIO()
    Image.new("RGB", (30, 20), (255, 0, 10)).save(red, "PNG")
    async with answering("", entry_point="colours:Colours") as server:
        with client_of(server) as client:
            results = await asyncio.to_thread(client.predict, [red.getvalue(), b"no picture", red.getvalue()])
    assert results[0].value == results[2].value == {"red": 255.0, "green": 0.0, "blue": 10.0}
    assert results[1].error is not None and "this is no picture" in results[1].error.message
