"""`gpuctl providers`: what is there, what does not work, and what a driver that crashes or hangs costs."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from cli.sessions import provider_calls
from gpufleet.runtimes import looking
from gpufleet.runtimes.looking import (
    DeviceFacts,
    InterpreterFacts,
    OnnxFacts,
    ProviderFacts,
    TorchFacts,
    look,
)
from tests.cli.conftest import run_here
from tests.cli.golden import assert_golden

H200 = DeviceFacts(index=0, name="NVIDIA H200", memory_bytes=150_000_000_000)
WORKS = InterpreterFacts(
    path="/opt/venv/bin/python",
    version="3.12.3",
    gpufleet_version="0.1.0",
    is_missing=(),
    nvidia_driver_version="580.65.06",
    amd_driver_version="",
    torch=TorchFacts(version="2.13.0+cu130", backend="cuda", backend_version="13.0", devices=(H200,)),
    onnxruntime=OnnxFacts(
        version="1.32.0",
        packages=("onnxruntime-gpu",),
        providers=(
            ProviderFacts(name="tensorrt", problem="libnvinfer.so.10: cannot open shared object file"),
            ProviderFacts(name="cuda"),
            ProviderFacts(name="cpu"),
        ),
    ),
)
BARE = replace(WORKS, gpufleet_version="", torch=TorchFacts(), onnxruntime=OnnxFacts())
ODD = replace(
    WORKS,
    is_missing=("starlette", "uvicorn"),
    torch=replace(WORKS.torch, devices=(replace(H200, problem="CUDA error: out of memory"),)),
    onnxruntime=OnnxFacts(
        version="1.32.0", packages=("onnxruntime", "onnxruntime-gpu"), providers=(ProviderFacts(name="cpu"),)
    ),
)
ON_CPU = replace(
    WORKS,
    torch=TorchFacts(version="2.13.0+cpu", backend="cpu"),
    onnxruntime=OnnxFacts(version="1.32.0", packages=("onnxruntime",), providers=(ProviderFacts(name="cpu"),)),
)
CRASHES = replace(
    WORKS,
    torch=TorchFacts(problem="no answer within 60 s; a driver hangs, or is very slow"),
    onnxruntime=OnnxFacts(problem="it was ended by SIGSEGV; last it said: it said nothing"),
)
AMD = replace(ON_CPU, nvidia_driver_version="", amd_driver_version="6.12")
BLIND = replace(ON_CPU, torch=replace(WORKS.torch, devices=()), onnxruntime=WORKS.onnxruntime)


def test_what_it_shows_of_machines_good_and_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    for name, found in {
        "works": WORKS,
        "bare": BARE,
        "odd": ODD,
        "on the CPU": ON_CPU,
        "crashes": CRASHES,
        "AMD": AMD,
        "blind": BLIND,
    }.items():
        monkeypatch.setattr(provider_calls, "look", lambda python, timeout_s, found=found: found)
        done = run_here("providers")
        shown.append(f"# {name}: exits with {done.code}\n{done.text}")
        assert not done.err
    assert_golden("providers", "\n".join(shown))


def test_each_format_says_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def look_at(*given: object) -> InterpreterFacts:
        asked.append(given)
        return WORKS

    monkeypatch.setattr(provider_calls, "look", look_at)
    assert run_here("providers", "-o", "name").text.split() == [
        "torch:cuda:0",
        "torch:cpu",
        "onnxruntime:cuda",
        "onnxruntime:cpu",
    ]
    said = json.loads(run_here("providers", "-o", "json").out)
    assert said["torch"]["devices"] == [asdict(H200)]
    assert [each["name"] for each in said["onnxruntime"]["providers"]] == ["tensorrt", "cuda", "cpu"]
    assert json.loads(run_here("providers", "-o", "jsonl").out) == said
    monkeypatch.setenv("GPUCTL_OUTPUT", "name")
    assert run_here("providers", "--python", "/opt/p", "--timeout", "90s").text.startswith("torch:cuda:0\n")
    assert asked[-1] == ("/opt/p", 90.0)


@pytest.mark.parametrize(
    "typed, words",
    [
        (("--timeout", "1ms"), "--timeout: must be from 1s to 1h"),
        (("--timeout", "soon"), "--timeout"),
        (("-o", "yaml"), "yaml"),
        (("--python", "/none/python"), "--python: /none/python is no interpreter that answers: No such file"),
        (("--python", "/bin/true"), "is no interpreter that answers: it ended with code 0"),
    ],
)
def test_what_is_typed_wrong_is_named(typed: tuple[str, str], words: str) -> None:
    refused = run_here("providers", *typed)
    assert refused.code == 2 and words in refused.err and not refused.out


FAKE_TORCH = """
import os, types
__version__ = "9.9"
os.write(2, b"a driver says something\\n")
version = types.SimpleNamespace(cuda="13.0", hip=None)
class cuda:
    device_count = staticmethod(lambda: 2)
    @staticmethod
    def get_device_properties(index):
        if index:
            raise RuntimeError("CUDA error:\\n  uncorrectable ECC error")
        return types.SimpleNamespace(name="NVIDIA H200", total_memory=7)
class ones:
    def __init__(self, count, device): pass
    def __add__(self, other): return self
    def tolist(self): return [2.0, 2.0]
"""
FAKE_ONNX = """
import os
from types import SimpleNamespace
__version__ = "8.8"
LONG = {"CUDAExecutionProvider": "crashes", "ROCMExecutionProvider": "lies",
        "CPUExecutionProvider": "works", "SomeExecutionProvider": ""}
get_available_providers = lambda: list(LONG)
SessionOptions = SimpleNamespace
class InferenceSession:
    def __init__(self, model, settings, providers):
        self.name = providers[0][0]
        if LONG[self.name] == "crashes":
            os.abort()
    def get_providers(self): return [self.name]
    def run(self, names, given): return [given["x"] * (2 if LONG[self.name] == "works" else 3)]
"""


def test_a_driver_that_crashes_or_computes_wrongly_costs_its_own_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(FAKE_TORCH)
    (tmp_path / "onnxruntime.py").write_text(FAKE_ONNX)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = look(sys.executable)
    assert (found.torch.version, found.torch.backend_version) == ("9.9", "13.0")
    assert found.torch.devices == (
        DeviceFacts(index=0, name="NVIDIA H200", memory_bytes=7),
        DeviceFacts(index=1, name="", memory_bytes=0, problem="CUDA error: uncorrectable ECC error"),
    )
    problems = {each.name: each.problem for each in found.onnxruntime.providers}
    assert list(problems) == ["cuda", "rocm", "cpu"] and not problems["cpu"]
    assert problems["cuda"].startswith("it was ended by SIGABRT")
    assert problems["rocm"] == "1.5 + 1.5 and -2 + -2 are [4.5, -6.0] there"


def test_a_driver_that_hangs_is_left_after_the_time_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a process of its own that hangs as well; that nothing of it stays is looked for after each test."""
    hangs = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(3600)'])\n"
    (tmp_path / "onnxruntime.py").write_text(hangs + "time.sleep(3600)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = looking._onnxruntime(sys.executable, 0.5)
    assert found.problem == "no answer within 0.5 s; a driver hangs, or is very slow"


def test_the_interpreter_of_these_tests_has_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a torch that cannot be imported, which spares the time that the real one takes."""
    onnxruntime = pytest.importorskip("onnxruntime")
    (tmp_path / "torch.py").write_text("raise OSError('libc10.so: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = look()
    assert (found.path, found.gpufleet_version, found.is_missing) == (sys.executable, "0.1.0", ())
    assert found.onnxruntime.version == onnxruntime.__version__
    assert [each.name for each in found.onnxruntime.providers if not each.problem][-1] == "cpu"
    assert found.torch.problem == "it ended with code 1: OSError: libc10.so: cannot open shared object file"
