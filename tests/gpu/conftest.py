"""Tests that need a real NVIDIA GPU, and the table of what they measure. `make gpu-test` runs them; docs/gpus.md."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpufleet.devices.opening import open_devices
from tests.gpu import smi
from tests.gpu.results import Results

FOLDER = Path(__file__).parents[2] / "bench" / "results"
FOLDER_VARIABLE = "GPUFLEET_GPU_RESULTS"
"""Where the table goes instead."""
_shown: list[str] = []
TORCH = "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())"


@pytest.fixture(scope="session")
def gpus() -> list[smi.Shown]:
    """What nvidia-smi shows; a machine without a GPU is no place for these tests."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        pytest.skip("measures GPUs, and must have them alone: make gpu-test")
    if why := smi.why_none():
        pytest.skip(why)
    shown = smi.ask()
    if any(each.texts["mig.mode.current"] == "Enabled" for each in shown):
        pytest.skip("a GPU is in MIG mode, and only whole GPUs are given: nvidia-smi -mig 0")
    # The driver's library keeps the pipes that it opens in a process when it is first used there.
    open_devices(node="here", interval_seconds=3600).close()
    return shown


@pytest.fixture(scope="session")
def results(gpus: list[smi.Shown]) -> Iterator[Results]:
    """The table of this run, written when the last test has ended."""
    names = sorted({each.texts["name"] for each in gpus})
    facts = {"GPUs": f"{len(gpus)} × {', '.join(names)}", "driver": gpus[0].texts["driver_version"]}
    found = Results(names[0], facts)
    yield found
    if found.rows:
        file = found.write(Path(os.environ.get(FOLDER_VARIABLE, FOLDER)))
        _shown.append(f"{found.text()}\n{file}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the table, and where it was written."""
    for text in _shown:
        terminalreporter.section("measured")
        terminalreporter.write_line(text)


@pytest.fixture(scope="session")
def torch_version(gpus: list[smi.Shown], results: Results) -> str:
    """PyTorch that sees the GPU; asked in a process of its own, so that this one holds none."""
    done = subprocess.run([sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"PyTorch does not start here: {done.stderr.strip().splitlines()[-1:]}")
    version, cuda, is_available = done.stdout.split()
    if is_available != "True":
        pytest.skip(f"PyTorch {version} (CUDA {cuda}) sees no GPU here")
    results.facts = {**results.facts, "PyTorch": f"{version}, CUDA {cuda}"}
    return version
