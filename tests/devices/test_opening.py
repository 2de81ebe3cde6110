"""Virtual devices, and machines without a GPU or without a way to see one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpufleet.devices.device import Device, Vendor
from gpufleet.devices.opening import open_devices
from node_agent.environment import visibility
from tests.devices.probing import Probe


def nothing_installed(folder: Path) -> dict[str, str]:
    """An environment in which importing a vendor's package fails, as where it is not installed."""
    for name in ("pynvml", "amdsmi"):
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('No module named {name}', name='{name}')\n")
    return {"PYTHONPATH": str(folder)}


def test_virtual_devices_are_labelled_have_16_gb_and_keep_their_names() -> None:
    source = open_devices(node="n1", virtual_gpus=2)
    assert source.list() == tuple(
        Device(
            uuid=f"VIRTUAL-n1-{index}",
            index=index,
            name="gpufleet virtual GPU",
            memory_bytes=16_000_000_000,
            vendor=Vendor.VIRTUAL,
        )
        for index in (0, 1)
    )
    assert all(device.is_virtual for device in source.list())
    assert source.list() == open_devices(node="n1", virtual_gpus=2).list()
    assert source.status().kind == "virtual"


def test_a_virtual_device_is_idle_empty_and_healthy_and_nothing_else_is_claimed() -> None:
    source = open_devices(node="n1", virtual_gpus=2)
    sample = source.sample()[1]
    assert (sample.uuid, sample.memory_used_bytes, sample.memory_free_bytes) == ("VIRTUAL-n1-1", 0, 16_000_000_000)
    assert (sample.utilization_percent, sample.processes, sample.is_healthy) == (0, (), True)
    assert (sample.temperature_c, sample.power_mw, sample.age_seconds) == (None, None, 0.0)
    assert source.fresh(max_age_seconds=0, timeout_seconds=0, uuids=("VIRTUAL-n1-1",)) == (sample,)
    source.close()


@pytest.mark.parametrize("count", [-1, 129])
def test_an_absurd_number_of_virtual_devices_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"virtual GPUs: {count} is not between 1 and 128"):
        open_devices(node="n1", virtual_gpus=count)


def test_a_machine_without_a_driver_has_no_devices_and_says_why(tmp_path: Path) -> None:
    # The first one found counts, so this hides a driver that the machine may have.
    (tmp_path / "libnvidia-ml.so.1").write_text("not a library")
    with Probe({"LD_LIBRARY_PATH": str(tmp_path)}) as probe:
        assert probe.ask("list") == []
        assert probe.ask("sample") == []
        status = probe.ask("status")
        assert "libnvidia-ml.so.1" in status["note"]
        assert "install the NVIDIA driver" in status["next_step"]
        probe.ask("close")


def test_a_machine_without_the_vendor_packages_names_the_one_to_install(tmp_path: Path) -> None:
    with Probe(nothing_installed(tmp_path)) as probe:
        assert probe.ask("list") == []
        status = probe.ask("status")
        assert "nvidia-ml-py is not installed" in status["note"]
        assert "gpufleet[node]" in status["next_step"]


def device(uuid: str, vendor: Vendor) -> Device:
    return Device(uuid=uuid, index=0, name="", memory_bytes=1, vendor=vendor)


def test_a_job_sees_its_own_devices_by_uuid_and_no_other() -> None:
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert visibility([device("GPU-b", Vendor.NVIDIA), device("GPU-a", Vendor.NVIDIA)]) == order | {
        "CUDA_VISIBLE_DEVICES": "GPU-b,GPU-a"
    }
    assert visibility([]) == order | {"CUDA_VISIBLE_DEVICES": ""}
    assert visibility([device("VIRTUAL-n1-0", Vendor.VIRTUAL)]) == order | {"CUDA_VISIBLE_DEVICES": "VIRTUAL-n1-0"}
    assert visibility([device("GPU-c", Vendor.AMD)]) == {"ROCR_VISIBLE_DEVICES": "GPU-c"}
