"""Which provider of ONNX Runtime a model gets, and what is kept of those that do not work."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpufleet.errors import GpufleetError, Reason
from gpufleet.onnx import finds_gpu, session
from gpufleet.runtimes import drivers, facts
from gpufleet.runtimes.drivers import Hardware
from gpufleet.runtimes.probe import TELEMETRY_VARIABLE, one_node_model
from tests.e2e.processes import clean_environment
from tests.gpufleet_lib.onnx_fakes import Build

H200 = Hardware(name="NVIDIA H200", memory_bytes=150_000_000_000, driver_version="580.65")


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions of other tests are not told, nor does a share of the job that runs the tests count."""
    monkeypatch.setattr(facts, "_noted", {})
    monkeypatch.setattr(facts, "_is_looked_at", False)
    monkeypatch.delenv("GPUFLEET_GPU_MEMORY_BYTES", raising=False)
    monkeypatch.delenv("GPUFLEET_CPUS_PER_NODE", raising=False)
    return iter([None])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose drivers say what they have."""
    monkeypatch.setattr(facts, "cuda_device", lambda index: H200)


def built(monkeypatch: pytest.MonkeyPatch, **troubles: str | None) -> Build:
    build = Build(**troubles)
    monkeypatch.setitem(sys.modules, "onnxruntime", build)
    return build


def test_a_model_computes_on_the_real_onnx_runtime_and_says_where() -> None:
    pytest.importorskip("onnxruntime")
    found = session(one_node_model(), "cpu", threads=1)
    assert found.run({"x": np.array([1.0, 2.0], np.float32)})["y"].tolist() == [2.0, 4.0]
    said = found.facts
    assert (said.name, said.provider, said.device, said.passed_over) == ("onnxruntime", "cpu", "cpu", ())
    assert said.device_name and said.device_memory_bytes > 0 and not said.driver_version
    assert facts.runtimes_in_use() == (said,)
    assert found.raw.get_session_options().intra_op_num_threads == 1


def test_a_file_is_loaded_and_a_broken_one_is_named(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "twice.onnx").write_bytes(one_node_model())
    assert session(tmp_path / "twice.onnx").outputs == ("y",)
    (tmp_path / "broken.onnx").write_bytes(b"broken")
    with pytest.raises(ValueError, match=r"broken\.onnx cannot be loaded by ONNX Runtime"):
        session(tmp_path / "broken.onnx")
    with pytest.raises(FileNotFoundError, match=r"none\.onnx"):
        session(tmp_path / "none.onnx")


def test_the_first_provider_that_computes_is_taken_and_the_reasons_of_others_are_kept(
    monkeypatch: pytest.MonkeyPatch, gpu: None, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    build = built(monkeypatch, tensorrt="libnvinfer.so.10: cannot open shared object file", cuda=None)
    with caplog.at_level(logging.INFO):
        found = session(one_node_model(), "cuda:1")
    said = found.facts
    assert (said.provider, said.device, said.device_name) == ("cuda", "cuda:1", "NVIDIA H200")
    assert (said.device_memory_bytes, said.driver_version) == (150_000_000_000, "580.65")
    assert said.passed_over == ("tensorrt: libnvinfer.so.10: cannot open shared object file",)
    assert build.made[-1] == {"cuda": {"device_id": "1"}, "cpu": {}}
    assert "tensorrt does not work here and is passed over: libnvinfer.so.10" in caplog.text
    assert "onnxruntime 1.0, cuda on cuda:1 (NVIDIA H200, driver 580.65)" in caplog.text
    assert build.preloaded == 2 and capsys.readouterr().out == ""


def test_a_provider_that_is_listed_and_silently_left_out_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch, cuda="left out")
    said = session(one_node_model(), "cuda:0").facts
    assert said.provider == "cpu"
    assert said.passed_over == ("cuda: ONNX Runtime left it out; its own words are in the log",)


def test_the_library_that_is_wanting_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "capi").mkdir()
    (tmp_path / "capi" / "libonnxruntime_providers_cuda.so").write_bytes(b"not a library")
    build = built(monkeypatch, cuda="left out")
    monkeypatch.setattr(build, "__file__", str(tmp_path / "__init__.py"), raising=False)
    (reason,) = session(one_node_model(), "cuda:0").facts.passed_over
    assert reason.startswith("cuda: ") and "libonnxruntime_providers_cuda.so" in reason


@pytest.mark.parametrize(
    "device, built_with, gets",
    [
        ("auto", ("directml",), ("directml", "directml:0")),
        ("auto", ("coreml",), ("coreml", "coreml")),
        ("auto", ("openvino",), ("openvino", "openvino")),
        ("auto", ("migraphx",), ("migraphx", "cuda:0")),
        ("cuda:0", ("coreml",), ("cpu", "cpu")),
        ("cuda:2", ("rocm",), ("rocm", "cuda:2")),
        ("cpu", ("cuda",), ("cpu", "cpu")),
    ],
)
def test_a_device_names_the_providers_that_drive_it(
    monkeypatch: pytest.MonkeyPatch, gpu: None, device: str, built_with: tuple[str, ...], gets: tuple[str, str]
) -> None:
    built(monkeypatch, **dict.fromkeys(built_with))
    said = session(one_node_model(), device).facts
    assert (said.provider, said.device) == gets


def test_a_gpu_that_the_build_cannot_use_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch)
    said = session(one_node_model(), "cuda:0").facts
    assert said.provider == "cpu" and "this build of ONNX Runtime has no provider for a GPU" in said.passed_over[0]
    assert not finds_gpu()
    built(monkeypatch, cuda=None)
    assert finds_gpu()


@pytest.mark.parametrize(
    "limit, share, bytes_",
    [
        ("4GB", "", 4_000_000_000),
        (1_000, "5", 1_000),
        (None, "20000000000", 20_000_000_000),
        (0, "5", 0),
        (None, "", 0),
    ],
)
def test_memory_is_bounded_as_asked_or_by_the_jobs_share(
    monkeypatch: pytest.MonkeyPatch, gpu: None, limit: int | str | None, share: str, bytes_: int
) -> None:
    monkeypatch.setenv("GPUFLEET_GPU_MEMORY_BYTES", share)
    build = built(monkeypatch, cuda=None)
    said = session(one_node_model(), "cuda:0", memory_limit=limit).facts
    assert said.memory_limit_bytes == bytes_
    assert build.made[-1]["cuda"].get("gpu_mem_limit", "0") == str(bytes_)
    built(monkeypatch, directml=None)
    assert session(one_node_model(), memory_limit=limit).facts.memory_limit_bytes == 0


def test_threads_are_at_most_the_jobs_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    build = built(monkeypatch)
    monkeypatch.setattr("gpufleet.devices.host.cpus_available", lambda root=Path("/"): 8)
    for told, asked, threads in (("3", None, 3), ("64", None, 8), ("", None, 8), ("3", 5, 5)):
        monkeypatch.setenv("GPUFLEET_CPUS_PER_NODE", told)
        session(one_node_model(), "cpu", threads=asked)
        assert build.settings[-1].intra_op_num_threads == threads


def test_options_reach_their_provider_and_tensorrt_has_cuda_behind_it(
    monkeypatch: pytest.MonkeyPatch, gpu: None
) -> None:
    build = built(monkeypatch, tensorrt=None, cuda=None)
    session(one_node_model(), "cuda:1", options={"tensorrt": {"trt_fp16_enable": "1"}}, memory_limit=7)
    made = build.made[-1]
    assert list(made) == ["tensorrt", "cuda", "cpu"]
    assert made["tensorrt"] == {"device_id": "1", "trt_max_workspace_size": "7", "trt_fp16_enable": "1"}
    assert made["cuda"]["gpu_mem_limit"] == "7"


@pytest.mark.parametrize(
    "given, words",
    [
        ({"device": "gpu"}, 'device: "gpu" is neither auto nor cpu nor cuda:0'),
        ({"providers": ("nvidia",)}, 'providers: "nvidia" is none of tensorrt, cuda'),
        ({"options": {"nvidia": {}}}, 'providers: "nvidia" is none of'),
        ({"memory_limit": "much"}, "memory_limit: "),
        ({"memory_limit": -1}, "memory_limit: -1 is less than nothing"),
        ({"threads": 0}, "threads: 0 is less than 1"),
    ],
)
def test_a_wrong_argument_is_named(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], words: str) -> None:
    built(monkeypatch)
    with pytest.raises(ValueError) as refused:
        session(one_node_model(), **given)
    assert str(refused.value).startswith(words)


def test_where_no_named_provider_works_all_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch, cuda="no CUDA-capable device is detected")
    with pytest.raises(GpufleetError) as refused:
        session(one_node_model(), providers=("tensorrt", "cuda"))
    assert refused.value.reason is Reason.MODEL_NOT_LOADED
    assert "tensorrt: this build of ONNX Runtime (1.0) has it not; cuda: no CUDA-capable" in refused.value.message
    assert "gpuctl providers" in refused.value.next_step


def test_without_onnx_runtime_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(GpufleetError) as refused:
        session(one_node_model())
    assert refused.value.reason is Reason.EXTRA_MISSING
    assert refused.value.next_step == "Install it with: pip install 'gpufleet[onnx]'"


class Torch:
    """As much of torch as is asked; its CUDA has a context where `is_on`."""

    __version__ = "2.0+cu130"

    def __init__(self, is_on: bool, hip: str | None = None) -> None:
        said = type("Said", (), {"name": "NVIDIA H200", "total_memory": 7})
        self.version = type("Version", (), {"hip": hip, "cuda": "13.0"})
        self.cuda: Any = type("Cuda", (), {})()
        self.cuda.is_initialized = lambda: is_on
        self.cuda.current_device = lambda: 3
        self.cuda.get_device_properties = lambda index: said


def test_torch_is_told_with_its_device_where_it_computes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(facts, "nvidia_driver_version", lambda: "580.65")
    monkeypatch.setitem(sys.modules, "torch", Torch(is_on=True))
    (said,) = facts.runtimes_in_use("cuda:1")
    assert (said.name, said.provider, said.device, said.device_memory_bytes) == ("torch", "cuda", "cuda:1", 7)
    assert said.in_words() == "torch 2.0+cu130, cuda:1 (NVIDIA H200, driver 580.65)"
    assert facts.runtimes_in_use()[0].device == "cuda:3"
    monkeypatch.setitem(sys.modules, "torch", Torch(is_on=False))
    assert facts.runtimes_in_use("cuda:1")[0].provider == "cpu"
    monkeypatch.setattr(facts, "_is_looked_at", False)
    facts.torch_was_looked_at()  # by nobody else
    assert not facts.runtimes_in_use("cpu")
    built(monkeypatch)
    session(one_node_model())
    assert [each.name for each in facts.runtimes_in_use("cuda:0")] == ["onnxruntime"]
    monkeypatch.setitem(sys.modules, "torch", None)
    assert [each.name for each in facts.runtimes_in_use("cuda:0")] == ["onnxruntime"]


class Cuda:
    """A driver's library with one device."""

    def __init__(self, code: int = 0) -> None:
        self.cuInit = self.cuDeviceGet = lambda *given: code
        self.hipDeviceGetName = self.cuDeviceGetName

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceTotalMem_v2(self, size: Any, device: Any) -> int:
        size._obj.value = 42
        return 0

    hipDeviceTotalMem = cuDeviceTotalMem_v2


def test_a_driver_is_asked_for_name_memory_and_version(tmp_path: Path) -> None:
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    (tmp_path / "sys/module/nvidia/version").write_text("580.65.06\n")
    found = drivers.cuda_device(0, lambda name: Cuda(), tmp_path)
    assert found == Hardware(name="NVIDIA H200", memory_bytes=42, driver_version="580.65.06")
    assert drivers.hip_device(0, lambda name: Cuda(), tmp_path).memory_bytes == 42
    assert drivers.cuda_device(0, lambda name: Cuda(100), tmp_path) == Hardware(driver_version="580.65.06")

    def missing(name: str) -> Any:
        raise OSError(name)

    assert drivers.cuda_device(0, missing, tmp_path).name == ""
    assert drivers.hip_device(0, missing, tmp_path) == Hardware()


def test_onnx_runtime_tells_nobody_what_it_runs_and_leaves_no_file(tmp_path: Path) -> None:
    """From 1.29 on it does by default, from the moment that it is imported."""
    pytest.importorskip("onnxruntime")
    code = "from gpufleet.onnx import session; from gpufleet.runtimes.probe import one_node_model as m; session(m())"
    environment = clean_environment(tmp_path, {"HOME": str(tmp_path)})
    environment = {name: value for name, value in environment.items() if name not in ("CI", TELEMETRY_VARIABLE)}
    subprocess.run([sys.executable, "-P", "-c", code], check=True, env=environment)
    assert not [each for each in tmp_path.rglob("*") if "onnxruntime" in each.name]
