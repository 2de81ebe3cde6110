"""What reading real GPUs costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.sampling import BEAT_SECONDS, CHILD, TARGET_PERCENT
from tests.gpu import smi
from tests.gpu.results import Results

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parents[2]
ROUNDS = 200
DEVICES_OF_TARGET = 8


def test_what_an_agent_pays_for_reading_the_gpus_there(gpus: list[smi.Shown], results: Results) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "gen")])}
    child = [sys.executable, "-P", "-c", CHILD.replace("{rounds}", str(ROUNDS))]
    done = subprocess.run(child, env=environment, capture_output=True, text=True, timeout=300, check=True)
    devices, read_seconds, beat_seconds, tree_seconds = json.loads(done.stdout)
    assert devices == len(gpus)
    percent = 100 * (read_seconds + tree_seconds + beat_seconds / BEAT_SECONDS)
    of_eight = percent * DEVICES_OF_TARGET / devices
    results.add(f"one reading of {devices} GPUs", f"{read_seconds * 1e3:.2f} ms of processor time")
    results.add(f"sampling {devices} GPUs and a job once a second", f"{percent:.2f} % of a core")
    target = f"≤ {TARGET_PERCENT:g} %"
    results.add("the same for 8 GPUs, in proportion", f"{of_eight:.2f} % of a core", target, of_eight <= TARGET_PERCENT)
