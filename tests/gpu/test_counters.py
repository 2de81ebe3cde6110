"""Our readings against nvidia-smi's: the same driver, asked by two programs within a sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from gpufleet.devices.device import DeviceSample, DeviceSource
from gpufleet.devices.opening import open_devices
from tests.gpu import smi
from tests.gpu.results import Results

pytestmark = pytest.mark.gpu

MIB = 2**20
READINGS_AROUND = 5


@dataclass(frozen=True)
class Counter:
    """One of nvidia-smi's fields, what we call it, and how far apart they may be besides what moved meanwhile."""

    field: str
    ours: Callable[[DeviceSample], float | None]
    apart_max: float
    unit: str


COUNTERS = (
    Counter("memory.total", lambda sample: _mib(sample.memory_total_bytes), 1, "MiB"),
    Counter("memory.used", lambda sample: _mib(sample.memory_used_bytes), 2, "MiB"),
    Counter("memory.free", lambda sample: _mib(sample.memory_free_bytes), 2, "MiB"),
    Counter("utilization.gpu", lambda sample: sample.utilization_percent, 5, "%"),
    Counter("temperature.gpu", lambda sample: sample.temperature_c, 2, "°C"),
    Counter("power.draw", lambda sample: _watts(sample.power_mw), 10, "W"),
    Counter("enforced.power.limit", lambda sample: _watts(sample.power_limit_mw), 1, "W"),
    Counter("clocks.sm", lambda sample: sample.clock_sm_mhz, 200, "MHz"),
    Counter("clocks.mem", lambda sample: sample.clock_memory_mhz, 50, "MHz"),
    Counter("fan.speed", lambda sample: sample.fan_percent, 3, "%"),
    Counter("ecc.errors.uncorrected.volatile.total", lambda sample: sample.ecc_uncorrected_count, 0, "errors"),
)


def _mib(size_bytes: int | None) -> float | None:
    return None if size_bytes is None else size_bytes / MIB


def _watts(power_mw: int | None) -> float | None:
    return None if power_mw is None else power_mw / 1000


@pytest.fixture
def source(gpus: list[smi.Shown]) -> Iterator[DeviceSource]:
    source = open_devices(node="here", interval_seconds=3600)
    yield source
    source.close()


def readings(source: DeviceSource, count: int) -> list[dict[str, DeviceSample]]:
    """So many readings of all devices, one after the other."""
    found = (source.fresh(max_age_seconds=0, timeout_seconds=30) for _ in range(count))
    return [{sample.uuid: sample for sample in each} for each in found]


def test_the_devices_are_those_of_nvidia_smi_in_its_order(gpus: list[smi.Shown], source: DeviceSource) -> None:
    ours = [(device.index, device.uuid, device.name) for device in source.list()]
    assert ours == [(each.numbers["index"], each.texts["uuid"], each.texts["name"]) for each in gpus]
    for device, shown in zip(source.list(), gpus, strict=True):
        # One tool writes the domain with eight digits, the other perhaps with four.
        assert device.pci_bus_id.lower().lstrip("0") == shown.texts["pci.bus_id"].lower().lstrip("0")
    assert source.status().driver_version == gpus[0].texts["driver_version"]


def test_every_counter_agrees_with_nvidia_smi_within_a_sample(
    gpus: list[smi.Shown], source: DeviceSource, results: Results
) -> None:
    smi.ask()  # wakes what sleeps: clocks and power jump once
    before = readings(source, READINGS_AROUND)
    theirs = smi.ask()
    around = [*before, *readings(source, READINGS_AROUND)]
    wrong, farthest = [], {counter.field: 0.0 for counter in COUNTERS}
    absent: set[str] = set()
    for shown in theirs:
        samples = [each[shown.texts["uuid"]] for each in around]
        for counter in COUNTERS:
            number, ours = shown.numbers[counter.field], [counter.ours(sample) for sample in samples]
            told = [value for value in ours if value is not None]
            if number is None or not told:
                absent.add(counter.field)
                if (number is None) != (not told):
                    wrong.append(f"{counter.field}: nvidia-smi {number}, we {ours[0]}")
                continue
            apart = max(0.0, min(told) - number, number - max(told))
            farthest[counter.field] = max(farthest[counter.field], apart)
            if math.ceil(apart) > counter.apart_max:
                wrong.append(f"{counter.field}: nvidia-smi {number}, we {min(told)} to {max(told)} {counter.unit}")
    for counter in COUNTERS:
        figure = "absent in both" if counter.field in absent else f"{farthest[counter.field]:.3g} {counter.unit} apart"
        target = f"≤ {counter.apart_max:g} {counter.unit}"
        is_met = None if counter.field in absent else math.ceil(farthest[counter.field]) <= counter.apart_max
        results.add(f"nvidia-smi against us: {counter.field}", figure, target, is_met)
    assert not wrong, "\n".join(wrong)
