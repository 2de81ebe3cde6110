"""What the engine measures of records: waits, ends, warnings, and items of arrays that end together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpufleet.telemetry import metrics
from scheduler.core.attempts import ended_attempt
from scheduler.metrics.measures import EngineMeasures
from scheduler.state.apply import apply
from scheduler.state.attempts import AllocationMethod, Attempt, Placement, Rank
from scheduler.state.durable import Durable
from scheduler.state.ids import JobId, NodeName, RankKey, UserName
from scheduler.state.jobs import Finished, Job, Queued
from scheduler.state.records import (
    AttemptPlaced,
    AttemptStarted,
    ItemsFinished,
    JobFinished,
    JobQueued,
    JobWarned,
    NodeLost,
    Record,
)
from scheduler.state.specs import Band, JobSpec, Outcome
from scheduler.state.units import SECOND, Instant
from scheduler.state.warnings import JobWarning, WarningKind

AT = Instant(100 * SECOND)


class Noted(metrics.Metrics):
    """Keeps what it is told: of a name, its values with their labels."""

    is_on = True

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[float, dict[str, str]]]] = {}

    def counter(self, name: str, unit: str, doc: str) -> metrics.Counter:
        noted = self.told.setdefault(name, [])

        class Kept(metrics.Counter):
            def add(self, number: float = 1, **labels: str) -> None:
                noted.append((number, labels))

        return Kept()

    def histogram(self, name: str, unit: str, doc: str, bounds: Sequence[float]) -> metrics.Histogram:
        noted = self.told.setdefault(name, [])

        class Kept(metrics.Histogram):
            def record(self, value: float, **labels: str) -> None:
                noted.append((value, labels))

        return Kept()


def waiting(job: int, **fields: object) -> Job:
    made = Job(
        id=JobId(job),
        user=UserName("ann"),
        spec=JobSpec(argv=("true",), name="j", cwd="/"),
        band=Band.HIGH,
        submitted_at=Instant(40 * SECOND),
        state=Queued(),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def placed(job: Job, slot: RankKey | None = None) -> AttemptPlaced:
    placement = Placement(
        node=NodeName("n1"), agent_id="a", boot_id="b", devices=(), cpus=1, memory_bytes=0, method=AllocationMethod.NONE
    )
    attempt = Attempt(number=1, placed_at=AT, ranks=(Rank(placement=placement),), slot=slot)
    return AttemptPlaced(at=AT, job=job.id, attempt=attempt)


def test_a_wait_counts_from_when_the_job_could_run_or_came_back() -> None:
    noted, durable = Noted(), Durable()
    for job in (
        waiting(1),
        waiting(2, eligible_at=Instant(70 * SECOND)),
        waiting(3, waits_since=Instant(95 * SECOND)),
    ):
        apply(durable, JobQueued(at=job.submitted_at, job=job))
        apply(durable, placed(job))
    EngineMeasures(noted).decided([placed(waiting(number)) for number in (1, 2, 3)], durable, {})
    assert noted.told["gpufleet.job.wait"] == [(60, {"band": "high"}), (30, {"band": "high"}), (5, {"band": "high"})]


@pytest.mark.parametrize("has_ended_since", [False, True])
def test_the_wait_of_a_job_in_a_backlog_ends_when_it_starts_and_is_counted_once(has_ended_since: bool) -> None:
    noted, durable = Noted(), Durable()
    measures = EngineMeasures(noted)
    first, behind = waiting(1), waiting(2)
    slot, key = RankKey(first.id, 1, 0), RankKey(behind.id, 1, 0)
    ended_jobs: dict[JobId, Job] = {}

    def waits_after(*records: Record) -> list[float]:
        for record in records:
            if isinstance(record, JobFinished) and record.ended is not None:
                ended_jobs[record.job] = replace(durable.jobs[record.job], state=record.finished, past=(record.ended,))
            apply(durable, record)
        measures.decided(records, durable, ended_jobs)
        return [value for value, _ in noted.told["gpufleet.job.wait"]]

    queued = [JobQueued(at=job.submitted_at, job=job) for job in (first, behind)]
    assert waits_after(*queued, placed(first), placed(behind, slot)) == [60]
    assert waits_after(AttemptStarted(at=AT, key=slot, started_at=AT)) == [60]
    later = Instant(102 * SECOND)
    started = AttemptStarted(at=later, key=key, started_at=later)
    ended = ended_attempt(placed(behind, slot).attempt, later, "EXITED", "", is_complete=True)
    finished = Finished(outcome=Outcome.SUCCEEDED, at=later, reason="EXITED", message="")
    end = JobFinished(at=later, job=behind.id, finished=finished, ended=ended)
    assert waits_after(started, *([end] if has_ended_since else [])) == [60, 62]


def test_ends_warnings_and_lost_nodes_are_counted_by_kind() -> None:
    noted = Noted()
    failed = Finished(outcome=Outcome.FAILED, at=AT, reason="EXITED", message="exited with code 1")
    cancelled = replace(failed, outcome=Outcome.CANCELLED)
    warning = JobWarning(kind=WarningKind.DEVICES_IDLE, at=AT, attempt=1, about=("n1:0",), sentence="idle")
    EngineMeasures(noted).decided(
        [
            JobFinished(at=AT, job=JobId(1), finished=failed),
            ItemsFinished(
                at=AT, array=JobId(10), spans=((JobId(11), JobId(20)), (JobId(30), JobId(30))), finished=cancelled
            ),
            JobWarned(at=AT, job=JobId(2), warning=warning),
            NodeLost(at=AT, node=NodeName("n1")),
        ],
        Durable(),
        {},
    )
    assert noted.told["gpufleet.job.ends"] == [(1, {"outcome": "failed"}), (11, {"outcome": "cancelled"})]
    assert noted.told["gpufleet.job.warnings"] == [(1, {"kind": "devices_idle"})]
    assert noted.told["gpufleet.node.losses"] == [(1, {})]
