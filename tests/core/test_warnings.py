"""What warnings are decided by, where a transcript would be too coarse: readings that are late, missing or too many."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpufleet.jobs.runs import ExitCode
from scheduler.core.warnings import rough_span
from scheduler.state.attempts import RankExit
from scheduler.state.events import NodeBeat, RankExited, RankStarted
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey
from scheduler.state.jobs import Running
from scheduler.state.limits import Limits, WarningLimits
from scheduler.state.nodes import DeviceSample
from scheduler.state.records import JobFinished, JobWarned
from scheduler.state.time_limits import STALE_MAX, TimeLimits
from scheduler.state.units import DAY, GB, HOUR, MINUTE, SECOND, Instant, Span
from scheduler.state.used import DeviceUse, RankUse, Statistic
from scheduler.state.warnings import TIME_LIMIT_PERCENTS, WARNINGS_KEPT, DeviceCourse, MemoryPeak, WarningKind
from tests.core.fleet import BEGIN, Fleet, spec

A = DeviceUuid("a")


def reading(at: float, load: int | None = 0, **fields: object) -> DeviceSample:
    """A reading so many seconds after the beginning."""
    taken_at = Instant(BEGIN + round(at * SECOND))
    return DeviceSample(uuid=A, taken_at=taken_at, utilization_percent=load, **fields)  # type: ignore[arg-type]


def course(*readings: DeviceSample) -> DeviceCourse:
    first = readings[0]
    found = DeviceCourse(read_at=first.taken_at, idle_since=first.taken_at)
    for each in readings[1:]:
        found.take(each)
    return found


def test_readings_of_a_few_seconds_add_up_to_an_idle_span() -> None:
    assert course(*(reading(at) for at in range(0, 100, 2))).idle == 98 * SECOND


def test_work_between_two_beats_is_seen() -> None:
    busy = reading(52, 0, utilization_percent_max=40.0, summed_span=Span(SECOND))
    assert course(reading(0), reading(50), busy, reading(54)).idle == 0


def test_a_device_without_the_counter_is_never_idle() -> None:
    assert course(reading(0), reading(50, None), reading(60, None)).idle == 0


@pytest.mark.parametrize("again", [50, 49, -3600])
def test_a_reading_that_is_not_newer_changes_nothing(again: float) -> None:
    """A device that stopped answering is told with its last reading, and a clock that went back with an older one."""
    known = course(reading(0), reading(50))
    known.take(reading(again, 99, slowed_by=("hw_slowdown",)))
    assert (known.idle, known.slowed, known.slowed_by) == (50 * SECOND, 0, ())


def test_a_gap_without_readings_is_not_idle_time_and_one_that_the_agent_read_is() -> None:
    assert course(reading(0), reading(50), reading(200)).idle == 0
    assert course(reading(0), reading(50), reading(200, summed_span=Span(148 * SECOND))).idle == 200 * SECOND


def test_a_gap_does_not_count_as_slowed_down() -> None:
    hot = ("hw_thermal_slowdown",)
    assert course(reading(0), reading(2, slowed_by=hot), reading(600, slowed_by=hot)).slowed == 2 * SECOND
    assert course(reading(0), reading(2, slowed_by=hot), reading(92, slowed_by=hot)).slowed == 12 * SECOND


def test_heat_that_comes_and_goes_every_other_reading_adds_up_to_nothing() -> None:
    flapping = (reading(at, 99, slowed_by=("hw_slowdown",) if at % 4 else ()) for at in range(0, 4000, 2))
    assert course(*flapping).slowed <= 2 * SECOND


def fleet_with_a_job(gpus: int = 1, limits: Limits | None = None, **asked: Any) -> tuple[Fleet, RankKey]:
    """Job 1 runs on all GPUs of node n1."""
    fleet = Fleet(limits)
    fleet.join(fleet.add_node("n1", gpus=gpus))
    fleet.submit(spec(gpus=gpus, **asked))
    key = RankKey(JobId(1), 1, 0)
    node = fleet.nodes[next(iter(fleet.nodes))]
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=key, run_span=Span(0)))
    assert isinstance(fleet.job(1).state, Running)
    return fleet, key


def warned(turns: object) -> list[JobWarned]:
    return [record for turn in turns for record in turn.records if isinstance(record, JobWarned)]  # type: ignore[attr-defined]


def test_no_more_are_kept_than_there_is_room_for_and_the_time_limit_always_has_room() -> None:
    fleet, _ = fleet_with_a_job(24, time_limit=Span(HOUR))
    node = next(iter(fleet.nodes.values()))
    for uuid, sample in node.samples.items():
        node.samples[uuid] = replace(sample, slowed_by=("hw_slowdown",), is_healthy=False, unhealthy_reason="XID 79")
    told = warned(fleet.advance(Span(HOUR)))
    kinds = [record.warning.kind for record in told]
    assert len(kinds) == len(fleet.job(1).warnings) == WARNINGS_KEPT
    assert kinds[-len(TIME_LIMIT_PERCENTS) :] == [WarningKind.TIME_LIMIT_NEAR] * len(TIME_LIMIT_PERCENTS)


def test_a_span_of_zero_warns_never() -> None:
    off = WarningLimits(idle_span=Span(0), memory_span=Span(0), throttled_span=Span(0))
    fleet, key = fleet_with_a_job(limits=Limits(warnings=off))
    node = next(iter(fleet.nodes.values()))
    for uuid, sample in node.samples.items():
        node.samples[uuid] = replace(sample, slowed_by=("hw_slowdown",))
    assert not warned(fleet.advance(Span(HOUR)))
    use = RankUse(span=Span(HOUR), sample_count=9, devices=(used(node.info.devices[0].uuid),))
    exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED", use=use)
    turn = fleet.take_up(RankExited(at=fleet.now, node=node.name, key=key, exit=exit_))
    assert [type(record) for record in turn.records] == [JobFinished]


@pytest.mark.parametrize("is_virtual", [True, False])
def test_a_virtual_gpu_has_no_memory_that_could_be_used(is_virtual: bool) -> None:
    fleet = Fleet()
    fleet.join(fleet.add_node("n1", gpus=1, is_virtual=is_virtual))
    fleet.submit(spec(gpus=1))
    node, key = fleet.nodes[NodeName("n1")], RankKey(JobId(1), 1, 0)
    fleet.take_up(RankStarted(at=fleet.now, node=node.name, key=key, run_span=Span(0)))
    use = RankUse(span=Span(HOUR), sample_count=9, devices=(used(node.info.devices[0].uuid),))
    exit_ = RankExit(exit=ExitCode(code=0), reason="EXITED", use=use)
    turn = fleet.take_up(RankExited(at=fleet.now, node=node.name, key=key, exit=exit_))
    assert [each.warning.kind for each in warned([turn])] == ([] if is_virtual else [WarningKind.MEMORY_UNUSED])


def used(uuid: DeviceUuid) -> DeviceUse:
    return DeviceUse(uuid=uuid, memory_used_bytes=Statistic(low=0, high=0, mean=0, count=9))


def test_what_a_node_tells_of_a_rank_that_is_not_its_own_warns_nobody() -> None:
    fleet, key = fleet_with_a_job()
    fleet.join(fleet.add_node("n2", gpus=1))
    n2 = fleet.nodes[NodeName("n2")]
    peak = MemoryPeak(span=Span(15 * MINUTE), used_bytes={n2.info.devices[0].uuid: GB})
    for strange in (key, replace(key, attempt=2), replace(key, rank=7), replace(key, job=JobId(99))):
        beat = NodeBeat(at=fleet.now, node=n2.name, stream=n2.stream, peaks=((strange, peak),))
        assert not fleet.take_up(beat).records


@pytest.mark.parametrize(
    ("span", "words"),
    [(250_000, "250ms"), (40 * SECOND, "40s"), (72 * MINUTE, "1h 12m"), (HOUR, "1h"), (3 * DAY + 5 * SECOND, "3d")],
)
def test_a_span_is_told_roughly(span: int, words: str) -> None:
    assert rough_span(span) == words


def test_of_attempts_that_have_ended_or_begin_again_few_marks_are_kept() -> None:
    limits, (running, _) = TimeLimits(), fleet_with_a_job(time_limit=Span(DAY))
    job = running.job(1)
    for number in range(10 * STALE_MAX):
        limits.begin(job, Instant(BEGIN + number))
    assert len(limits.marks) <= STALE_MAX + 3
    for number in range(2, 10 * STALE_MAX):
        other = replace(job, id=JobId(number))
        limits.begin(other, BEGIN)
        limits.end(other.id)
    assert len(limits.marks) <= STALE_MAX + 3
    limits.advance(Instant(BEGIN + DAY))
    assert limits.due == [job.id]
