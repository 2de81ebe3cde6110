"""`gpuctl monitor` around a known load on a real GPU, without a scheduler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import smi
from tests.gpu.results import Results

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[2]
LOAD = Path(__file__).with_name("load.py")
HELD_GB, LOAD_SECONDS = 2.0, float(os.environ.get("GPUFLEET_GPU_SECONDS", "8"))


def test_a_watched_command_is_told_with_the_memory_and_load_that_it_had(
    gpus: list[smi.Shown], torch_version: str, results: Results, tmp_path: Path
) -> None:
    used = tmp_path / "used.json"
    paths = [str(ROOT), str(ROOT / "gen"), os.environ.get("PYTHONPATH", "")]
    uuid = gpus[0].texts["uuid"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "CUDA_VISIBLE_DEVICES": uuid}
    watched = [sys.executable, str(LOAD), "--gigabytes", str(HELD_GB), "--seconds", str(LOAD_SECONDS)]
    command = [sys.executable, "-m", "cli", "monitor", "--interval", "250ms", "-o", "json", "--to", str(used)]
    done = subprocess.run(
        [*command, "--", *watched], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout)
    told = json.loads(used.read_text())
    assert list(told["gpu_stats"]) == ["0"] and told["gpu_stats"]["0"]["uuid"] == uuid == held["uuid"]
    gpu = told["gpu_stats"]["0"]
    assert gpu["utilization"]["max"] >= 90
    assert gpu["memory_used_mb"]["max"] - gpu["memory_used_mb"]["min"] >= held["held_bytes"] / 1e6 * 0.9
    assert told["monitoring_duration_seconds"] >= LOAD_SECONDS
    assert told["process_stats"]["0"]["cpu_seconds"] > 0
    rate = gpu["utilization"]["samples"] / told["monitoring_duration_seconds"]
    results.add("samples of gpuctl monitor every 250 ms", f"{rate:.1f} a second")
