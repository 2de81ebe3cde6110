"""The self-test as a job runs it: a process with torch, or without, and what it says about its devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpufleet import selftest
from gpufleet.selftest import judge

ROOT = Path(__file__).parents[2]
RUN_SECONDS = 250


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run it as a job would be run, with nothing of a job in this process's own environment."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GPUFLEET_") and not name.endswith("_VISIBLE_DEVICES")
    }
    path = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(ROOT)]))
    return subprocess.run(
        [sys.executable, "-P", "-m", "gpufleet.selftest", *arguments],
        # No real GPU of this machine, unless the test says which.
        env={**inherited, "CUDA_VISIBLE_DEVICES": "", **environment, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def checks(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def stand_in(folder: Path, text: str) -> str:
    """A directory in which `import torch` meets this text first."""
    (folder / "torch.py").write_text(text)
    return str(folder)


def test_a_job_on_a_virtual_gpu_passes_and_is_told_that_the_cpu_backs_it() -> None:
    done = run(GPUFLEET_VIRTUAL_GPUS="VIRTUAL-n1-0", GPUFLEET_GPUS_PER_NODE="1", GPUFLEET_JOB_ID="7")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert lines[0].startswith("python   3.")
    assert "torch    2." in lines[1]
    assert "job      GPUFLEET_JOB_ID=7" in lines
    assert "device   cpu  virtual GPU backed by the CPU  VIRTUAL-n1-0" in lines
    verdicts = [line.split()[:2] for line in lines if line.startswith(("ok", "FAIL"))]
    assert verdicts == [["ok", name] for name in ("torch", "devices", "start", "copy", "matmul", "training")]
    assert lines[-1] == "self-test passed: 6 checks"


def test_the_json_says_the_same_as_one_object_and_shows_no_secret() -> None:
    done = run("--json", GPUFLEET_JOB_ID="7", GPUFLEET_WORKER_TOKEN="hush")
    report = json.loads(done.stdout)
    assert done.returncode == 0
    assert report["is_ok"] is True
    assert report["environment"] == {
        "CUDA_VISIBLE_DEVICES": "",
        "GPUFLEET_JOB_ID": "7",
        "GPUFLEET_WORKER_TOKEN": "(hidden)",
    }
    assert [device["place"] for device in report["devices"]] == ["cpu"]
    assert all(check["is_ok"] and check["duration_ms"] >= 0 for check in report["checks"])
    assert "hush" not in done.stdout + done.stderr


def test_a_job_that_was_given_a_gpu_and_sees_none_fails_and_is_told_why() -> None:
    done = run("--json", CUDA_VISIBLE_DEVICES="GPU-gone", GPUFLEET_GPUS_PER_NODE="1")
    assert done.returncode == 1
    devices = checks(done)["devices"]
    assert not devices["is_ok"]
    assert devices["detail"].startswith("0 GPUs seen, 1 given: ")


def test_a_job_without_gpus_passes_on_the_cpu() -> None:
    done = run("--json", GPUFLEET_GPUS_PER_NODE="0")
    assert done.returncode == 0
    assert checks(done)["devices"]["detail"] == "0 GPUs seen, 0 given"


def test_without_torch_it_says_what_to_install_and_fails(tmp_path: Path) -> None:
    missing = stand_in(tmp_path, "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')")
    done = run(PYTHONPATH=missing)
    assert done.returncode == 1
    assert "FAIL  torch" in done.stdout
    assert "pip install 'gpufleet[torch]'" in done.stdout
    assert done.stdout.splitlines()[-1] == "self-test FAILED: torch"
    assert run("--json", PYTHONPATH=missing).returncode == 1


def test_a_broken_torch_fails_with_its_own_reason(tmp_path: Path) -> None:
    broken = stand_in(tmp_path, "raise OSError('libcudart.so.12: cannot open shared object file')")
    done = run("--json", PYTHONPATH=broken)
    assert done.returncode == 1
    assert checks(done)["torch"]["detail"] == "does not import: libcudart.so.12: cannot open shared object file"


def test_a_check_that_raises_fails_with_the_first_line_of_the_error() -> None:
    def out_of_memory() -> str:
        raise RuntimeError("CUDA out of memory.\nTried to allocate a lot")

    check = judge("copy", "cuda:0", out_of_memory)
    assert (check.is_ok, check.detail) == (False, "CUDA out of memory.")


class Broken:
    """torch, but for one thing that this device gets wrong."""

    def __init__(self, torch: Any, **wrong: Any) -> None:
        self._torch = torch
        self.__dict__ |= wrong

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)


def test_a_device_that_changes_what_it_is_given_fails() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)

    def flipped(*arguments: Any, **options: Any) -> Any:
        data = torch.arange(*arguments, **options)
        return Flipping(torch, data)

    class Flipping:
        """Data whose way to the device flips one bit."""

        def __init__(self, torch: Any, data: Any) -> None:
            self.data = data

        def to(self, *_: Any, **__: Any) -> Any:
            changed = self.data.clone()
            changed[1234] ^= 1
            return changed

        def __getattr__(self, name: str) -> Any:
            return getattr(self.data, name)

        def __ne__(self, other: object) -> Any:
            return self.data != other

        __hash__ = None  # type: ignore[assignment]

    wrong = Broken(torch, arange=flipped, equal=lambda left, right: torch.equal(left.data, right))
    check = judge("copy", "cpu", lambda: selftest._copy(wrong, "cpu"))
    assert (check.is_ok, check.detail) == (False, "1 of 16000000 numbers came back changed")


def test_a_device_that_multiplies_wrongly_fails() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)

    class Wrong(torch.Tensor):  # type: ignore[misc, name-defined]
        def __matmul__(self, other: Any) -> Any:
            # A row by itself comes out right: it stands for the reference that is computed elsewhere.
            factor = 1.01 if self.dim() == 2 else 1.0
            return torch.matmul(self.as_subclass(torch.Tensor), other.as_subclass(torch.Tensor)) * factor

    wrong = Broken(torch, randn=lambda *size, device: torch.randn(*size).as_subclass(Wrong))
    check = judge("matmul", "cpu", lambda: selftest._matmul(wrong, "cpu"))
    assert not check.is_ok
    assert check.detail.startswith("wrong result: relative error")


def test_a_training_that_learns_nothing_fails() -> None:
    torch = pytest.importorskip("torch", exc_type=ImportError)
    wrong = Broken(torch, rand=lambda *size, device: torch.full(size, float("nan")))
    check = judge("training", "cpu", lambda: selftest._train(wrong, "cpu"))
    assert check.detail == "the loss did not fall: nan -> nan in 300 steps"
