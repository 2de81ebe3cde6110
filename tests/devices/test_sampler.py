"""The sampler over a reader that a test holds in its hands."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import pytest

from gpufleet.devices.device import Device, DeviceSample, SourceStatus, Trouble, TroubleKind, Vendor
from gpufleet.devices.sampler import Sampler

PATIENCE_SECONDS = 60.0
HOUR = 3600.0


class Reader:
    """One device whose next reading a test chooses."""

    def __init__(self) -> None:
        self.next: DeviceSample | Exception = DeviceSample(uuid="a", temperature_c=30)
        self.cleared: list[str] = []
        self.closed = 0

    def list(self) -> tuple[Device, ...]:
        return (Device(uuid="a", index=0, name="GPU", memory_bytes=1, vendor=Vendor.NVIDIA),)

    def read(self, device: Device) -> DeviceSample:
        if isinstance(self.next, Exception):
            raise self.next
        return self.next

    def clear_troubles(self, uuids: tuple[str, ...]) -> None:
        self.cleared.extend(uuids)
        self.next = DeviceSample(uuid="a")

    def status(self) -> SourceStatus:
        return SourceStatus(kind="test")

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def sampler(reader: Reader) -> Iterator[Sampler]:
    sampler = Sampler(reader, interval_seconds=HOUR)
    sampler.fresh(max_age_seconds=math.inf, timeout_seconds=PATIENCE_SECONDS)
    yield sampler
    sampler.close()


def read_anew(sampler: Sampler) -> DeviceSample:
    (sample,) = sampler.fresh(max_age_seconds=0, timeout_seconds=PATIENCE_SECONDS)
    return sample


def test_a_reader_that_raises_makes_the_device_unhealthy_and_is_asked_again(reader: Reader, sampler: Sampler) -> None:
    reader.next = RuntimeError("a fault in the reader")
    sample = read_anew(sampler)
    assert [trouble.kind for trouble in sample.troubles] == [TroubleKind.UNREADABLE]
    assert "a fault in the reader" in sample.unhealthy_reason
    reader.next = DeviceSample(uuid="a", temperature_c=31)
    assert read_anew(sampler).temperature_c == 31


def test_clearing_troubles_reads_the_device_anew_at_once(reader: Reader, sampler: Sampler) -> None:
    reader.next = DeviceSample(uuid="a", troubles=(Trouble(kind=TroubleKind.XID, detail="79"),))
    assert not read_anew(sampler).is_healthy
    sampler.clear_troubles(("a",))
    (sample,) = sampler.fresh(max_age_seconds=HOUR, timeout_seconds=PATIENCE_SECONDS)
    assert sample.is_healthy
    assert reader.cleared == ["a"]


def test_a_change_of_health_is_logged_once(reader: Reader, sampler: Sampler, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        reader.next = DeviceSample(uuid="a", troubles=(Trouble(kind=TroubleKind.XID, detail="XID error 79"),))
        read_anew(sampler)
        read_anew(sampler)
        reader.next = DeviceSample(uuid="a")
        read_anew(sampler)
        read_anew(sampler)
    assert caplog.messages == ["GPU 0 (a) is unhealthy: XID: XID error 79", "GPU 0 (a) is healthy again"]


def test_closing_closes_the_reader_once_its_threads_have_ended(reader: Reader) -> None:
    sampler = Sampler(reader, interval_seconds=HOUR)
    sampler.close()
    assert reader.closed == 1


def test_all_readings_are_summed_up_until_they_are_taken_out(reader: Reader, sampler: Sampler) -> None:
    sampler.drain()
    for power_mw in (100, 300):
        reader.next = DeviceSample(uuid="a", temperature_c=40, power_mw=power_mw)
        read_anew(sampler)
    drained = sampler.drain()["a"]
    assert drained.count == 2
    assert (drained.counters["power_mw"].low, drained.counters["power_mw"].high) == (100, 300)
    assert "utilization_percent" not in drained.counters
    assert sampler.drain() == {}


def test_a_device_that_is_gone_adds_no_reading(reader: Reader, sampler: Sampler) -> None:
    sampler.drain()
    reader.next = DeviceSample(uuid="a", troubles=(Trouble(kind=TroubleKind.VANISHED, detail="off the bus"),))
    read_anew(sampler)
    assert sampler.drain() == {}
