"""A log replayed through the scheduler's core: its events, its pass, its forecasts, on one node with all devices.

At one instant jobs that end come first, each followed by a pass, then those that are submitted, likewise. Nothing is
simulated of the node but that it does what it is told at once.
"""

import heapq
from dataclasses import dataclass, field

from gpufleet.jobs.runs import ExitCode, StopCause
from scheduler.core.decide import make_true, step
from scheduler.core.scheduling import schedule
from scheduler.policy.forecast import estimates, forecast_of
from scheduler.policy.node_cache import NodeCache
from scheduler.state.attempts import RankExit
from scheduler.state.events import (
    Event,
    InventoryReported,
    JobsSubmitted,
    NodeAnnounced,
    RankExited,
    RankStarted,
    SchedulerStarted,
    WantedJob,
)
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.limits import Limits
from scheduler.state.live import expect
from scheduler.state.nodes import Device, NodeInfo
from scheduler.state.records import AttemptPlaced
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.state import State
from scheduler.state.units import DAY, GB, SECOND, Instant, Span

from .logs import Log, LoggedJob

NODE = NodeName("n1")
BEGIN = 1_000_000
"""The second at which a log begins."""
PASSES_BY_HEARING = Limits(heartbeat_interval=Span(10_000 * DAY), queued_jobs=10_000_000)
"""The node is heard once and believed for ever."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected wait and the range of the likely one, in seconds; None where there was none."""

    expected: float | None = None
    likely: tuple[float, float] | None = None


@dataclass(slots=True)
class Replay:
    """The core with one node of virtual devices. `told` is what jobs that waited were told, if `is_forecasting`."""

    log: Log
    limits: Limits = PASSES_BY_HEARING
    as_one_user: bool = False
    is_forecasting: bool = False
    state: State = field(init=False)
    now: Instant = Instant(BEGIN * SECOND)
    starts: dict[int, int] = field(default_factory=dict)
    told: dict[int, Forecast] = field(default_factory=dict)
    number_of: dict[JobId, int] = field(default_factory=dict)
    job_of: dict[int, JobId] = field(default_factory=dict)
    _known: NodeCache = field(default_factory=NodeCache)
    _ends: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.state = State(limits=self.limits)
        self._take_up(SchedulerStarted(at=self.now))
        devices = tuple(
            Device(uuid=DeviceUuid(f"{number:05}"), index=number, name="device", memory_bytes=80 * GB, is_virtual=True)
            for number in range(self.log.devices)
        )
        info = NodeInfo(hostname=NODE, cpus=1_000_000, memory_bytes=GB, devices=devices)
        announced = NodeAnnounced(
            at=self.now, name=NODE, agent_id=NODE, incarnation=1, boot_id="boot", info=info, address="10.0.0.1:1"
        )
        self._take_up(announced)
        inventory = InventoryReported(
            at=self.now,
            node=NODE,
            agent_id=NODE,
            incarnation=1,
            sequence=1,
            stream=1,
            boot_id="boot",
            info=info,
            entries=(),
        )
        self._take_up(inventory)

    def run(self) -> list[int]:
        """To the end of all jobs: when each started, in seconds, in the log's order."""
        jobs, arrived = self.log.jobs, 0
        while arrived < len(jobs) or self._ends:
            if self._ends and (arrived == len(jobs) or self._ends[0][0] <= jobs[arrived].submitted):
                at, number = heapq.heappop(self._ends)
                self._end(at, number)
            else:
                self._submit(arrived)
                arrived += 1
        return [self.starts[number] for number in range(len(jobs))]

    def _submit(self, number: int) -> None:
        job = self.log.jobs[number]
        self.now = _instant(job.submitted)
        job_id = JobId(self.state.durable.counters.next_job)
        self.number_of[job_id], self.job_of[number] = number, job_id
        user = UserName("all" if self.as_one_user else f"user{job.user}")
        self._take_up(JobsSubmitted(at=self.now, user=user, jobs=(WantedJob(spec=_spec(job), band=Band.NORMAL),)))
        self._pass()
        if self.is_forecasting and number not in self.starts:
            self.told[number] = self._forecast(job_id)

    def _forecast(self, job_id: JobId) -> Forecast:
        """What a job is told that waits behind its pass; what was expected is remembered, as the engine does."""
        estimate = estimates(self.state, self.now).of(job_id)
        if estimate.at is None:
            return Forecast()
        expected = Span(estimate.at - self.now)
        expect(self.state.live, {job_id: forecast_of(estimate)})
        likely = estimate.likely
        if likely is None:
            return Forecast(expected / SECOND)
        return Forecast(expected / SECOND, ((likely.earliest - self.now) / SECOND, (likely.latest - self.now) / SECOND))

    def _end(self, at: int, number: int) -> None:
        job = self.log.jobs[number]
        self.now = _instant(at)
        key = RankKey(self.job_of[number], 1, 0)
        is_late = job.run >= job.limit
        exit_ = RankExit(
            exit=ExitCode(code=0 if job.is_well and not is_late else 1),
            reason="TIME_LIMIT" if is_late else "EXITED",
            stop_cause=StopCause.TIME_LIMIT if is_late else None,
        )
        self._take_up(RankExited(at=self.now, node=NODE, key=key, exit=exit_))
        self._pass()

    def _pass(self) -> None:
        decision = schedule(self.state, self.now, self._known)
        make_true(self.state, decision)
        self._forget_commit()
        for record in decision.records:
            assert isinstance(record, AttemptPlaced), f"the pass decides more than places: {record}"
            number = self.number_of[record.job]
            self._take_up(RankStarted(at=self.now, node=NODE, key=RankKey(record.job, record.attempt.number, 0)))
            at = self.starts[number] = self.now // SECOND - BEGIN
            heapq.heappush(self._ends, (at + self.log.jobs[number].run, number))

    def _take_up(self, event: Event) -> None:
        step(self.state, event)
        self._forget_commit()

    def _forget_commit(self) -> None:
        self.state.durable.touched.clear()
        self.state.durable.finished.clear()


def _instant(seconds: int) -> Instant:
    return Instant((BEGIN + seconds) * SECOND)


def _spec(job: LoggedJob) -> JobSpec:
    return JobSpec(
        argv=(f"program{job.program}",),
        name=f"program{job.program}",
        cwd="/",
        resources=Resources(gpus=job.devices, cpus=1),
        time_limit=Span(job.limit * SECOND),
        grace=Span(0),
        no_warnings=True,
    )
