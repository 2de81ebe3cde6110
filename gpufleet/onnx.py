"""Models of ONNX, on the best that is really there: `pip install 'gpufleet[onnx]'`. docs/predict.md serves a file.

    from gpufleet.onnx import session

    class Doubler:
        def load(self, device: str):
            self.net = session("doubler.onnx", device)       # says in the log what it computes on
        def predict(self, items):
            return list(self.net.run({"x": np.stack(items)})["y"])

A file that needs no class is served as it is: `gpuctl serve gpufleet.onnx:OnnxModel --predict --model-arg file=…`.

**What it gets.** Providers are tried in the order of `PROVIDERS`: one that ONNX Runtime lists is taken only once it has
computed a model of one node and has loaded the file. What fails is passed over and its reason kept; the CPU is last.
`gpuctl providers` tries the same, each in a process of its own.

Another build of ONNX Runtime (onnxruntime-gpu, onnxruntime-directml …) takes the place of
the one that the extra brings.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import GpufleetError, Reason
from .predict import TensorSpec
from .runtimes.drivers import Hardware
from .runtimes.facts import RuntimeFacts, hardware_of, note, of_hardware
from .runtimes.probe import PROVIDERS, computes, one_line, send_no_telemetry, why_not_loaded
from .text.units import parse_size

if TYPE_CHECKING:
    from .predict import Item, Result

_log = logging.getLogger(__name__)

DEVICE = re.compile(r"auto|cpu|cuda:(\d{1,3})")

OF_CUDA_DEVICES = ("tensorrt", "cuda", "migraphx", "rocm", "directml", "cpu")
"""What "cuda:0" may mean: the GPU of this number, by whichever provider drives it; and the CPU, where none does."""

LIMITS = {
    "tensorrt": "trt_max_workspace_size",
    "cuda": "gpu_mem_limit",
    "rocm": "gpu_mem_limit",
    "migraphx": "migraphx_mem_limit",
}
"""The option of each provider that bounds the device's memory; others have none."""

DATATYPES_OF = {
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}".upper() for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "tensor(bool)": "BOOL",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
}
"""ONNX Runtime's names of types, and those of the Open Inference Protocol."""

SHARE_VARIABLE = "GPUFLEET_GPU_MEMORY_BYTES"
CPUS_VARIABLE = "GPUFLEET_CPUS_PER_NODE"


@dataclass(frozen=True, slots=True)
class OnnxSession:
    """A model that is ready: `raw` is ONNX Runtime's own session, `facts` says what it computes on.

    `inputs` and `outputs` are the names that the file gives them, in its order.
    """

    raw: Any
    facts: RuntimeFacts
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    def run(self, inputs: Mapping[str, Any], outputs: Sequence[str] = ()) -> dict[str, Any]:
        """Compute `outputs` (all, unless named) of NumPy arrays by input; answers arrays by output."""
        names = list(outputs or self.outputs)
        return dict(zip(names, self.raw.run(names, dict(inputs)), strict=True))


def session(
    model: str | os.PathLike[str] | bytes,
    device: str = "auto",
    *,
    providers: Sequence[str] = (),
    memory_limit: int | str | None = None,
    threads: int | None = None,
    options: Mapping[str, Mapping[str, str]] | None = None,
) -> OnnxSession:
    """Load a model of ONNX, a file or its bytes, on the best provider that works here.

    `device` is "auto" (anything), "cpu", or as torch writes it, "cuda:0": that GPU by whatever drives it, and the CPU
    where nothing does. `providers` names those to try in place of that, in their order, such as ("cuda",): without
    "cpu" among them it raises where none works. `memory_limit` bounds what is taken of a GPU's memory (bytes, or
    "4GB"); by default the share of a job that has one, else nothing. `threads` of the CPU: by default the CPUs of the
    job, at most those that this process may use. `options` go to ONNX Runtime, by provider:
    {"tensorrt": {"trt_engine_cache_enable": "1"}}.

    Raises FileNotFoundError; ValueError for what is wrong with an argument or the file; GpufleetError where ONNX
    Runtime is not installed, or no provider works.
    """
    if not isinstance(model, bytes) and not Path(model).is_file():
        raise FileNotFoundError(2, "No such file", os.fspath(model))
    index = _index(device)
    runtime = _runtime()
    wanted = _wanted(device, providers, options or {}, runtime.get_available_providers())
    limit = _limit(memory_limit)
    settings = runtime.SessionOptions()
    settings.intra_op_num_threads = _threads(threads)
    settings.inter_op_num_threads = 1
    passed_over: list[str] = []
    if device.startswith("cuda") and wanted == ["cpu"] and not providers:
        passed_over.append(f"{device}: this build of ONNX Runtime has no provider for a GPU; see gpuctl providers")
        _log.warning("ONNX Runtime: %s", passed_over[0])
    said = {name: {**_options(name, index, limit), **(options or {}).get(name, {})} for name in PROVIDERS}
    for name in wanted:
        try:
            raw = _tried(runtime, model, name, said, settings)
        except Exception as problem:
            if name == "cpu":
                what = "the model" if isinstance(model, bytes) else os.fspath(model)
                raise ValueError(f"{what} cannot be loaded by ONNX Runtime: {one_line(problem)}") from problem
            passed_over.append(f"{name}: {one_line(problem)}")
            _log.warning("ONNX Runtime: %s does not work here and is passed over: %s", name, one_line(problem))
            continue
        facts = _facts(runtime, name, index, limit if name in LIMITS else 0, passed_over)
        if limit and name not in LIMITS and name != "cpu":
            _log.warning("ONNX Runtime: %s cannot bound the device's memory", name)
        note(facts)
        _log.info("%s", facts.in_words())
        return OnnxSession(
            raw, facts, tuple(each.name for each in raw.get_inputs()), tuple(each.name for each in raw.get_outputs())
        )
    raise GpufleetError(
        Reason.MODEL_NOT_LOADED,
        f"no provider of ONNX Runtime works here: {'; '.join(passed_over)}",
        next_step="See gpuctl providers for what is missing, or add cpu to the providers.",
    )


def finds_gpu() -> bool:
    """Whether ONNX Runtime is here and built for a GPU that it numbers as torch does; loads it to find out."""
    if importlib.util.find_spec("onnxruntime") is None:
        return False
    send_no_telemetry()
    try:
        import onnxruntime
    except Exception:  # an installation that is broken says so where a model wants it
        return False
    listed = onnxruntime.get_available_providers()
    return any(PROVIDERS[name] in listed for name in OF_CUDA_DEVICES if name != "cpu")


class OnnxModel:
    """Answers requests with a file of ONNX as it is: `file`, on the `providers` that are named, separated by commas.

    Inputs and outputs are those of the file, without the first number of their shapes, which is that of the items.
    """

    max_batch = 0

    def load(self, device: str, file: str, providers: str = "", memory_limit: str = "") -> None:
        """Load the file; see `session`. Raises ValueError for one that does not take any number of items, or one."""
        names = [each for each in providers.split(",") if each]
        self.net = session(file, device, providers=names, memory_limit=memory_limit or None)
        taken, given = self.net.raw.get_inputs(), self.net.raw.get_outputs()
        for each in taken:
            if not each.shape or (isinstance(each.shape[0], int) and each.shape[0] != 1):
                raise ValueError(f"input {each.name} of {file} has the shape {each.shape}, which is not one of items")
            self.max_batch = 1 if each.shape[0] == 1 else self.max_batch
        self.inputs = [_spec(each) for each in taken]
        is_known = all(each.type in DATATYPES_OF for each in given)
        self.outputs = [_spec(each) for each in given] if is_known else []  # else results say what they are

    def predict(self, items: list[Item]) -> list[Result]:
        """The outputs of each item."""
        import numpy as np

        names = self.net.inputs
        by_name = [item if isinstance(item, dict) else {names[0]: item} for item in items]
        found = self.net.run({name: np.stack([item[name] for item in by_name]) for name in names})
        return [{name: values[place] for name, values in found.items()} for place in range(len(items))]


def _spec(tensor: Any) -> TensorSpec:
    """What the file says of an input or an output, of one item. Raises ValueError for a type that has no datatype."""
    if tensor.type not in DATATYPES_OF:
        raise ValueError(f"{tensor.name} is of the type {tensor.type}, which no request can hold")
    return TensorSpec(
        tensor.name,
        DATATYPES_OF[tensor.type],
        tuple(each if isinstance(each, int) and each >= 0 else -1 for each in tensor.shape[1:]),
    )


def _runtime() -> Any:
    send_no_telemetry()
    try:
        import onnxruntime
    except ImportError as problem:
        raise GpufleetError(
            Reason.EXTRA_MISSING,
            f"a model of ONNX needs ONNX Runtime, which cannot be imported: {one_line(problem)}",
            next_step="Install it with: pip install 'gpufleet[onnx]'",
        ) from problem
    return onnxruntime


def _index(device: str) -> int:
    found = DEVICE.fullmatch(device)
    if found is None:
        raise ValueError(f'device: "{device}" is neither auto nor cpu nor cuda:0')
    return int(found[1] or 0)


def _wanted(device: str, providers: Sequence[str], options: Mapping[str, Any], listed: Sequence[str]) -> list[str]:
    """The providers to try, in their order."""
    known = ", ".join(PROVIDERS)
    for name in (*providers, *options):
        if name not in PROVIDERS:
            raise ValueError(f'providers: "{name}" is none of {known}')
    if providers:
        return list(dict.fromkeys(providers))
    of_device = ("cpu",) if device == "cpu" else OF_CUDA_DEVICES if device != "auto" else tuple(PROVIDERS)
    return [name for name in of_device if PROVIDERS[name] in listed]


def _limit(memory_limit: int | str | None) -> int:
    """In bytes; 0 for none."""
    if memory_limit is None:
        told = os.environ.get(SHARE_VARIABLE, "")
        return int(told) if told.isascii() and told.isdigit() else 0
    if isinstance(memory_limit, str):
        try:
            return parse_size(memory_limit)
        except GpufleetError as problem:
            raise ValueError(f"memory_limit: {problem.message}") from None
    if memory_limit < 0:
        raise ValueError(f"memory_limit: {memory_limit} is less than nothing")
    return memory_limit


def _threads(threads: int | None) -> int:
    from .devices.host import cpus_available

    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads: {threads} is less than 1")
        return threads
    told = os.environ.get(CPUS_VARIABLE, "")
    most = cpus_available()
    return min(most, max(1, int(told))) if told.isascii() and told.isdigit() else most


def _options(name: str, index: int, limit: int) -> dict[str, str]:
    said: dict[str, str] = {}
    if name in OF_CUDA_DEVICES and name != "cpu":
        said["device_id"] = str(index)
    if limit and name in LIMITS:
        said[LIMITS[name]] = str(limit)
        if name in ("cuda", "rocm"):
            said["arena_extend_strategy"] = "kSameAsRequested"  # to double would pass the bound long before it is met
        if name == "migraphx":
            said["migraphx_arena_extend_strategy"] = "kSameAsRequested"
    return said


def _tried(runtime: Any, model: Any, name: str, said: Mapping[str, dict[str, str]], settings: Any) -> Any:
    """A session that computes there. Raises why it does not."""
    if PROVIDERS[name] not in runtime.get_available_providers():
        raise RuntimeError(f"this build of ONNX Runtime ({runtime.__version__}) has it not")
    if name != "cpu":
        computes(runtime, name, said[name])
    settings.enable_mem_pattern = name != "directml"  # it takes none
    chosen: list[Any] = [(PROVIDERS[name], said[name])]
    if name == "tensorrt" and PROVIDERS["cuda"] in runtime.get_available_providers():
        chosen.append((PROVIDERS["cuda"], said["cuda"]))
    if name != "cpu":
        chosen.append(PROVIDERS["cpu"])  # for single nodes that the provider lacks
    source = model if isinstance(model, bytes) else os.fspath(model)
    raw = runtime.InferenceSession(source, settings, providers=chosen)
    if PROVIDERS[name] not in raw.get_providers():
        raise RuntimeError(why_not_loaded(runtime, name))
    return raw


def _facts(runtime: Any, name: str, index: int, limit: int, passed_over: Sequence[str]) -> RuntimeFacts:
    gives_number = name in OF_CUDA_DEVICES and name not in ("cpu", "directml")
    device = f"cuda:{index}" if gives_number else f"directml:{index}" if name == "directml" else name
    hardware: Hardware = hardware_of(name, index)
    facts = of_hardware("onnxruntime", str(runtime.__version__), name, device, hardware)
    return replace(facts, memory_limit_bytes=limit, passed_over=tuple(passed_over))
