"""`stats`: the JSON that scripts read, key by key, and the screen."""

from __future__ import annotations

import json

from gpufleet.v1 import capacity_pb2 as pb
from gpufleet.v1 import job_pb2

from cli.render.stats import stats_screen
from cli.render.table import Look
from gpufleet.errors import invalid
from tests.cli.conftest import Gpuctl
from tests.cli.fake_scheduler import FakeScheduler, job
from tests.cli.golden import assert_golden


def spread(low: float, high: float, mean: float) -> pb.Statistic:
    return pb.Statistic(min=low, max=high, mean=mean, count=120)


def used(*nodes: str) -> pb.GetJobStatsResponse:
    answer = pb.GetJobStatsResponse(
        attempt=1, is_final=True, sample_count=120, energy_wh=10.5, gpu_seconds=121.5, idle_share=0.25
    )
    answer.monitoring_duration.FromMilliseconds(121_500)
    for node in nodes:
        answer.devices.add(
            node=node,
            index=0,
            name="NVIDIA H200",
            uuid="GPU-1",
            utilization_percent=spread(0, 100, 71.25),
            memory_used_mb=spread(500, 90_000, 60_000),
            memory_usage_percent=spread(0.348, 62.6, 41.733),
            temperature_c=spread(30, 61, 55),
            power_draw_w=spread(80, 690.5, 512),
            energy_wh=10.5,
        )
        course = answer.devices[-1].series
        course.offset_ms.extend([1000, 2500])
        course.utilization_percent.extend([0, 100])
        course.memory_used_mb.extend([500, 90_000])
        course.temperature_c.extend([30, -1])
        course.power_draw_w.extend([80, 690])
    process = answer.processes.add(node="n1", cpu_seconds=190.25, read_bytes=4096, write_bytes=10**9)
    process.cpu_percent.CopyFrom(spread(90, 410, 160))
    process.memory_mb.CopyFrom(spread(100, 9000, 8000))
    return answer


def test_json_has_the_shape_that_scripts_read(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs, fake.stats = {12: job(12)}, used("n1")
    told = json.loads(gpuctl("stats", "12", "-o", "json").text)
    assert told == {
        "job_id": 12,
        "attempt": 1,
        "is_final": True,
        "monitoring_duration_seconds": 121.5,
        "sample_count": 120,
        "gpu_stats": {
            "0": {
                "name": "NVIDIA H200",
                "uuid": "GPU-1",
                "utilization": {"min": 0, "max": 100, "mean": 71.25, "samples": 120},
                "memory_used_mb": {"min": 500, "max": 90_000, "mean": 60_000},
                "memory_usage_percent": {"min": 0.348, "max": 62.6, "mean": 41.733},
                "temperature_c": {"min": 30, "max": 61, "mean": 55},
                "power_draw_w": {"min": 80, "max": 690.5, "mean": 512},
                "energy_wh": 10.5,
                "series": {
                    "seconds": [1.0, 2.5],
                    "utilization_percent": [0, 100],
                    "memory_used_mb": [500, 90_000],
                    "temperature_c": [30, None],
                    "power_draw_w": [80, 690],
                },
            }
        },
        "gpu_seconds": 121.5,
        "energy_wh": 10.5,
        "idle_share": 0.25,
        "process_stats": {
            "0": {
                "node": "n1",
                "cpu_seconds": 190.25,
                "cpu_percent": {"min": 90, "max": 410, "mean": 160},
                "memory_mb": {"min": 100, "max": 9000, "mean": 8000},
                "read_bytes": 4096,
                "write_bytes": 10**9,
            }
        },
    }
    assert fake.asked("GetJobStats")[0].job_id == 12


def test_gpus_of_several_nodes_are_told_by_node_and_index(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs, fake.stats = {12: job(12)}, used("n1", "n2")
    assert list(json.loads(gpuctl("stats", "12", "-o", "jsonl").text)["gpu_stats"]) == ["n1:0", "n2:0"]


def test_a_counter_that_nobody_read_is_left_out(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs, fake.stats = {12: job(12)}, pb.GetJobStatsResponse(attempt=1, sample_count=3)
    fake.stats.devices.add(node="n1", name="gpufleet virtual GPU", uuid="VIRTUAL-n1-0")
    told = json.loads(gpuctl("stats", "12", "-o", "json").text)
    assert told["gpu_stats"] == {"0": {"name": "gpufleet virtual GPU", "uuid": "VIRTUAL-n1-0"}}
    assert "energy_wh" not in told and "idle_share" not in told


def test_of_a_job_that_ended_without_having_run_it_is_told_where_the_reason_stands(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    fake.jobs, fake.stats = {14: job(14, job_pb2.JOB_STATE_FAILED)}, pb.GetJobStatsResponse()
    fake.jobs[14].end_time.GetCurrentTime()
    assert gpuctl("stats", "14").text == "Job 14 ended without having run. See why with: gpuctl job 14\n"
    fake.jobs[14] = job(14, job_pb2.JOB_STATE_QUEUED)
    assert gpuctl("stats", "14").text == "Job 14 has not run yet. See why it waits with: gpuctl explain 14\n"


def test_an_attempt_that_there_is_not_is_named_as_it_was_typed(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.jobs = {14: job(14)}
    fake.faults["GetJobStats"].append(
        invalid("attempt", "job 14 has no attempt 9; those known of it: 1", next_step="leave it out for the newest.")
    )
    refused = gpuctl("stats", "14", "--attempt", "9")
    assert (refused.code, refused.err) == (
        2,
        "gpuctl: --attempt: job 14 has no attempt 9; those known of it: 1\nLeave it out for the newest.\n",
    )


def test_the_screen() -> None:
    bare = pb.GetJobStatsResponse(attempt=2, sample_count=3)
    bare.devices.add(node="n1", name="gpufleet virtual GPU")
    shown = [
        *stats_screen(12, used("n1"), Look()),
        *stats_screen(13, bare, Look()),
        *stats_screen(14, pb.GetJobStatsResponse(), Look()),
        *stats_screen(15, pb.GetJobStatsResponse(attempt=1, gpu_seconds=2), Look()),
    ]
    assert_golden("stats", "".join(f"{line}\n" for line in shown))
