"""A stand-in for AMD's amdsmi, shaped after its reference: three devices, each answering as some release does."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import Any


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    pass


class AmdSmiMemoryType(enum.IntEnum):
    VRAM = 0


class AmdSmiTemperatureType(enum.IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(enum.IntEnum):
    CURRENT = 0


def _ask(handle: int | None, name: str) -> Any:
    """What the file named by FAKE_AMDSMI says now; a name that it lacks is not supported."""
    machine = json.loads(Path(os.environ["FAKE_AMDSMI"]).read_text())
    answers = machine if handle is None else machine["devices"][handle]
    if name not in answers:
        raise AmdSmiLibraryException("AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported")
    return answers[name]


def amdsmi_init() -> None:
    _ask(None, "starts")


def amdsmi_shut_down() -> None:
    pass


def amdsmi_get_processor_handles() -> list[int]:
    return list(range(len(_ask(None, "devices"))))


def amdsmi_get_gpu_enumeration_info(handle: int) -> dict[str, Any]:
    return dict(_ask(handle, "enumeration"))


def amdsmi_get_gpu_device_uuid(handle: int) -> str:
    return str(_ask(handle, "uuid"))


def amdsmi_get_gpu_device_bdf(handle: int) -> str:
    return str(_ask(handle, "bdf"))


def amdsmi_get_gpu_asic_info(handle: int) -> dict[str, Any]:
    return {"market_name": _ask(handle, "name")}


def amdsmi_get_gpu_driver_info(handle: int) -> dict[str, Any]:
    return {"driver_version": _ask(handle, "driver")}


def amdsmi_get_gpu_memory_total(handle: int, kind: AmdSmiMemoryType) -> int:
    assert kind is AmdSmiMemoryType.VRAM
    return int(_ask(handle, "total"))


def amdsmi_get_gpu_memory_usage(handle: int, kind: AmdSmiMemoryType) -> int:
    assert kind is AmdSmiMemoryType.VRAM
    return int(_ask(handle, "used"))


def amdsmi_get_gpu_activity(handle: int) -> dict[str, Any]:
    return dict(_ask(handle, "activity"))


def amdsmi_get_power_info(handle: int) -> dict[str, Any]:
    return dict(_ask(handle, "power"))


def amdsmi_get_temp_metric(handle: int, sensor: AmdSmiTemperatureType, metric: AmdSmiTemperatureMetric) -> int:
    assert metric is AmdSmiTemperatureMetric.CURRENT
    return int(_ask(handle, sensor.name.lower()))


def amdsmi_get_gpu_total_ecc_count(handle: int) -> dict[str, Any]:
    return {"correctable_count": 0, "uncorrectable_count": _ask(handle, "ecc")}


def amdsmi_get_gpu_process_list(handle: int) -> list[dict[str, Any]]:
    return list(_ask(handle, "processes"))
