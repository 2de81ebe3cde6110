"""From a class to a model that is warm, on the model's thread: loaded, tried with items, its batch size found."""

from __future__ import annotations

import inspect
import logging
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpufleet.model import Progress
from gpufleet.predict import Item, PredictTraits, TensorSpec, traits_of
from gpufleet.runtimes.facts import RuntimeFacts, runtimes_in_use

from ..core.batch_size import SIZE_FIRST, SizeSearch
from ..loading import NotLoaded, Wanted, arguments_for, best_device, class_of, last_line, let_go, tried, words_of
from .tensors import DTYPES

MEASURE_S = 0.25
MEASURED_RUNS_MAX = 50
"""A batch size is measured by batches one after the other, for so long or so many; at least two."""

LENGTH_UNKNOWN = 1
"""How long items of zeros are where the class says any length."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A model that is warm: what it says of itself, its device in words (empty: it takes none), its batch size, and
    what it computes with.
    """

    model: Any
    traits: PredictTraits
    device: str
    batch_max: int
    runtimes: tuple[RuntimeFacts, ...] = ()


def load(wanted: Wanted, batch_max: int | None, progress: Progress) -> Ready:
    """Import, make, load and warm up; `batch_max` None finds the batch size. Raises NotLoaded."""
    progress(0.0, f"importing {wanted.entry_point}")
    factory = class_of(wanted.entry_point)
    model = tried(factory)
    traits = tried(lambda: traits_of(model))
    # To look for one loads torch, which takes seconds: only for who asks.
    takes_device = tried(lambda: "device" in inspect.signature(model.load).parameters)
    device = wanted.device or (best_device() if takes_device else "")
    chosen = Wanted(entry_point=wanted.entry_point, arguments=wanted.arguments, device=device)
    arguments = arguments_for(model.load, chosen, progress, whole="args")
    progress(0.1, f"loading on {device}" if device else "loading")
    tried(lambda: model.load(**arguments))
    traits = tried(lambda: traits_of(model))  # what a file says of itself is known only now
    progress(0.9, "warming up")
    most = min(batch_max or SIZE_FIRST, traits.max_batch or sys.maxsize)
    _warm_up(model, traits, most)
    if batch_max is None:
        progress(0.95, "finding the batch size")
        most = find_size(model, traits)
    progress(1.0, "")
    runtimes = runtimes_in_use(device)
    return Ready(model=model, traits=traits, device=in_words(device, runtimes), batch_max=most, runtimes=runtimes)


def in_words(device: str, runtimes: Sequence[RuntimeFacts] = ()) -> str:
    """A device as torch writes it, with what it is where torch knows: `cuda:0 (NVIDIA H200, CUDA 13.0)`.

    A model that computes with ONNX Runtime alone is where that is, whatever it was given.
    """
    if runtimes and all(each.name == "onnxruntime" for each in runtimes):
        first = runtimes[0]
        about = f"{first.device_name}, {first.provider}" if first.device_name else first.provider
        return first.device if first.device == "cpu" else f"{first.device} ({about})"
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda"):
        return device
    try:
        name = torch.cuda.get_device_name(device)
    except Exception:  # a device that is not there, or a torch without any
        return device
    hip = getattr(torch.version, "hip", None)
    return f"{device} ({name}, {f'ROCm {hip}' if hip else f'CUDA {torch.version.cuda}'})"


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether a model raised for want of memory: Python's, or a device's as torch says it."""
    if isinstance(problem, MemoryError):
        return True
    kinds = {kind.__name__ for kind in type(problem).__mro__}
    return "OutOfMemoryError" in kinds or ("RuntimeError" in kinds and "out of memory" in words_of(problem))


def find_size(model: Any, traits: PredictTraits, clock: Callable[[], float] = time.perf_counter) -> int:
    """How many items a batch is to hold, by measuring. Raises NotLoaded where there are no items to measure with."""
    examples = _examples(traits)
    if not examples:
        raise NotLoaded(
            "--max-batch auto needs items to measure with: give the class examples, a list of items, or inputs with "
            "their shapes"
        )
    search = SizeSearch()
    while (size := search.size) is not None and size <= (traits.max_batch or size):
        rate = _rate(model, _many(examples, size), clock)
        if rate is None:
            _log.info("batches of %d do not fit into memory", size)
            search.out_of_memory()
        else:
            _log.info("batches of %d give %.0f items a second", size, rate)
            search.measured(rate)
    return min(search.best, traits.max_batch or search.best)


def _rate(model: Any, items: list[Item], clock: Callable[[], float]) -> float | None:
    """Items a second in batches of these; None where they do not fit into memory. The first batch is not counted."""
    runs, began = -1, 0.0
    try:
        while runs < 2 or (clock() - began < MEASURE_S and runs < MEASURED_RUNS_MAX):
            model.predict(list(items))
            runs += 1
            if not runs:
                began = clock()
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise NotLoaded(f"finding the batch size: {last_line(problem)}") from problem
        let_go(problem)
        return None
    return runs * len(items) / max(clock() - began, 1e-9)


def _warm_up(model: Any, traits: PredictTraits, most: int) -> None:
    """One item, and then a whole batch: what is compiled or allocated at the first call is so before anybody asks."""
    if callable(warm_up := getattr(model, "warm_up", None)):
        tried(warm_up)
        return
    if not (examples := _examples(traits)):
        _log.info(
            "the class has neither warm_up nor examples, and says no shapes: the first request is its first batch"
        )
        return
    for size in dict.fromkeys((1, most)):
        try:
            model.predict(_many(examples, size))
        except Exception as problem:
            if traits.examples and not is_out_of_memory(problem):
                raise NotLoaded(f"warming up with examples: {last_line(problem)}") from problem
            _log.warning("warming up with %d items of zeros raised: %s", size, last_line(problem))
            let_go(problem)


def _examples(traits: PredictTraits) -> list[Item]:
    """The class's own items, or one of zeros where its inputs say what that is."""
    if traits.examples:
        return list(traits.examples)
    if not traits.inputs or any(spec.datatype in ("BYTES", "JSON") for spec in traits.inputs):
        return []
    zeros = {spec.name: _zeros(spec) for spec in traits.inputs}
    return [zeros if len(zeros) > 1 else zeros[traits.inputs[0].name]]


def _zeros(spec: TensorSpec) -> Any:
    shape = [LENGTH_UNKNOWN if each == -1 else each for each in spec.shape]
    return np.zeros(shape, DTYPES[spec.datatype])[()]


def _many(examples: list[Item], size: int) -> list[Item]:
    return [examples[number % len(examples)] for number in range(size)]
