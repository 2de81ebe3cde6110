"""The model of docs/write-a-model.md works as it stands there, and is as short as the page says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from gpufleet.v1 import inference_pb2

from inference.loading import Wanted, load
from inference.worker import Worker
from tests.inference.serving import Client, serving

PAGE = Path(__file__).parents[2] / "docs" / "write-a-model.md"
CODE_LINES_MAX = 40


def shown(frame: inference_pb2.Frame) -> np.ndarray:
    return np.frombuffer(frame.data, np.uint8).reshape(frame.height, frame.width, 3).astype(int)


async def frame_after(client: Client, sequence: int) -> np.ndarray:
    return shown(await client.frame_with(sequence))


async def test_the_pages_model_answers_the_pointer_clicks_and_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    assert len([line for line in found[1].splitlines() if line.strip()]) <= CODE_LINES_MAX
    (tmp_path / "embers.py").write_text(found[1])
    monkeypatch.syspath_prepend(tmp_path)
    wanted = Wanted(entry_point="embers:Embers", arguments={"cooling": "0.01"}, device="cpu")
    model = load(wanted, lambda share, words: None).model
    async with serving(lambda: model) as running:
        assert isinstance(running.worker, Worker) and running.worker.traits.ticks_per_second == 30
        client = await running.open("s", encodings=["raw"])
        dark = shown(await client.frame())
        assert dark.shape == (384, 512, 3) and dark.max() == 0
        await client.click(0.25, 0.5)
        bright = await frame_after(client, 1)
        assert bright[192, 128].sum() > 400 and bright[10, 500].sum() == 0
        await client.move(0.9, 0.9)
        await client.key("x")
        assert (await frame_after(client, 3))[192, 128].sum() < 100
        await client.leave()
