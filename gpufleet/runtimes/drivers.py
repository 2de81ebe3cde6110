"""What a GPU's driver says of it, asked through the driver's own library: the numbers are those that this process sees.

Where a runtime without torch computes, nothing else knows the name behind `cuda:0`. A machine without such a library
has nothing to say, which is no error.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..devices.host import host_facts

NAME_BYTES = 256

CUDA_LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
HIP_LIBRARY = "amdhip64.dll" if sys.platform == "win32" else "libamdhip64.so"

Loader = Callable[[str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A device: its name, memory in bytes (of the CPU, what this process may use), and its driver's version.

    What nobody says is empty, or 0.
    """

    name: str = ""
    memory_bytes: int = 0
    driver_version: str = ""


def cuda_device(index: int, load: Loader = ctypes.CDLL, root: Path = Path("/")) -> Hardware:
    """An NVIDIA GPU, by its number among those that this process sees."""
    with suppress(OSError, AttributeError):
        cuda = load(CUDA_LIBRARY)
        device, name, size = ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES), ctypes.c_size_t()
        failed = (
            cuda.cuInit(0)
            or cuda.cuDeviceGet(ctypes.byref(device), index)
            or cuda.cuDeviceGetName(name, NAME_BYTES, device)
            or cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device)
        )
        if not failed:
            return Hardware(
                name=name.value.decode(errors="replace"),
                memory_bytes=size.value,
                driver_version=nvidia_driver_version(root),
            )
    return Hardware(driver_version=nvidia_driver_version(root))


def hip_device(index: int, load: Loader = ctypes.CDLL, root: Path = Path("/")) -> Hardware:
    """An AMD GPU, likewise."""
    with suppress(OSError, AttributeError):
        hip = load(HIP_LIBRARY)
        name, size = ctypes.create_string_buffer(NAME_BYTES), ctypes.c_size_t()
        failed = hip.hipDeviceGetName(name, NAME_BYTES, index) or hip.hipDeviceTotalMem(ctypes.byref(size), index)
        if not failed:
            return Hardware(
                name=name.value.decode(errors="replace"),
                memory_bytes=size.value,
                driver_version=amd_driver_version(root),
            )
    return Hardware(driver_version=amd_driver_version(root))


def cpu(root: Path = Path("/")) -> Hardware:
    """This machine's CPU; it has no driver."""
    memory_bytes = 0
    with suppress(AttributeError, OSError, ValueError):  # no sysconf where there is no POSIX
        memory_bytes = host_facts(root=root).memory_bytes
    return Hardware(name=_cpu_name(root), memory_bytes=memory_bytes)


def nvidia_driver_version(root: Path = Path("/")) -> str:
    """As `nvidia-smi` prints it; of the kernel's module, else of NVML."""
    if said := _read(root / "sys/module/nvidia/version"):
        return said
    with suppress(Exception):  # no NVML here, or none that answers
        import pynvml

        pynvml.nvmlInit()
        try:
            return str(pynvml.nvmlSystemGetDriverVersion())
        finally:
            pynvml.nvmlShutdown()
    return ""


def amd_driver_version(root: Path = Path("/")) -> str:
    """Of the kernel's module amdgpu; the one that comes with the kernel has the kernel's."""
    if said := _read(root / "sys/module/amdgpu/version"):
        return said
    return platform.release() if (root / "sys/module/amdgpu").exists() else ""


def _cpu_name(root: Path) -> str:
    for line in _read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
