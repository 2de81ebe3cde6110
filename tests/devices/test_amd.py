"""AMD devices, read from a stand-in of AMD's package in a child process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.devices.probing import Probe

STAND_IN = Path(__file__).with_name("fake_amdsmi")

NEW: dict[str, Any] = {
    "enumeration": {"hip_id": 0, "hip_uuid": "GPU-0123456789abcdef"},
    "uuid": "ff-0",
    "bdf": "0000:03:00.0",
    "name": "AMD Instinct MI300X",
    "driver": "6.12.12",
    "total": 192_000_000_000,
    "used": 12_000_000_000,
    "activity": {"gfx_activity": 64, "umc_activity": 20, "mm_activity": "N/A"},
    "power": {"socket_power": 420, "current_socket_power": 420, "average_socket_power": "N/A"},
    "hotspot": 61,
    "ecc": 0,
    "processes": [{"name": "python", "pid": 4711, "mem": 0, "memory_usage": {"vram_mem": 5_000_000_000}}],
}
OLD: dict[str, Any] = {
    "uuid": "ff-1",
    "name": "AMD Radeon",
    "total": 16_000_000_000,
    "used": 1_000_000_000,
    "activity": {"gfx_activity": "N/A"},
    "power": {"current_socket_power": "N/A", "average_socket_power": 35},
    "edge": 48_000,
}


class Amd:
    def __init__(self, folder: Path) -> None:
        self.file = folder / "amdsmi.json"
        self.write(NEW, OLD)

    def write(self, *devices: dict[str, Any], **machine: Any) -> None:
        self.file.with_suffix(".new").write_text(json.dumps({"starts": True, "devices": devices} | machine))
        self.file.with_suffix(".new").replace(self.file)

    def environment(self) -> dict[str, str]:
        # No NVIDIA library comes before it: the first one found is broken.
        (self.file.parent / "libnvidia-ml.so.1").write_text("not a library")
        return {
            "PYTHONPATH": str(STAND_IN),
            "FAKE_AMDSMI": str(self.file),
            "LD_LIBRARY_PATH": str(self.file.parent),
        }


@pytest.fixture
def amd(tmp_path: Path) -> Amd:
    return Amd(tmp_path)


def test_devices_are_listed_under_the_name_that_the_runtime_understands(amd: Amd) -> None:
    with Probe(amd.environment()) as probe:
        first, second = probe.ask("list")
        assert first == {
            "uuid": "GPU-0123456789abcdef",
            "index": 0,
            "name": "AMD Instinct MI300X",
            "memory_bytes": 192_000_000_000,
            "vendor": "amd",
            "pci_bus_id": "0000:03:00.0",
            "is_virtual": False,
        }
        assert (second["uuid"], second["pci_bus_id"]) == ("ff-1", "")
        assert probe.ask("status")["driver_version"] == "6.12.12"


def test_counters_come_in_the_units_of_the_port_whatever_the_release(amd: Amd) -> None:
    with Probe(amd.environment()) as probe:
        new, old = probe.samples()["GPU-0123456789abcdef"], probe.samples()["ff-1"]
    assert (new["memory_used_bytes"], new["memory_free_bytes"]) == (12_000_000_000, 180_000_000_000)
    assert (new["utilization_percent"], new["power_mw"], new["temperature_c"]) == (64, 420_000, 61)
    assert [(process["pid"], process["memory_bytes"]) for process in new["processes"]] == [(4711, 5_000_000_000)]
    assert (old["utilization_percent"], old["power_mw"], old["temperature_c"]) == (None, 35_000, 48)
    assert (old["ecc_uncorrected_count"], old["processes"]) == (None, None)
    assert new["is_healthy"] and old["is_healthy"]


def test_new_memory_errors_and_a_device_that_answers_nothing_are_unhealthy(amd: Amd) -> None:
    with Probe(amd.environment()) as probe:
        amd.write(NEW | {"ecc": 2}, {})
        first = probe.wait_for("GPU-0123456789abcdef", lambda sample: not sample["is_healthy"])
        assert first["unhealthy_reason"].startswith("ECC: 2 uncorrected memory errors")
        second = probe.wait_for("ff-1", lambda sample: not sample["is_healthy"])
        assert second["unhealthy_reason"].startswith("UNREADABLE")
        probe.ask("clear", uuids=["GPU-0123456789abcdef"])
        probe.wait_for("GPU-0123456789abcdef", lambda sample: sample["is_healthy"])


def test_a_device_that_does_not_tell_its_uuid_is_left_out_and_named(amd: Amd) -> None:
    amd.write({}, OLD)
    with Probe(amd.environment()) as probe:
        assert [device["uuid"] for device in probe.ask("list")] == ["ff-1"]
        assert "GPU 0 is left out" in probe.ask("status")["note"]


def test_a_library_that_does_not_start_is_no_error(amd: Amd) -> None:
    amd.file.write_text("{}")
    with Probe(amd.environment()) as probe:
        assert probe.ask("list") == []
        assert probe.ask("loaded") == ["pynvml", "amdsmi"]
