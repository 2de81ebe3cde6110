"""NVIDIA devices through NVML (the nvidia-ml-py package), which is imported only when a reader is opened."""

from __future__ import annotations

import importlib
import math
import threading
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from .device import Device, DeviceSample, SourceStatus, Unavailable, Vendor
from .host import memory_installed_bytes
from .nvml_energy import EnergyCount
from .nvml_reading import AbsentUntil, Reading, read_counters, troubles_now
from .nvml_trouble import LIBRARY_GONE, TroubleLog, XidWatch

OPEN_AGAIN_SECONDS = 5.0
KERNEL_DRIVER = Path("/proc/driver/nvidia/version")


def open_nvml() -> NvmlReader | Unavailable:
    """Load NVML and list its devices; blocks while the driver does. No driver is a value, not an error."""
    driver_is_loaded = KERNEL_DRIVER.exists()
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Unavailable(
            reason="nvidia-ml-py is not installed, so NVIDIA GPUs cannot be seen",
            next_step="pip install 'gpufleet[node]'",
            is_expected=not driver_is_loaded,
        )
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if error.value == nvml.NVML_ERROR_LIBRARY_NOT_FOUND:
            return Unavailable(
                reason="no NVIDIA driver library (libnvidia-ml.so.1) on this machine",
                next_step="install the NVIDIA driver; in a container, start it with --gpus all",
                is_expected=not driver_is_loaded,
            )
        return Unavailable(
            reason=f"the NVIDIA driver library does not start: {error}",
            next_step="run nvidia-smi; load the driver, or reboot after a driver update",
            is_expected=False,
        )
    return NvmlReader(nvml)


class NvmlReader:
    """The NVIDIA devices of this machine, as a DeviceReader."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._log = TroubleLog()
        self._problems: list[str] = []
        self._handles: dict[str, Any] = {}
        self._gone: dict[str, int] = {}
        self._energy: defaultdict[str, EnergyCount] = defaultdict(EnergyCount)
        self._absent: defaultdict[str, AbsentUntil] = defaultdict(dict)
        self._opening = threading.Lock()
        self._opened_at = -math.inf
        self._devices = self._find()
        self._status = self._describe()
        self._watch = XidWatch(nvml, self._handles.copy, self._log) if self._handles else None

    def list(self) -> tuple[Device, ...]:
        return self._devices

    def read(self, device: Device) -> DeviceSample:
        uuid = device.uuid
        reading = self._reading(uuid)
        sample = read_counters(reading, uuid, self._energy[uuid])
        if sample.ecc_uncorrected_count is not None:
            self._log.ecc_counted(uuid, sample.ecc_uncorrected_count)
        troubles = (*troubles_now(reading), *self._log.troubles(uuid))
        if reading.gone is not None:
            self._gone[uuid] = reading.gone
            if reading.gone in LIBRARY_GONE or len(self._gone) == len(self._devices):
                self._open_anew(reading.gone)
        return replace(sample, xid=self._log.last_xid(uuid), troubles=troubles)

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        for uuid in uuids:
            self._log.clear(uuid)

    def status(self) -> SourceStatus:
        return self._status

    def close(self) -> None:
        # With the watch still inside the driver a shutdown could block for ever; the process ends soon
        # anyway.
        if self._watch is None or self._watch.close():
            Reading(self._nvml).counter(self._nvml.nvmlShutdown)

    def _describe(self) -> SourceStatus:
        reading = Reading(self._nvml)
        driver = reading.counter(self._nvml.nvmlSystemGetDriverVersion)
        cuda = reading.counter(self._nvml.nvmlSystemGetCudaDriverVersion_v2)
        note = "; ".join(self._problems)
        if not self._devices and not note:
            note = "the NVIDIA driver runs but lists no GPU"
        return SourceStatus(
            kind="nvml",
            note=note,
            next_step="run nvidia-smi and look at dmesg" if note else "",
            driver_version=driver or "",
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
        )

    def _open_anew(self, code: int) -> None:
        """Let the library go and open it again, every few seconds while it, or every device, is gone.

        After a reset of the driver nothing that was opened before works any more. While all are gone this also lets
        them go for a moment, without which they cannot be reset.
        """
        if not self._opening.acquire(blocking=False):
            return  # another device's thread is at it
        try:
            if time.monotonic() < self._opened_at + OPEN_AGAIN_SECONDS:
                return
            with self._watch.paused() if self._watch is not None else nullcontext(enter_result=True) as is_outside:
                if not is_outside:
                    return  # it hangs in the driver: to shut that down could hang as well
                Reading(self._nvml).counter(self._nvml.nvmlShutdown)
                Reading(self._nvml).counter(self._nvml.nvmlInit)
                # Whatever came of it, no handle is good any more: each is asked for anew by its UUID.
                for uuid in self._handles.copy():
                    self._gone.setdefault(uuid, code)
            self._opened_at = time.monotonic()
        finally:
            self._opening.release()

    def _reading(self, uuid: str) -> Reading:
        """A pass over the device; one that was gone may be back after a reset, under a new handle."""
        gone = self._gone.get(uuid)
        if gone is None:
            return Reading(self._nvml, self._handles[uuid], self._absent[uuid])
        reading = Reading(self._nvml)
        handle = reading.counter(self._nvml.nvmlDeviceGetHandleByUUID, uuid)
        if handle is None:
            reading.gone = reading.gone or gone
            return reading
        self._handles[uuid] = handle
        self._gone.pop(uuid, None)
        self._absent.pop(uuid, None)
        return Reading(self._nvml, handle)

    def _find(self) -> tuple[Device, ...]:
        try:
            count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            self._problems.append(f"the NVIDIA driver does not count its GPUs: {error}")
            return ()
        found = [self._find_one(index) for index in range(count)]
        return tuple(device for device in found if device is not None)

    def _find_one(self, index: int) -> Device | None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = str(nvml.nvmlDeviceGetUUID(handle))
        except (nvml.NVMLError, UnicodeDecodeError) as error:
            # Without its UUID a device cannot be named, so it cannot be listed; the others still are.
            self._problems.append(f"GPU {index} is left out, it does not answer: {error}")
            return None
        reading = Reading(nvml, handle)
        memory = reading.memory()
        name = reading.counter(nvml.nvmlDeviceGetName, handle)
        pci = reading.counter(nvml.nvmlDeviceGetPciInfo_v3, handle)
        self._handles[uuid] = handle
        return Device(
            uuid=uuid,
            index=index,
            name=name or "NVIDIA GPU",
            memory_bytes=memory_installed_bytes() if memory is None else int(memory.total),
            vendor=Vendor.NVIDIA,
            pci_bus_id="" if pci is None else str(pci.busId),
        )
