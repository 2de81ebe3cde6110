"""What it costs to ask a small network over HTTP instead of calling it: the same batches of the same class, by turns.

Callers send whole batches in binary data, each the next one once it has its answer, so that one is computed while the
other is on its way. The class is called directly in a process of its own, which has nothing else to do.
"""

import http.client
import json
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from .fleet import free_port, running
from .rows import Row, Run, middle

BATCH = 32
CALLERS = 2
BURST_S = 3.0
ANSWER_S_MAX = 60.0
SHAPE = (3, 64, 64)

NETWORK = """
import sys
import time

import numpy as np
import torch
from gpufleet.predict import TensorSpec
from torch import nn


class Small:
    inputs = [TensorSpec("image", "FP32", (3, 64, 64))]
    outputs = [TensorSpec("scores", "FP32", (10,))]

    def load(self, device):
        torch.manual_seed(0)
        layers = []
        for before, behind in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(before, behind, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        self.device = device
        self.network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 8 * 8, 10)).to(device).eval()

    @torch.inference_mode()
    def predict(self, items):
        return list(self.network(torch.from_numpy(np.stack(items)).to(self.device)).cpu().numpy())


if __name__ == "__main__":
    batch, seconds = int(sys.argv[1]), float(sys.argv[2])
    model = Small()
    model.load(sys.argv[3])
    items = list(np.random.default_rng(0).random((batch, 3, 64, 64), np.float32))
    for _ in range(10):
        model.predict(items)
    count, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        model.predict(items)
        count += batch
    print(count / (time.perf_counter() - begin))
"""


def measure(folder: Path, run: Run, device: str = "cpu") -> list[Row]:
    """Items a second of the served class, beside those of calling it; `device` is torch's word for where."""
    program = folder / "cnn.py"
    program.write_text(NETWORK)
    port = free_port()
    command = [sys.executable, "-P", "-m", "gpufleet.inference.predict", "cnn:Small", "--device", device]
    rows = []
    with running([*command, "--max-batch", str(BATCH), "--port", str(port)], port, folder):
        _wait_until_ready(port)
        for _ in range(run.repeats):
            served = _served(port)
            called = [sys.executable, str(program), str(BATCH), str(BURST_S), device]
            direct = float(subprocess.run(called, check=True, capture_output=True, text=True).stdout)
            name = f"predict: images/s of a small CNN, {CALLERS} callers, batches of {BATCH}"
            rows.append(Row(name, served, "/s", direct, "calling it directly"))
        _require_whole_batches(port)
    return [middle(rows)]


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + ANSWER_S_MAX
    while _ask(port, "/v2/health/ready")[0] != 200:
        if time.monotonic() > deadline:
            raise TimeoutError("the class was not loaded")
        time.sleep(0.05)


def _served(port: int) -> float:
    """Items a second of all callers together."""
    numbers = _body()
    ends = [0.0] * CALLERS
    counts = [0] * CALLERS
    problems: list[Exception] = []

    def call(place: int) -> None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
            while time.perf_counter() - begin < BURST_S:
                connection.request("POST", "/v2/models/Small/infer", *numbers)
                answer = connection.getresponse()
                said = answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"a batch was not answered: {answer.status} {said[:200]!r}")
                counts[place] += BATCH
            connection.close()
        except Exception as problem:
            problems.append(problem)
        ends[place] = time.perf_counter()

    begin = time.perf_counter()
    callers = [threading.Thread(target=call, args=(place,)) for place in range(CALLERS)]
    for each in callers:
        each.start()
    for each in callers:
        each.join()
    if problems:
        raise problems[0]
    return sum(counts) / (max(ends) - begin)


def _body() -> tuple[bytes, dict[str, str]]:
    """A request of a whole batch, and its headers."""
    width, height = SHAPE[1:]
    data = bytes(4 * BATCH * SHAPE[0] * width * height)
    tensor = {"name": "image", "datatype": "FP32", "shape": [BATCH, *SHAPE]}
    head = json.dumps(
        {
            "inputs": [{**tensor, "parameters": {"binary_data_size": len(data)}}],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    return head + data, {"Inference-Header-Content-Length": str(len(head))}


def _require_whole_batches(port: int) -> None:
    """Raises RuntimeError where the class was given other batches than those that were sent."""
    page = _ask(port, "/metrics")[1]
    smaller = re.search(rf'batch_size_bucket{{le="{BATCH // 2}"}} (\d+)', page)
    if smaller is None or int(smaller[1]):
        raise RuntimeError(f"batches of less than {BATCH} were computed")


def _ask(port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()
