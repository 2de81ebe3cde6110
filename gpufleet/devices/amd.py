"""AMD devices through AMD's own amdsmi package, which comes with ROCm; imported only when a reader is opened.

Written from AMD's reference of that package and tested against a stand-in of the same shape, not on AMD
hardware. Left out because their unit differs between ROCm releases: the power limit. Not told apart: graphics
processes.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .device import (
    Device,
    DeviceProcess,
    DeviceSample,
    SourceStatus,
    Trouble,
    TroubleKind,
    Unavailable,
    Vendor,
)
from .host import memory_installed_bytes
from .nvml_trouble import TroubleLog

KERNEL_DRIVER = Path("/sys/module/amdgpu")
# No GPU is this hot: releases that answer in thousandths of a degree are told by it.
CELSIUS_MAX = 999


def open_amd() -> AmdReader | Unavailable:
    """Load amdsmi and list its devices; blocks while the driver does. No driver is a value, not an error."""
    try:
        amdsmi = importlib.import_module("amdsmi")
    except (ImportError, OSError, KeyError) as error:
        # The package raises OSError or KeyError where its library is not installed.
        # The kernel's driver alone proves little: it also runs the graphics of a laptop.
        return Unavailable(
            reason="amdsmi is not installed, so AMD GPUs cannot be seen"
            if isinstance(error, ImportError)
            else f"amdsmi does not find ROCm's library: {error}",
            next_step="install ROCm's amd-smi-lib and its Python package",
        )
    try:
        amdsmi.amdsmi_init()
        return AmdReader(amdsmi)
    except amdsmi.AmdSmiException as error:
        return Unavailable(
            reason=f"the AMD driver library does not start: {error}",
            next_step="run amd-smi; load the amdgpu driver",
            is_expected=not KERNEL_DRIVER.exists(),
        )


class AmdReader:
    """The AMD devices of this machine, as a DeviceReader."""

    def __init__(self, amdsmi: Any) -> None:
        self._amdsmi = amdsmi
        self._handles: dict[str, Any] = {}
        self._log = TroubleLog()
        self._problems: list[str] = []
        found = [self._find(index, handle) for index, handle in enumerate(amdsmi.amdsmi_get_processor_handles())]
        self._devices = tuple(device for device in found if device is not None)
        self._status = self._describe()

    def list(self) -> tuple[Device, ...]:
        return self._devices

    def read(self, device: Device) -> DeviceSample:
        amdsmi, handle, uuid = self._amdsmi, self._handles[device.uuid], device.uuid
        ask = _Ask(amdsmi, handle)
        total = _number(ask(amdsmi.amdsmi_get_gpu_memory_total, amdsmi.AmdSmiMemoryType.VRAM))
        used = _number(ask(amdsmi.amdsmi_get_gpu_memory_usage, amdsmi.AmdSmiMemoryType.VRAM))
        activity = ask(amdsmi.amdsmi_get_gpu_activity) or {}
        ecc = _number((ask(amdsmi.amdsmi_get_gpu_total_ecc_count) or {}).get("uncorrectable_count"))
        sample_processes = ask(amdsmi.amdsmi_get_gpu_process_list)
        return DeviceSample(
            uuid=uuid,
            memory_total_bytes=total,
            memory_used_bytes=used,
            memory_free_bytes=None if total is None or used is None else max(0, total - used),
            utilization_percent=_number(activity.get("gfx_activity")),
            memory_utilization_percent=_number(activity.get("umc_activity")),
            temperature_c=_celsius(ask, amdsmi),
            power_mw=_power_mw(ask(amdsmi.amdsmi_get_power_info) or {}),
            ecc_uncorrected_count=ecc,
            processes=None if sample_processes is None else _processes(sample_processes),
            troubles=self._troubles(uuid, ask, ecc),
        )

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        for uuid in uuids:
            self._log.clear(uuid)

    def status(self) -> SourceStatus:
        return self._status

    def close(self) -> None:
        _Ask(self._amdsmi, None).plain(self._amdsmi.amdsmi_shut_down)

    def _describe(self) -> SourceStatus:
        asks = (_Ask(self._amdsmi, handle) for handle in self._handles.values())
        info = next((ask(self._amdsmi.amdsmi_get_gpu_driver_info) or {} for ask in asks), {})
        note = "; ".join(self._problems) or ("" if self._devices else "the AMD driver runs but lists no GPU")
        return SourceStatus(
            kind="amd",
            note=note,
            next_step="run amd-smi and look at dmesg" if note else "",
            driver_version=str(info.get("driver_version", "")),
        )

    def _find(self, index: int, handle: Any) -> Device | None:
        amdsmi = self._amdsmi
        ask = _Ask(amdsmi, handle)
        # The runtime's own UUID where this release tells it: it is what ROCR_VISIBLE_DEVICES understands.
        enumerated = ask(getattr(amdsmi, "amdsmi_get_gpu_enumeration_info", None)) or {}
        uuid = enumerated.get("hip_uuid") or ask(amdsmi.amdsmi_get_gpu_device_uuid)
        if not uuid:
            self._problems.append(f"GPU {index} is left out, it does not answer: {'; '.join(ask.failures)}")
            return None
        asic = ask(amdsmi.amdsmi_get_gpu_asic_info) or {}
        total = _number(ask(amdsmi.amdsmi_get_gpu_memory_total, amdsmi.AmdSmiMemoryType.VRAM))
        self._handles[str(uuid)] = handle
        return Device(
            uuid=str(uuid),
            index=index,
            name=str(asic.get("market_name") or "AMD GPU"),
            memory_bytes=memory_installed_bytes() if total is None else total,
            vendor=Vendor.AMD,
            pci_bus_id=str(ask(amdsmi.amdsmi_get_gpu_device_bdf) or ""),
        )

    def _troubles(self, uuid: str, ask: _Ask, ecc: int | None) -> tuple[Trouble, ...]:
        if not ask.has_answered:
            detail = f"no counter can be read: {', '.join(dict.fromkeys(ask.failures[:3]))}"
            return (Trouble(kind=TroubleKind.UNREADABLE, detail=detail),)
        if ecc is None:
            return ()
        self._log.ecc_counted(uuid, ecc)
        return tuple(self._log.troubles(uuid))


class _Ask:
    """Calls amdsmi for one device; what it refuses, or a release lacks, is None."""

    def __init__(self, amdsmi: Any, handle: Any) -> None:
        self._amdsmi = amdsmi
        self._handle = handle
        self.failures: list[str] = []
        self.has_answered = False

    def __call__(self, call: Callable[..., Any] | None, *arguments: Any) -> Any:
        return None if call is None else self.plain(call, self._handle, *arguments)

    def plain(self, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            answer = call(*arguments)
        except self._amdsmi.AmdSmiException as error:
            self.failures.append(str(error).strip())
            return None
        self.has_answered = True
        return answer


def _number(value: object) -> int | None:
    """amdsmi answers the text "N/A" where a device has no such counter."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _power_mw(info: dict[str, Any]) -> int | None:
    """Generations fill different fields, in watts."""
    for name in ("socket_power", "current_socket_power", "average_socket_power"):
        watts = _number(info.get(name))
        if watts:
            return watts * 1000
    return None


def _celsius(ask: _Ask, amdsmi: Any) -> int | None:
    current = amdsmi.AmdSmiTemperatureMetric.CURRENT
    for sensor in (amdsmi.AmdSmiTemperatureType.EDGE, amdsmi.AmdSmiTemperatureType.HOTSPOT):
        value = _number(ask(amdsmi.amdsmi_get_temp_metric, sensor, current))
        if value is not None:
            return value // 1000 if value > CELSIUS_MAX else value
    return None


def _processes(listed: list[Any]) -> tuple[DeviceProcess, ...]:
    found = []
    for process in listed:
        pid = _number(process.get("pid")) if isinstance(process, dict) else None
        if pid:
            memory = _number(process.get("memory_usage", {}).get("vram_mem"))
            found.append(DeviceProcess(pid=pid, memory_bytes=memory))
    return tuple(found)
