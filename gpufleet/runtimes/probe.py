"""What an interpreter can compute with, tried for real: `python probe.py python | torch | onnxruntime | PROVIDER`.

It knows nothing but the standard library, so that also an interpreter without gpufleet runs it, and prints one line of
JSON behind MARK. `looking.py` runs it once for each thing: a driver that crashes or hangs takes nothing with it.
"""

import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterable
from contextlib import redirect_stdout, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

MARK = "gpufleet-probe: "

PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "directml": "DmlExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
"""Providers of ONNX Runtime by the names that people type, in the order in which they are tried."""

OF_PREDICT = ("numpy", "starlette", "uvicorn")
"""What a replica of a class imports, of gpufleet[predict]."""


TELEMETRY_VARIABLE = "ORT_DISABLE_TELEMETRY"


def send_no_telemetry() -> None:
    """Let ONNX Runtime, from 1.29 on, neither tell its makers what it runs nor keep a file for that; unless somebody
    said otherwise in the variable. It is read when onnxruntime is first imported.
    """
    os.environ.setdefault(TELEMETRY_VARIABLE, "1")


def one_node_model() -> bytes:
    """A model of ONNX with one node: y = x + x, of any number of float32."""
    shape = _field(2, _field(1, _number(1, 1) + _field(2, _field(1, _field(2, b"n")))))
    node = _field(1, b"x") + _field(1, b"x") + _field(2, b"y") + _field(4, b"Add")
    graph = _field(1, node) + _field(2, b"twice") + _field(11, _field(1, b"x") + shape)
    graph += _field(12, _field(1, b"y") + shape)
    return _number(1, 8) + _field(8, _number(2, 13)) + _field(7, graph)  # IR version 8, operators of version 13


def _number(field: int, value: int) -> bytes:
    return bytes([field << 3, value])


def _field(field: int, value: bytes) -> bytes:
    assert len(value) < 128
    return bytes([field << 3 | 2, len(value)]) + value


def computes(runtime: Any, provider: str, options: dict[str, str]) -> None:
    """Let the provider compute the model of one node. Raises what is wrong; RuntimeError where it was left out."""
    import numpy as np

    _find_libraries(runtime, provider)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    session = runtime.InferenceSession(one_node_model(), settings, providers=[(PROVIDERS[provider], options)])
    if PROVIDERS[provider] not in session.get_providers():
        raise RuntimeError(why_not_loaded(runtime, provider))
    (found,) = session.run(None, {"x": np.array([1.5, -2.0], np.float32)})
    if found.tolist() != [3.0, -4.0]:
        raise RuntimeError(f"1.5 + 1.5 and -2 + -2 are {found.tolist()} there")


def _find_libraries(runtime: Any, provider: str) -> None:
    """Load CUDA and cuDNN from the wheels that brought them, which no search path names."""
    if provider in ("cuda", "tensorrt") and hasattr(runtime, "preload_dlls"):
        with suppress(Exception), redirect_stdout(io.StringIO()):  # it prints what it does not find
            runtime.preload_dlls()


def why_not_loaded(runtime: Any, provider: str) -> str:
    """Why ONNX Runtime left a provider out; it says so in its log only, so that its library is loaded once more."""
    import ctypes

    folder = Path(runtime.__file__).parent / "capi"
    for library in sorted(folder.glob(f"*onnxruntime_providers_{provider}.*")):
        try:
            ctypes.CDLL(str(library))
        except OSError as problem:
            return one_line(problem)
    return "ONNX Runtime left it out; its own words are in the log"


def one_line(problem: BaseException) -> str:
    """What an exception says, on one line of bounded length."""
    text = " ".join(str(problem).split()) or type(problem).__name__
    return text if len(text) <= 300 else f"{text[:300]}…"


def _python() -> dict[str, object]:
    return {
        "path": sys.executable,
        "version": sys.version.partition(" ")[0],
        "gpufleet_version": _version("gpufleet"),
        "is_missing": [name for name in OF_PREDICT if importlib.util.find_spec(name) is None],
    }


def _torch() -> dict[str, object]:
    if importlib.util.find_spec("torch") is None:
        return {"is_there": False}
    import torch

    hip = getattr(torch.version, "hip", None)
    backend = "rocm" if hip else "cuda" if torch.version.cuda else "cpu"
    devices = [_device(torch, index) for index in range(torch.cuda.device_count())] if backend != "cpu" else []
    return {
        "is_there": True,
        "version": str(torch.__version__),
        "backend": backend,
        "backend_version": str(hip or torch.version.cuda or ""),
        "devices": devices,
    }


def _device(torch: Any, index: int) -> dict[str, object]:
    try:
        said = torch.cuda.get_device_properties(index)
        two = torch.ones(2, device=f"cuda:{index}") + 1
        problem = "" if two.tolist() == [2.0, 2.0] else f"1 + 1 is {two.tolist()[0]} there"
        return {"index": index, "name": said.name, "memory_bytes": said.total_memory, "problem": problem}
    except Exception as problem:
        return {"index": index, "name": "", "memory_bytes": 0, "problem": one_line(problem)}


def _onnxruntime() -> dict[str, object]:
    if importlib.util.find_spec("onnxruntime") is None:
        return {"is_there": False}
    import onnxruntime

    listed = onnxruntime.get_available_providers()
    return {
        "is_there": True,
        "version": str(onnxruntime.__version__),
        "packages": sorted(_distributions("onnxruntime")),
        "providers": [name for name, long in PROVIDERS.items() if long in listed],
    }


def _provider(name: str) -> dict[str, object]:
    import onnxruntime

    try:
        computes(onnxruntime, name, {})
    except Exception as problem:
        return {"problem": one_line(problem)}
    return {"problem": ""}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _distributions(beginning: str) -> Iterable[str]:
    names = {str(each.metadata["Name"] or "").lower() for each in metadata.distributions()}
    return {name for name in names if name == beginning or name.startswith(f"{beginning}-")}


def main() -> None:
    """Find out what the one argument names, and print it."""
    what = sys.argv[1]
    send_no_telemetry()
    found = {"python": _python, "torch": _torch, "onnxruntime": _onnxruntime}
    answer = found[what]() if what in found else _provider(what)
    sys.stdout.write(f"\n{MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if sys.path and Path(sys.path[0]) == Path(__file__).parent:
        sys.path.pop(0)  # the folder of this file, which is none to import from
    main()
