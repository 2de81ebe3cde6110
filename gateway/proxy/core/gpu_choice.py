"""Whether a request goes to a model or to its CPU model, by the mode that it asks for and by what it works on.

The words are those of jobs, and so is the table, which the scheduler tells: docs/gpu-or-cpu.md. A request that prefers
the GPU goes to the CPU where no GPU replica can come, where the line is long, or once it has waited for long; never the
other way. Rule: docs/rules/sessions.md 3.16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

MODE_HEADER, CONTENT_TYPE_HEADER = b"gpufleet-gpu-mode", b"gpufleet-content-type"
"""What a request says. Without the second, what it works on is its Content-Type."""

MODEL_SAID, MODE_SAID, FELL_BACK_SAID = b"gpufleet-model", b"gpufleet-gpu-mode", b"gpufleet-fell-back"
"""What the answer says: which model it is of, the mode that it was decided to, and why it is not the preferred one."""

NO_GPU_NODE, MODEL_DOWN = "NO_GPU_NODE", "MODEL_DOWN"
GPU_QUEUE_LONG, GPU_WAIT_OVER = "GPU_QUEUE_LONG", "GPU_WAIT_OVER"
"""Why a request falls back."""


class BadMode(ValueError):
    """A mode that a request cannot have: why, and what to say in its place."""

    def __init__(self, why: str, next_step: str) -> None:
        super().__init__(why)
        self.next_step = next_step


class GpuMode(StrEnum):
    """How a request takes GPUs."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    NEVER = "never"
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The scheduler's table: a mode for each pattern of content types, and when a request does without a GPU."""

    modes: Mapping[str, GpuMode] = field(default_factory=dict)
    gpu_wait_s: float = 60.0
    gpu_queue_limit: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """How it stands with a model: requests that wait for it here, and why no replica of it will take any."""

    waiting: int = 0
    why_none: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Where a request goes. `mode` is what it was decided to. `wait_s` is how long it waits before it falls back, None:
    it does not. `fell_back` is why it is not where it prefers to be; empty: it is."""

    is_gpu: bool
    mode: GpuMode
    wait_s: float | None = None
    fell_back: str = ""

    def after(self, why: str) -> Choice:
        """It falls back after all."""
        return replace(self, is_gpu=False, wait_s=None, fell_back=why)


def mode_of(text: str) -> GpuMode | None:
    """The mode that a header says; None where it says nothing. Raises BadMode."""
    text = text.strip().lower()
    if not text:
        return None
    if text not in tuple(GpuMode):
        step = "Say required, preferred, never or auto; docs/gpu-or-cpu.md says what each means."
        raise BadMode(f"{text[:40]!r} is no mode", step)
    return GpuMode(text)


def mode_for(content_type: str, routing: Routing) -> GpuMode:
    """What AUTO is for a content type: the longest pattern that matches decides, as it does of jobs."""
    plain = content_type.partition(";")[0].strip().lower()
    matching = [each for each in routing.modes if each == plain or (each[-1:] == "*" and plain.startswith(each[:-1]))]
    if not matching:
        return GpuMode.NEVER
    return routing.modes[max(matching, key=lambda each: (len(each.removesuffix("*")), each == plain))]


def choose(
    asked: GpuMode | None, default: GpuMode, content_type: str, line: Line, routing: Routing, *, cpu_model: str
) -> Choice:
    """Where a request goes. `default` is the model's, for one that asks for no mode; `cpu_model` is empty where there
    is none for whoever asks. Raises BadMode."""
    mode = asked or default
    if mode is GpuMode.AUTO:
        if content_type:
            mode = mode_for(content_type, routing)
        elif asked is None:
            mode = GpuMode.PREFERRED  # one that only looks has nothing to decide by
        else:
            step = "Say what it works on, as in: Gpufleet-Content-Type: audio/mpeg"
            raise BadMode("auto decides by the content type, and none is given", step)
    if mode is GpuMode.NEVER:
        if not cpu_model:
            step = "Serve it with one: gpuctl serve NAME --update --cpu-model NAME, or say preferred."
            raise BadMode("never needs a CPU model, and this one has none", step)
        return Choice(is_gpu=False, mode=mode)
    if mode is GpuMode.REQUIRED or not cpu_model:
        return Choice(is_gpu=True, mode=mode)
    choice = Choice(is_gpu=True, mode=mode, wait_s=routing.gpu_wait_s)
    if line.why_none:
        return choice.after(line.why_none)
    return choice.after(GPU_QUEUE_LONG) if line.waiting > routing.gpu_queue_limit else choice


def path_at(path: bytes, model: str, cpu_model: str) -> bytes:
    """The same path at the CPU model: the Open Inference Protocol has the model's name in it."""
    prefix = b"/v2/models/" + model.encode()
    if path == prefix or path.startswith(prefix + b"/"):
        return b"/v2/models/" + cpu_model.encode() + path[len(prefix) :]
    return path
