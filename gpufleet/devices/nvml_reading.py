"""One pass over one NVIDIA device: every counter by itself, so that a missing one costs no other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from .device import DeviceProcess, DeviceSample, Trouble, TroubleKind
from .nvml_energy import EnergyCount
from .nvml_trouble import ABSENT, GONE

T = TypeVar("T")
AbsentUntil: TypeAlias = dict[tuple[Any, ...], float]

PROCESSES_PER_DEVICE_MAX = 1024
FAILURES_NAMED_MAX = 3
ABSENT_S = 60.0
"""How long a counter that the device lacks is not asked for again: to be told so costs more than most counters do."""

# The reasons that slow a device down; idle, a clock the user chose and display clocks are no throttling.
THROTTLE_REASONS = {
    0x04: "sw_power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
}


class Reading:
    """Asks for counters, remembers what failed, and stops asking a device that is gone.

    `gone` is the NVML return code that said so; `failures` are errors that are no mere absence. `absent_until_s` is
    what earlier passes over the same device found absent, by call and what it asks for beside the
    device.
    """

    def __init__(self, nvml: Any, handle: Any = None, absent_until_s: AbsentUntil | None = None) -> None:
        self.nvml = nvml
        self.handle = handle
        self._absent_until_s = {} if absent_until_s is None else absent_until_s
        self.gone: int | None = None
        self.failures: list[str] = []
        self.has_answered = False

    def counter(self, call: Callable[..., T], *arguments: Any) -> T | None:
        """The counter, or None when it is absent, fails, or the device is gone."""
        if self.gone is not None or time.monotonic() < self._absent_until_s.get((call, *arguments[1:]), 0.0):
            return None
        try:
            value = call(*arguments)
        except self.nvml.NVMLError as error:
            if error.value in GONE:
                self.gone = error.value
            elif error.value not in ABSENT:
                self.failures.append(str(error))
            elif error.value == self.nvml.NVML_ERROR_NOT_SUPPORTED:
                self._absent_until_s[call, *arguments[1:]] = time.monotonic() + ABSENT_S
            return None
        except UnicodeDecodeError as error:
            self.failures.append(str(error))
            return None
        self.has_answered = True
        return value

    def first(self, calls: Sequence[Callable[..., T]], *arguments: Any) -> T | None:
        """The first of several ways to ask that this driver knows."""
        for call in calls:
            value = self.counter(call, *arguments)
            if value is not None:
                return value
        return None

    def memory(self) -> Any:
        """Total, used and free bytes; None on a device that shares the machine's memory."""
        ask, handle = self.nvml.nvmlDeviceGetMemoryInfo, self.handle
        # Version 2 keeps what the driver reserves apart from what is used.
        memory = self.counter(ask, handle, self.nvml.nvmlMemory_v2)
        return memory if memory is not None else self.counter(ask, handle)


def read_counters(reading: Reading, uuid: str, energy: EnergyCount) -> DeviceSample:
    """Everything that the device tells of itself now; troubles and XID are added by the caller."""
    nvml, handle, counter = reading.nvml, reading.handle, reading.counter
    memory = reading.memory()
    utilization = counter(nvml.nvmlDeviceGetUtilizationRates, handle)
    throttle = reading.first(
        (nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons), handle
    )
    power_mw = counter(nvml.nvmlDeviceGetPowerUsage, handle)
    return DeviceSample(
        uuid=uuid,
        memory_total_bytes=int(memory.total) if memory is not None else None,
        memory_used_bytes=int(memory.used) if memory is not None else None,
        memory_free_bytes=int(memory.free) if memory is not None else None,
        utilization_percent=int(utilization.gpu) if utilization is not None else None,
        memory_utilization_percent=int(utilization.memory) if utilization is not None else None,
        temperature_c=counter(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU),
        power_mw=power_mw,
        power_limit_mw=counter(nvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        energy_mj=energy.read(lambda: counter(nvml.nvmlDeviceGetTotalEnergyConsumption, handle), power_mw),
        clock_sm_mhz=counter(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
        clock_memory_mhz=counter(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
        fan_percent=counter(nvml.nvmlDeviceGetFanSpeed, handle),
        throttle_reasons=_throttle_reasons(throttle),
        ecc_uncorrected_count=counter(
            nvml.nvmlDeviceGetTotalEccErrors,
            handle,
            nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            nvml.NVML_VOLATILE_ECC,
        ),
        processes=_processes(reading),
    )


def troubles_now(reading: Reading) -> list[Trouble]:
    """What is wrong with the device at this moment, after its counters were read."""
    nvml, handle = reading.nvml, reading.handle
    remapped = reading.counter(nvml.nvmlDeviceGetRemappedRows, handle)
    retired_is_pending = reading.counter(nvml.nvmlDeviceGetRetiredPagesPendingStatus, handle)
    partitions = reading.counter(nvml.nvmlDeviceGetMigMode, handle)
    found = []
    if reading.gone is not None:
        found.append(Trouble(kind=TroubleKind.VANISHED, detail=GONE[reading.gone]))
    elif reading.failures and not reading.has_answered:
        named = ", ".join(dict.fromkeys(reading.failures[:FAILURES_NAMED_MAX]))
        found.append(Trouble(kind=TroubleKind.UNREADABLE, detail=f"no counter can be read: {named}"))
    if remapped is not None and remapped[3]:
        found.append(Trouble(kind=TroubleKind.ECC, detail="broken memory rows cannot be remapped; replace it"))
    elif (remapped is not None and remapped[2]) or retired_is_pending:
        detail = "broken memory waits to be taken out of use; reset it: nvidia-smi --gpu-reset"
        found.append(Trouble(kind=TroubleKind.ECC, detail=detail))
    if partitions is not None and partitions[0]:
        detail = "it is in MIG mode and only whole GPUs are given; leave that mode: nvidia-smi -mig 0"
        found.append(Trouble(kind=TroubleKind.PARTITIONED, detail=detail))
    return found


def _throttle_reasons(bits: int | None) -> tuple[str, ...] | None:
    if bits is None:
        return None
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def _processes(reading: Reading) -> tuple[DeviceProcess, ...] | None:
    """Compute and graphics processes by pid; None when not even the compute ones can be listed."""
    nvml, handle = reading.nvml, reading.handle
    compute = reading.first(
        (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2), handle
    )
    if compute is None:
        return None
    graphics = reading.first(
        (nvml.nvmlDeviceGetGraphicsRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v2), handle
    )
    by_pid: dict[int, DeviceProcess] = {}
    for is_compute, listed in ((False, graphics or ()), (True, compute)):
        for process in listed:
            memory = process.usedGpuMemory
            by_pid[int(process.pid)] = DeviceProcess(
                pid=int(process.pid),
                memory_bytes=None if memory is None else int(memory),
                is_compute=is_compute,
            )
    return tuple(by_pid[pid] for pid in sorted(by_pid)[:PROCESSES_PER_DEVICE_MAX])
