"""A monitor tells the same of the same readings as a job does, whose readings go by agent and scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpufleet.devices.device import Device, DeviceSample, Vendor
from gpufleet.devices.snapshots import score_of
from gpufleet.devices.statistics import series_message, statistics_object, statistics_of
from gpufleet.devices.tally import AttemptTally, DeviceTally, Meter, Series, TreeReading, begun
from gpufleet.jobs.runs import JobId, RankKey
from node_agent.usage import usage_to_proto
from scheduler.policy.fit import FreeDevice
from scheduler.state import nodes as state
from scheduler.wire.usages import rank_use, stats_proto

GB = 10**9
SECOND_US = 10**6
GPUS = {
    uuid: Device(uuid=uuid, index=index, name="NVIDIA H200", memory_bytes=141 * GB, vendor=Vendor.NVIDIA)
    for index, uuid in enumerate(("GPU-a", "GPU-b"))
}


def watched() -> AttemptTally:
    """Twenty seconds of two devices, of which the second tells little, and of a process."""
    tally = begun(5 * SECOND_US, GPUS)
    meters = {uuid: Meter() for uuid in GPUS}
    for second in range(20):
        readings = {
            "GPU-a": DeviceSample(
                uuid="GPU-a",
                utilization_percent=5 * second,
                memory_used_bytes=second * GB,
                memory_total_bytes=141 * GB,
                temperature_c=40 + second,
                power_mw=100_000 + second,
                energy_mj=10**9 + second * 360_000,
            ),
            "GPU-b": DeviceSample(uuid="GPU-b", power_mw=70_000),
        }
        for uuid, reading in readings.items():
            one = DeviceTally()
            one.take(reading, *meters[uuid].between(reading, float(second)))
            tally.devices[uuid].add(one)
            tally.series.setdefault(uuid, Series()).take(second * SECOND_US, one)
        tally.processes.take(TreeReading(cpu_seconds=second * 2.5, memory_bytes=GB * second), float(second))
    tally.ended_us = 25 * SECOND_US
    return tally


def of_a_job(tally: AttemptTally) -> dict[str, Any]:
    """What `gpuctl stats` would show of it."""
    use = rank_use(usage_to_proto(RankKey(JobId(1), 1, 0), tally, 25 * SECOND_US))
    placed = [
        SimpleNamespace(uuid=each.uuid, index=each.index, name=each.name, share_milli=0) for each in GPUS.values()
    ]
    placement: Any = SimpleNamespace(node="n1", devices=placed)
    attempt: Any = SimpleNamespace(number=1, held_since=0)
    told = stats_proto(attempt, [(placement, use)], 20 * SECOND_US)  # type: ignore[arg-type]  # an instant is a number
    for device in told.devices:
        device.series.CopyFrom(series_message(tally.series[device.uuid]))
    return statistics_object(told)


def test_a_monitor_and_a_job_tell_the_same_of_the_same_readings() -> None:
    tally = watched()
    told = statistics_object(statistics_of(tally, GPUS, node="n1", now_us=10**12))
    assert told == of_a_job(tally)
    assert told["monitoring_duration_seconds"] == 20.0 and told["gpu_seconds"] == 40.0
    assert told["gpu_stats"]["0"]["energy_wh"] == 1.9
    assert told["gpu_stats"]["1"].keys() == {"name", "uuid", "power_draw_w", "energy_wh", "series"}


def test_a_device_that_was_never_read_is_told_with_its_name_alone() -> None:
    told = statistics_object(statistics_of(begun(0, ["GPU-b"]), GPUS, node="n1", now_us=SECOND_US))
    assert told["gpu_stats"] == {"1": {"name": "NVIDIA H200", "uuid": "GPU-b"}}
    assert told["sample_count"] == 0 and "energy_wh" not in told and "idle_share" not in told


@given(
    free_bytes=st.none() | st.integers(0, 141 * GB),
    utilization=st.none() | st.integers(0, 100),
)
def test_the_score_is_that_of_the_scheduler(free_bytes: int | None, utilization: int | None) -> None:
    values: dict[str, Any] = {"memory_free_bytes": free_bytes, "utilization_percent": utilization}
    ours = score_of(GPUS["GPU-a"], DeviceSample(uuid="GPU-a", **values))
    sample: Any = SimpleNamespace(**values)
    device = state.Device(uuid="GPU-a", index=0, name="NVIDIA H200", memory_bytes=141 * GB)  # type: ignore[arg-type]
    theirs = FreeDevice(device=device, sample=sample, held_by=None, miss=None).score
    assert ours == (None if theirs is None else round(theirs, 4))
    assert ours is None or 0 <= ours <= 1
