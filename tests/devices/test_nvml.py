"""NVIDIA devices, read through nvidia-ml-py from a C library that stands for the driver's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.devices.fake_nvml import (
    DEFAULTS,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_VERSION_MISMATCH,
    NO_PERMISSION,
    RESET_REQUIRED,
    UNINITIALIZED,
    UNKNOWN,
    FakeNvml,
)
from tests.devices.probing import Probe, Sample

SOON = ("--again", "0.2")
FIRST, SECOND = FakeNvml.uuid(0), FakeNvml.uuid(1)


def kinds(sample: dict[str, object]) -> list[str]:
    troubles = sample["troubles"]
    assert isinstance(troubles, list)
    return [trouble["kind"] for trouble in troubles]


def test_every_device_is_listed_with_its_facts(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        assert probe.ask("list") == [
            {
                "uuid": FakeNvml.uuid(index),
                "index": index,
                "name": "NVIDIA H100 80GB HBM3",
                "memory_bytes": 80_000_000_000,
                "vendor": "nvidia",
                "pci_bus_id": f"00000000:0{index + 1}:00.0",
                "is_virtual": False,
            }
            for index in (0, 1)
        ]
        assert probe.ask("status") == {
            "kind": "nvml",
            "note": "",
            "next_step": "",
            "driver_version": "580.95.05",
            "cuda_version": "13.0",
        }


def test_a_healthy_device_has_every_counter(gpus: FakeNvml) -> None:
    gpus.set(0, utilization=87, memory_used=30_000_000_000, throttle=0x04 | 0x01, power=612_000)
    gpus.start_process(0, 4711, 20_000_000_000)
    with Probe(gpus.environment()) as probe:
        sample = probe.samples()[FIRST]
    age = sample.pop("age_seconds")
    assert 0 <= age < 30
    assert sample == {
        "uuid": FIRST,
        "memory_total_bytes": 80_000_000_000,
        "memory_used_bytes": 30_000_000_000,
        "memory_free_bytes": 49_500_000_000,
        "utilization_percent": 87,
        "memory_utilization_percent": 0,
        "temperature_c": 35,
        "power_mw": 612_000,
        "power_limit_mw": 700_000,
        "energy_mj": 123_456_789,
        "clock_sm_mhz": 1980,
        "clock_memory_mhz": 2619,
        "fan_percent": 30,
        "throttle_reasons": ["sw_power_cap"],
        "ecc_uncorrected_count": 0,
        "xid": None,
        "processes": [
            {
                "pid": 4711,
                "memory_bytes": 20_000_000_000,
                "is_compute": True,
                "owner": "unknown",
                "attempt": None,
                "is_foreign": False,
            }
        ],
        "troubles": [],
        "is_healthy": True,
        "unhealthy_reason": "",
    }


def test_figures_that_change_while_running_are_seen(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        assert probe.samples()[SECOND]["utilization_percent"] == 0
        gpus.set(1, utilization=55, memory_used=1_000_000_000)
        sample = probe.wait_for(SECOND, lambda sample: sample["utilization_percent"] == 55)
        assert sample["memory_used_bytes"] == 1_000_000_000
        assert probe.samples()[FIRST]["utilization_percent"] == 0


def test_a_counter_that_a_device_lacks_is_absent_and_costs_no_other(gpus: FakeNvml) -> None:
    gpus.lack(0, "fan", "temperature", "ecc_uncorrected", "remap_pending", "mig", "energy")
    gpus.fail(0, "nvmlDeviceGetPowerUsage", NO_PERMISSION)
    with Probe(gpus.environment()) as probe:
        sample = probe.samples()[FIRST]
        for absent in ("fan_percent", "temperature_c", "ecc_uncorrected_count", "energy_mj", "power_mw"):
            assert sample[absent] is None
        assert sample["is_healthy"]
        assert sample["memory_used_bytes"] == DEFAULTS["memory_used"]
        assert sample["power_limit_mw"] == DEFAULTS["power_limit"]
        assert probe.samples()[SECOND]["fan_percent"] == 30


def test_a_device_without_any_counter_is_still_listed_and_healthy(gpus: FakeNvml) -> None:
    gpus.lack(0, *DEFAULTS)
    with Probe(gpus.environment()) as probe:
        sample = probe.samples()[FIRST]
        assert sample["is_healthy"]
        assert sample["memory_total_bytes"] is None
        # It shares the machine's memory then.
        assert probe.ask("list")[0]["memory_bytes"] > 0


def test_a_name_that_is_no_text_costs_only_the_name(gpus: FakeNvml) -> None:
    garbled = FakeNvml(gpus.control.parent, devices=1, name="NVIDIA \udcff\udcfe")
    with Probe(garbled.environment()) as probe:
        (device,) = probe.ask("list")
        assert (device["uuid"], device["name"]) == (FIRST, "NVIDIA GPU")


def test_an_old_driver_is_asked_the_old_way(gpus: FakeNvml) -> None:
    function_not_found = 13
    for function in (
        "nvmlDeviceGetComputeRunningProcesses_v3",
        "nvmlDeviceGetGraphicsRunningProcesses_v3",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetMemoryInfo_v2",
    ):
        gpus.fail(0, function, function_not_found)
    gpus.start_process(0, 4711, 1000)
    with Probe(gpus.environment()) as probe:
        sample = probe.samples()[FIRST]
    assert [process["pid"] for process in sample["processes"]] == [4711]
    assert sample["throttle_reasons"] == []
    assert sample["memory_free_bytes"] == 79_500_000_000


def test_a_counter_that_fails_oddly_is_absent_while_others_answer(gpus: FakeNvml) -> None:
    gpus.fail(0, "nvmlDeviceGetUtilizationRates", UNKNOWN)
    with Probe(gpus.environment()) as probe:
        sample = probe.samples()[FIRST]
    assert sample["utilization_percent"] is None
    assert sample["is_healthy"]


def test_a_device_of_which_nothing_can_be_read_is_unhealthy(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.fail(0, "*", UNKNOWN)
        sample = probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        assert kinds(sample) == ["UNREADABLE"]
        assert probe.samples()[SECOND]["is_healthy"]


def test_a_device_that_vanishes_is_unhealthy_and_hides_no_other(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.lose(0)
        lost = probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        assert kinds(lost) == ["VANISHED"]
        assert "fell off the bus" in lost["unhealthy_reason"]
        gpus.set(1, utilization=42)
        other = probe.wait_for(SECOND, lambda sample: sample["utilization_percent"] == 42)
        assert other["is_healthy"]
        assert len(probe.ask("list")) == 2


def test_a_device_that_comes_back_after_a_reset_is_read_again(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.lose(0)
        probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        gpus.heal(0)
        sample = probe.wait_for(FIRST, lambda sample: sample["is_healthy"])
        assert sample["memory_total_bytes"] == 80_000_000_000


def test_a_device_that_is_lost_at_the_start_is_named_and_the_others_are_listed(gpus: FakeNvml) -> None:
    gpus.lose(0)
    with Probe(gpus.environment()) as probe:
        assert [device["uuid"] for device in probe.ask("list")] == [SECOND]
        status = probe.ask("status")
        assert "GPU 0 is left out" in status["note"]
        assert "GPU is lost" in status["note"]
        assert probe.samples()[SECOND]["is_healthy"]


def test_an_xid_error_makes_its_device_unhealthy_until_a_person_clears_it(gpus: FakeNvml) -> None:
    gpus.raise_xid(0, 48)  # before the agent looked: history
    with Probe(gpus.environment()) as probe:
        assert probe.samples()[FIRST]["is_healthy"]
        gpus.raise_xid(0, 79)
        sample = probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        assert kinds(sample) == ["XID"]
        assert sample["xid"] == 79
        assert "XID error 79" in sample["unhealthy_reason"]
        assert probe.samples()[SECOND]["is_healthy"]

        probe.ask("clear", uuids=[FIRST])
        assert probe.wait_for(FIRST, lambda sample: sample["is_healthy"])["xid"] is None


def test_an_xid_error_of_the_program_is_told_but_leaves_the_device_healthy(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.raise_xid(1, 31)
        assert probe.wait_for(SECOND, lambda sample: sample["xid"] == 31)["is_healthy"]


def test_xid_errors_are_still_seen_after_another_device_fell_off_the_bus(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.lose(0)
        probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])

        def is_told(sample: Sample) -> bool:
            # An event between two event sets is lost: raise it until one listens.
            gpus.raise_xid(1, 79)
            return not sample["is_healthy"]

        assert kinds(probe.wait_for(SECOND, is_told)) == ["XID"]


def test_new_uncorrected_memory_errors_make_a_device_unhealthy_and_old_ones_do_not(gpus: FakeNvml) -> None:
    gpus.set(0, ecc_uncorrected=3)
    with Probe(gpus.environment()) as probe:
        before = probe.samples()[FIRST]
        assert before["ecc_uncorrected_count"] == 3
        assert before["is_healthy"]
        gpus.set(0, ecc_uncorrected=5)
        sample = probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        assert kinds(sample) == ["ECC"]
        assert "2 uncorrected memory errors" in sample["unhealthy_reason"]
        probe.ask("clear", uuids=[FIRST])
        assert probe.wait_for(FIRST, lambda sample: sample["is_healthy"])["ecc_uncorrected_count"] == 5


def test_broken_memory_that_waits_for_a_reset_comes_back_after_clearing(gpus: FakeNvml) -> None:
    gpus.set(0, remap_pending=1)
    gpus.set(1, retired_pending=1)
    with Probe(gpus.environment()) as probe:
        assert kinds(probe.samples()[FIRST]) == ["ECC"]
        assert kinds(probe.samples()[SECOND]) == ["ECC"]
        probe.ask("clear", uuids=[FIRST, SECOND])
        samples = probe.ask("fresh", max_age_seconds=0, timeout_seconds=60)
        assert [kinds(sample) for sample in samples] == [["ECC"], ["ECC"]]


def test_a_device_in_mig_mode_is_not_given_away_whole(gpus: FakeNvml) -> None:
    gpus.set(1, mig=1)
    with Probe(gpus.environment()) as probe:
        sample = probe.samples()[SECOND]
        assert kinds(sample) == ["PARTITIONED"]
        assert "nvidia-smi -mig 0" in sample["unhealthy_reason"]


def test_foreign_processes_appear_and_go_and_drawing_ones_disturb_nobody(gpus: FakeNvml) -> None:
    foreign, ours, drawing = os.getpid(), os.getppid(), 1
    with Probe(gpus.environment()) as probe:
        gpus.start_process(0, foreign)
        gpus.start_process(1, drawing, 50_000_000, is_graphics=True)
        probe.wait_for(FIRST, lambda sample: sample["processes"])
        probe.wait_for(SECOND, lambda sample: sample["processes"])
        attempts = [{"name": "12/1", "leader_pid": 2**22 + 1, "environment": {}}]
        first, second = probe.ask("owners", attempts=attempts)
        assert first["processes"] == [
            {
                "pid": foreign,
                "memory_bytes": None,
                "is_compute": True,
                "owner": "foreign",
                "attempt": None,
                "is_foreign": True,
            }
        ]
        assert second["processes"][0]["owner"] == "foreign"
        assert not second["processes"][0]["is_foreign"]

        first, _ = probe.ask("owners", attempts=[{"name": "12/1", "leader_pid": ours, "environment": {}}])
        assert first["processes"][0]["attempt"] == "12/1"
        assert not first["processes"][0]["is_foreign"]

        gpus.end_process(0, foreign)
        assert probe.wait_for(FIRST, lambda sample: sample["processes"] == [])


def is_gone(sample: Sample) -> bool:
    """Whether nothing is read of it any more; a reading that was under way has what it read before."""
    return not sample["is_healthy"] and sample["utilization_percent"] is None


@pytest.mark.parametrize("code", [UNINITIALIZED, DRIVER_NOT_LOADED, GPU_IS_LOST, RESET_REQUIRED])
def test_a_reset_of_the_driver_is_survived_and_figures_and_events_go_on(gpus: FakeNvml, code: int) -> None:
    gpus.set(0, utilization=90, energy=5_000_000, ecc_uncorrected=3)
    with Probe(gpus.environment(), *SOON) as probe:
        assert probe.samples()[FIRST]["utilization_percent"] == 90
        gpus.take_down(code)
        for uuid in (FIRST, SECOND):
            assert kinds(probe.wait_for(uuid, is_gone)) == ["VANISHED"]
        gpus.bring_up()
        gpus.set(0, utilization=40)
        sample = probe.wait_for(FIRST, lambda sample: sample["utilization_percent"] == 40)
        # Counts that began anew are no new errors.
        assert sample["is_healthy"] and (sample["ecc_uncorrected_count"], sample["energy_mj"]) == (0, 0)
        assert probe.wait_for(SECOND, lambda sample: sample["is_healthy"])["temperature_c"] == 35

        def is_told(sample: Sample) -> bool:
            # An event between two event sets is lost: raise it until one listens.
            gpus.raise_xid(1, 63)
            return bool(sample["xid"] == 63)

        probe.wait_for(SECOND, is_told)


def test_a_driver_that_is_reset_again_and_again_is_opened_each_time(gpus: FakeNvml) -> None:
    with Probe(gpus.environment(), *SOON) as probe:
        for count in (1, 2):
            gpus.take_down()
            probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
            gpus.bring_up()
            gpus.set(0, utilization=count)
            probe.wait_for(FIRST, lambda sample: sample["utilization_percent"] == count)  # noqa: B023


def test_energy_over_a_reset_of_the_driver_is_neither_negative_nor_counted_twice(gpus: FakeNvml) -> None:
    gpus.set(0, energy=9_000_000)
    with Probe(gpus.environment(), *SOON) as probe:
        probe.ask("drain")
        gpus.set(0, energy=9_001_000)
        probe.wait_for(FIRST, lambda sample: sample["energy_mj"] == 9_001_000)
        gpus.take_down()
        probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        gpus.bring_up()
        probe.wait_for(FIRST, lambda sample: sample["energy_mj"] == 0)
        gpus.set(0, energy=500)
        probe.wait_for(FIRST, lambda sample: sample["energy_mj"] == 500)
        assert probe.ask("drain")[FIRST]["energy_mj"] == 1500


def test_one_device_that_is_lost_leaves_the_library_open_for_the_others(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.lose(0)
        probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        gpus.fail(None, "nvmlInitWithFlags")  # a second opening would cost the other device
        gpus.set(1, utilization=33)
        assert probe.wait_for(SECOND, lambda sample: sample["utilization_percent"] == 33)["is_healthy"]


def test_throttle_reasons_come_and_go_with_their_names(gpus: FakeNvml) -> None:
    idle, power_cap, thermal = 0x01, 0x04, 0x40
    with Probe(gpus.environment()) as probe:
        gpus.set(0, throttle=idle | power_cap | thermal)
        sample = probe.wait_for(FIRST, lambda sample: sample["throttle_reasons"])
        assert sample["throttle_reasons"] == ["sw_power_cap", "hw_thermal_slowdown"] and sample["is_healthy"]
        gpus.set(0, throttle=idle)
        probe.wait_for(FIRST, lambda sample: sample["throttle_reasons"] == [])


def test_a_process_list_that_cannot_be_read_is_unknown_and_not_empty(gpus: FakeNvml) -> None:
    gpus.fail(0, "nvmlDeviceGetComputeRunningProcesses_v3", NO_PERMISSION)
    gpus.fail(0, "nvmlDeviceGetComputeRunningProcesses_v2", NO_PERMISSION)
    with Probe(gpus.environment()) as probe:
        assert probe.samples()[FIRST]["processes"] is None
        assert probe.samples()[SECOND]["processes"] == []


def test_a_call_that_hangs_leaves_the_other_devices_fresh_and_its_own_figures_aging(gpus: FakeNvml) -> None:
    with Probe(gpus.environment(), "--silent-after", "6") as probe:
        gpus.hang(0, "nvmlDeviceGetUtilizationRates")
        aging = probe.wait_for(FIRST, lambda sample: sample["age_seconds"] > 0.7)
        assert aging["is_healthy"]
        assert aging["temperature_c"] == 35

        gpus.set(1, utilization=42)
        assert probe.wait_for(SECOND, lambda sample: sample["utilization_percent"] == 42)["is_healthy"]

        silent = probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        assert kinds(silent) == ["SILENT"]

        gpus.heal(0)
        probe.wait_for(FIRST, lambda sample: sample["is_healthy"] and sample["age_seconds"] < 6)


def test_a_device_that_hangs_from_the_start_gives_no_sample_and_then_an_unhealthy_one(gpus: FakeNvml) -> None:
    gpus.hang(0, "nvmlDeviceGetTemperature")
    with Probe(gpus.environment(), "--silent-after", "1.5", "--open-timeout", "1") as probe:
        # Opening waits for the first samples, but not for ever.
        assert len(probe.ask("list")) == 2
        assert probe.wait_for(SECOND, lambda sample: sample["is_healthy"])
        sample = probe.wait_for(FIRST, lambda sample: not sample["is_healthy"])
        assert kinds(sample) == ["SILENT"]
        assert sample["temperature_c"] is None


def test_asking_for_a_fresh_sample_waits_for_the_devices_named_and_for_no_other(gpus: FakeNvml) -> None:
    with Probe(gpus.environment(), "--interval", "3600") as probe:
        gpus.hang(0, "nvmlDeviceGetUtilizationRates")
        gpus.set(1, utilization=9)
        assert probe.samples()[SECOND]["utilization_percent"] == 0
        (fresh,) = probe.ask("fresh", max_age_seconds=0, timeout_seconds=60, uuids=[SECOND])
        assert fresh["utilization_percent"] == 9
        # A sample that is young enough is taken as it is.
        gpus.set(1, utilization=10)
        (kept,) = probe.ask("fresh", max_age_seconds=60, timeout_seconds=60, uuids=[SECOND])
        assert kept["utilization_percent"] == 9
        # One that does not come in time is answered with the newest there is.
        (old,) = probe.ask("fresh", max_age_seconds=0, timeout_seconds=0.1, uuids=[FIRST])
        assert old["utilization_percent"] == 0


def test_a_new_interval_holds_at_once(gpus: FakeNvml) -> None:
    with Probe(gpus.environment(), "--interval", "3600") as probe:
        gpus.set(0, utilization=9)
        probe.ask("set_interval", seconds=0.05)
        assert probe.wait_for(FIRST, lambda sample: sample["utilization_percent"] == 9)


def test_a_driver_that_hangs_when_opened_gives_no_devices_and_says_so(gpus: FakeNvml) -> None:
    gpus.hang(None, "nvmlInitWithFlags")
    with Probe(gpus.environment(), "--open-timeout", "0.5") as probe:
        assert probe.ask("list") == []
        assert "did not answer" in probe.ask("status")["note"]


def test_a_driver_that_does_not_start_gives_no_devices_and_says_why(gpus: FakeNvml) -> None:
    for code, reason in (
        (DRIVER_NOT_LOADED, "Driver Not Loaded"),
        (LIBRARY_VERSION_MISMATCH, "version mismatch"),
    ):
        gpus.heal(None)
        gpus.fail(None, "nvmlInitWithFlags", code)
        with Probe(gpus.environment()) as probe:
            assert probe.ask("list") == []
            status = probe.ask("status")
            assert reason in status["note"]
            assert "nvidia-smi" in status["next_step"]


def test_a_driver_without_a_single_gpu_says_so(gpus: FakeNvml) -> None:
    none = FakeNvml(gpus.control.parent, devices=0)
    with Probe(none.environment()) as probe:
        assert probe.ask("list") == []
        assert "lists no GPU" in probe.ask("status")["note"]


def test_closing_ends_every_thread(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        assert probe.ask("threads") == ["MainThread", "device-0", "device-1", "nvml-xid"]
        probe.ask("close")
        assert probe.ask("threads") == ["MainThread"]


def test_closing_leaves_a_thread_that_hangs_behind_and_the_process_can_end(gpus: FakeNvml) -> None:
    with Probe(gpus.environment()) as probe:
        gpus.hang(0, "nvmlDeviceGetUtilizationRates")
        probe.wait_for(FIRST, lambda sample: sample["age_seconds"] > 0.3)
        probe.ask("close")
        assert "device-0" in probe.ask("threads")


def test_the_vendor_package_is_imported_only_when_real_devices_are_looked_for(gpus: FakeNvml) -> None:
    with Probe(gpus.environment(), "--virtual-gpus", "1") as probe:
        assert probe.ask("loaded") == []
    with Probe(gpus.environment()) as probe:
        assert probe.ask("loaded") == ["pynvml"]


def test_the_library_is_the_one_that_nvidia_ml_py_finds_by_itself(gpus: FakeNvml) -> None:
    code = "from pynvml import *; nvmlInit(); print(nvmlDeviceGetCount(), nvmlSystemGetDriverVersion())"
    environment = {**os.environ, **gpus.environment()}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "2 580.95.05\n"
