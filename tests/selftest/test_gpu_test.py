"""`make gpu-test` on a machine without a GPU: it says so; and with a driver made for tests its own works are shown."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.devices.fake_nvml import FakeNvml, compiler
from tests.gpu.results import Results, slug

ROOT = Path(__file__).parents[2]
FAKES = ROOT / "tests" / "devices" / "fake_nvml"
RUN_SECONDS = 280
COMPUTES_NOTHING = "not canvas and not predict and not isolation"
"""The tests that the stand-in for PyTorch is enough for."""

SMI = '#!/bin/sh\nexec "{python}" "{script}" "$@"\n'


def gpu_test(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as `make gpu-test` does, with its table in the folder."""
    paths = [environment.pop("PYTHONPATH", ""), str(ROOT), str(ROOT / "gen")]
    dropped = ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_CURRENT_TEST")
    inherited = {name: value for name, value in os.environ.items() if name not in dropped}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "-m", "gpu", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env={
            **inherited,
            **environment,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "GPUFLEET_GPU_RESULTS": str(folder),
        },
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with two GPUs, an nvidia-smi, and a PyTorch that uses them."""
    if compiler() is None:
        pytest.skip("the NVML test library needs gcc; Debian, Ubuntu: apt-get install gcc libc6-dev")
    gpus = FakeNvml(tmp_path)
    programs, packages = tmp_path / "bin", tmp_path / "packages"
    programs.mkdir()
    (packages / "torch").mkdir(parents=True)
    (programs / "nvidia-smi").write_text(SMI.format(python=sys.executable, script=FAKES / "smi.py"))
    (programs / "nvidia-smi").chmod(0o755)
    shutil.copy(FAKES / "fake_torch.py", packages / "torch" / "__init__.py")
    (packages / "torch" / "control").write_text(str(gpus.control))
    return {
        **gpus.environment(),
        "PATH": os.pathsep.join([str(programs), os.environ["PATH"]]),
        "PYTHONPATH": str(packages),
        "GPUFLEET_GPU_SECONDS": "4",
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_check_in_which_nothing_is_really_computed_works_against_a_driver_made_for_tests(
    machine: dict[str, str], tmp_path: Path
) -> None:
    done = gpu_test(tmp_path / "results", "-k", COMPUTES_NOTHING, **machine)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout
    table = (tmp_path / "results" / "gpu-nvidia-h100-80gb-hbm3.md").read_text()
    assert table.startswith("# NVIDIA H100 80GB HBM3\n") and "* driver: 580.95.05\n" in table
    assert re.search(r"\| nvidia-smi against us: memory.used \| 0\.\d+ MiB apart \| ≤ 2 MiB: met \|", table)
    assert "| whose the process on a job's GPU is | the job's | – |" in table
    assert "| a foreign process on a GPU | seen | – |" in table


def test_without_a_gpu_everything_is_skipped_with_the_reason_and_no_table_is_written(tmp_path: Path) -> None:
    empty = tmp_path / "bin"
    empty.mkdir()
    done = gpu_test(tmp_path / "results", PATH=str(empty))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "13 skipped" in done.stdout and "no NVIDIA GPU here: nvidia-smi is not there" in done.stdout
    assert not (tmp_path / "results").exists()


def test_readings_that_differ_from_nvidia_smis_fail_and_are_named(machine: dict[str, str], tmp_path: Path) -> None:
    smi = tmp_path / "bin" / "nvidia-smi"
    lying = f"import sys; sys.path.insert(0, {str(FAKES)!r}); import smi; smi.MIB = 2**21; smi.main()"
    smi.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{lying}" "$@"\n')
    done = gpu_test(tmp_path / "results", "-k", "counters", **machine)
    assert done.returncode == 1
    assert "memory.used: nvidia-smi 238.0, we 476.8" in done.stdout
    assert "memory.used | 239 MiB apart | ≤ 2 MiB: **missed**" in done.stdout


def test_the_table_is_named_by_the_gpu_and_says_what_was_missed(tmp_path: Path) -> None:
    results = Results("NVIDIA GeForce RTX 4090", {"driver": "580.1"})
    results.add("frames", "90 %", "≥ 95 %", is_met=False)
    results.add("memory", "2 GB")
    file = results.write(tmp_path)
    assert file.name == "gpu-nvidia-geforce-rtx-4090.md" and slug("  A--b ") == "a-b"
    assert "| frames | 90 % | ≥ 95 %: **missed** |\n| memory | 2 GB | – |\n" in file.read_text()
