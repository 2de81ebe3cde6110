"""A class that answers requests on a real GPU: how fast, what becomes of too large a batch, and what is found there."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from bench import cnn
from bench.rows import Run
from tests.gpu import smi
from tests.gpu.results import Results
from tests.inference.predict.test_program import port_of, program

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ITEMS = 16
SHARE = 0.2
"""Of the GPU's memory, for each item of a batch: four go in beside a CUDA context, and five do not."""

HUNGRY = """
import torch

class Waits:
    examples = (1,)

    def load(self, device):
        self.device = device
        self.bytes_each = int({share} * torch.cuda.mem_get_info()[1])

    def predict(self, items):
        print(f"asked for {{len(items)}}\\n", end="", flush=True)
        held = [torch.full((self.bytes_each,), int(item), dtype=torch.uint8, device=self.device) for item in items]
        return [int(each[-1]) for each in held]
"""


def test_asking_a_network_over_http_is_about_as_fast_as_calling_it(
    gpus: list[smi.Shown], torch_version: str, results: Results, tmp_path: Path
) -> None:
    with Run(rounds=1, jobs=1, repeats=3, queued=1, agents=1) as run:
        (row,) = cnn.measure(tmp_path, run, "cuda:0")
    assert row.floor and row.ratio
    results.add(f"{row.name}; called directly", f"{row.floor:,.0f}/s")
    results.add("the same over HTTP", f"{row.figure:,.0f}/s, {row.ratio:.0%}")


@pytest.mark.parametrize("size", ["32", "auto"])
async def test_a_batch_that_does_not_fit_is_halved_until_it_does_and_everybody_is_answered(
    gpus: list[smi.Shown], torch_version: str, results: Results, tmp_path: Path, size: str
) -> None:
    with program(tmp_path, "--device", "cuda:0", "--max-batch", size, text=HUNGRY.format(share=SHARE)) as (_, log):
        port = await port_of(log)
        sent = list(range(1, ITEMS + 1))
        for _ in range(2):
            assert await asyncio.to_thread(_infer, port, sent) == sent
        said = log.read_text()
    sizes = [int(each) for each in re.findall(r"^asked for (\d+)$", said, re.MULTILINE)]
    assert max(sizes) > 4, sizes
    assert set(sizes[-ITEMS // 4 :]) <= {1, 2, 3, 4}, sizes
    results.add(f"batches of a class that has room for 4 items, --max-batch {size}", ", ".join(map(str, sizes)))


def _infer(port: int, numbers: list[int]) -> list[int]:
    tensor = {"name": "x", "shape": [len(numbers)], "datatype": "INT64", "data": numbers}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v2/models/Waits/infer", data=json.dumps({"inputs": [tensor]}).encode()
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        said: dict[str, Any] = json.load(answer)
    return list(said["outputs"][0]["data"])


def test_providers_says_that_torch_computes_on_each_gpu(
    gpus: list[smi.Shown], torch_version: str, results: Results
) -> None:
    command = [sys.executable, "-m", "gpufleet.cli", "providers", "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    for index, gpu in enumerate(gpus):
        (line,) = [each for each in done.stdout.splitlines() if each.split()[:1] == [f"cuda:{index}"]]
        assert "ok" in line and gpu.texts["name"] in line and "computes" in line, done.stdout
    for line in done.stdout.splitlines():
        name, _, rest = line.strip().partition("  ")
        if name and not line.startswith((" " * 10, "→")):
            results.add(f"gpuctl providers: {name}", " ".join(rest.split()))
