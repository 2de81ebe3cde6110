"""What this process has loaded to compute with, and on which device: for metadata, GetModelInfo and the log."""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from .drivers import Hardware, amd_driver_version, cpu, cuda_device, hip_device, nvidia_driver_version

RUNTIMES_MAX = 16
"""So many are told, each that differs from the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeFacts:
    """A library that computes here, and the device that it computes on.

    `name` is "torch" or "onnxruntime"; `provider` "cuda", "rocm" or "cpu", of ONNX Runtime any of its providers.
    `device` is as torch writes it, "cuda:0" (for ROCm, too), or the provider's own, "directml:0". It takes at most
    `memory_limit_bytes` of the device's memory, 0 without a limit. `passed_over` are the providers that were tried
    before and do not work here, each with its reason: "cuda: libcudnn.so.9: cannot open shared object file".
    """

    name: str
    version: str
    provider: str
    device: str
    device_name: str = ""
    device_memory_bytes: int = 0
    driver_version: str = ""
    memory_limit_bytes: int = 0
    passed_over: tuple[str, ...] = ()

    def in_words(self) -> str:
        """`onnxruntime 1.32.0, cuda on cuda:0 (NVIDIA H200, driver 580.65)`."""
        about = [self.device_name, f"driver {self.driver_version}" if self.driver_version else ""]
        if self.memory_limit_bytes:
            about.append(f"at most {self.memory_limit_bytes:,} bytes of its memory")
        inside = ", ".join(filter(None, about))
        where = f"{self.device} ({inside})" if inside else self.device
        by = where if self.device == self.provider or self.name == "torch" else f"{self.provider} on {where}"
        return f"{self.name} {self.version}, {by}"


_noted: dict[RuntimeFacts, None] = {}
_lock = threading.Lock()
_is_looked_at = False


def note(facts: RuntimeFacts) -> None:
    """A runtime has begun to compute here."""
    with _lock:
        if len(_noted) < RUNTIMES_MAX:
            _noted[facts] = None


def torch_was_looked_at() -> None:
    """Torch was imported to look for a GPU, and by no model: without a context on one it is not told."""
    global _is_looked_at
    _is_looked_at = True


def runtimes_in_use(device: str = "") -> tuple[RuntimeFacts, ...]:
    """What this process has loaded: sessions of ONNX Runtime that gpufleet.onnx opened; torch, where it has a context
    on a GPU, or where there are none and the model has imported it.

    `device` is the one that the model was given, as torch writes it. Never raises, and loads nothing.
    """
    with _lock:
        noted = tuple(_noted)
    torch = sys.modules.get("torch")
    if torch is not None:
        with suppress(Exception):  # a torch that is half loaded, or whose driver fails just now
            if torch.cuda.is_initialized() or not (noted or _is_looked_at):
                return (*noted, torch_facts(torch, device))
    return noted


def torch_facts(torch: Any, device: str = "") -> RuntimeFacts:
    """What torch computes on: a GPU where it has a context on one, else the CPU."""
    hip = getattr(torch.version, "hip", None)
    version = str(torch.__version__)
    if not torch.cuda.is_initialized():
        return of_cpu("torch", version)
    number = device.partition(":")[2] if device.startswith("cuda") else ""
    index = int(number) if number.isdigit() else torch.cuda.current_device()
    said = torch.cuda.get_device_properties(index)
    return RuntimeFacts(
        name="torch",
        version=version,
        provider="rocm" if hip else "cuda",
        device=f"cuda:{index}",
        device_name=str(said.name),
        device_memory_bytes=int(said.total_memory),
        driver_version=amd_driver_version() if hip else nvidia_driver_version(),
    )


def of_cpu(name: str, version: str) -> RuntimeFacts:
    """A runtime that computes on the CPU."""
    return of_hardware(name, version, "cpu", "cpu", cpu())


def of_hardware(name: str, version: str, provider: str, device: str, hardware: Hardware) -> RuntimeFacts:
    """A runtime that computes on this device."""
    return RuntimeFacts(
        name=name,
        version=version,
        provider=provider,
        device=device,
        device_name=hardware.name,
        device_memory_bytes=hardware.memory_bytes,
        driver_version=hardware.driver_version,
    )


def hardware_of(provider: str, index: int) -> Hardware:
    """The device behind a provider of ONNX Runtime."""
    if provider in ("tensorrt", "cuda"):
        return cuda_device(index)
    if provider in ("migraphx", "rocm"):
        return hip_device(index)
    return cpu() if provider == "cpu" else Hardware()


def as_object(facts: RuntimeFacts) -> dict[str, Any]:
    """For JSON."""
    return {**asdict(facts), "passed_over": list(facts.passed_over)}
