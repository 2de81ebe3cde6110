"""The scheduler's core with a large fleet and a long queue, without I/O: what the rows of scale ask."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpufleet.jobs.runs import ExitCode
from scheduler.core.decide import make_true, step
from scheduler.core.decision import Decision
from scheduler.state.attempts import RankExit
from scheduler.state.events import (
    Event,
    InventoryReported,
    JobsSubmitted,
    NodeAnnounced,
    NodeBeat,
    RankExited,
    RankStarted,
    SchedulerStarted,
    WantedJob,
)
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.nodes import Device, DeviceSample, NodeInfo
from scheduler.state.records import Record
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.state import State
from scheduler.state.units import GB, HOUR, MINUTE, SECOND, Instant, Span, after

BEGIN = Instant(1_000_000 * SECOND)
MODELS = (("NVIDIA A100", 80 * GB), ("NVIDIA H100", 80 * GB), ("NVIDIA L40S", 48 * GB))
"""Models of the devices; a node has eight of one."""
DEVICES_PER_NODE = 8
USERS = 40
SPECS_PER_SUBMIT = 1_000


@dataclass(slots=True)
class BigFleet:
    """A state with its clock. Everything that chance decides comes from `chance`."""

    state: State
    now: Instant
    chance: random.Random
    began_at: Instant = BEGIN

    def take_up(self, event: Event) -> Decision:
        """Decide one event and make it true; what a store would be given is dropped."""
        decision = step(self.state, event)
        self.forget_commit()
        return decision

    def make_true(self, decision: Decision) -> tuple[Record, ...]:
        """Make a pass's decision true."""
        make_true(self.state, decision)
        self.forget_commit()
        return decision.records

    def forget_commit(self) -> None:
        """Drop what a commit would take along."""
        self.state.durable.touched.clear()
        self.state.durable.finished.clear()

    # --- nodes

    def add_nodes(self, count: int) -> None:
        """Nodes that are heard, each with eight devices of one model, 128 CPUs and 1 TB of memory."""
        for number in range(count):
            model, memory_bytes = MODELS[number % len(MODELS)]
            name = NodeName(f"node{number:05}")
            devices = tuple(
                Device(uuid=DeviceUuid(f"{name}-{index}"), index=index, name=model, memory_bytes=memory_bytes)
                for index in range(DEVICES_PER_NODE)
            )
            info = NodeInfo(hostname=name, cpus=128, memory_bytes=1_000 * GB, devices=devices)
            told = NodeAnnounced(
                at=self.now, name=name, agent_id=name, incarnation=1, boot_id="boot", info=info, address="10.0.0.1:1"
            )
            self.take_up(told)
            self.take_up(
                InventoryReported(
                    at=self.now,
                    node=name,
                    agent_id=name,
                    incarnation=1,
                    sequence=1,
                    stream=number + 1,
                    boot_id="boot",
                    info=info,
                    entries=(),
                )
            )
            self.beat(name)

    def beat(self, name: NodeName) -> None:
        """A sign of life with samples of now; what is free of a device's memory is never twice the same."""
        held = self.state.durable.hold(name).devices
        samples = tuple(
            DeviceSample(
                uuid=device.uuid,
                taken_at=self.now,
                utilization_percent=90 if device.uuid in held else 0,
                memory_free_bytes=device.memory_bytes - (self.chance.randrange(400, 600) << 20),
            )
            for device in self.state.durable.nodes[name].info.devices
        )
        stream = self.state.live.nodes[name].stream
        self.take_up(NodeBeat(at=self.now, node=name, stream=stream, samples=samples))

    # --- jobs

    def submit(self, specs: tuple[JobSpec, ...], user: str, band: Band = Band.NORMAL) -> None:
        """Submit one job per spec, and let a little time pass."""
        self.now = after(self.now, Span(SECOND // 1_000))
        jobs = tuple(WantedJob(spec=each, band=band) for each in specs)
        self.take_up(JobsSubmitted(at=self.now, user=UserName(user), jobs=jobs))

    def add_jobs(self, count: int, classes: int) -> None:
        """Jobs of this many classes, each with a name of its own, from USERS users."""
        kinds = list(self.classes(classes))
        for begin in range(0, count, SPECS_PER_SUBMIT):
            size = min(SPECS_PER_SUBMIT, count - begin)
            specs = tuple(replace(self.chance.choice(kinds), name=f"train-{begin + number}") for number in range(size))
            self.submit(specs, f"user{begin // SPECS_PER_SUBMIT % USERS:02}")

    def classes(self, count: int) -> Iterator[JobSpec]:
        """Classes of request: GPUs 0 to 8, some by model or with much memory, each with a time limit of its own."""
        for number in range(count):
            gpus = (1, 1, 1, 2, 2, 4, 4, 8, 8, 0)[number % 10]
            resources = Resources(
                gpus=gpus,
                cpus=max(2, gpus * (4, 8, 12)[number % 3]),
                memory_bytes=(8, 16, 64)[number % 3] * max(1, gpus) * GB,
                models=("H100",) if number % 4 == 0 and gpus else (),
                min_memory_bytes=40 * GB if number % 5 == 0 else None,
            )
            yield JobSpec(
                argv=("python", "train.py", "--config", "configs/base.yaml"),
                name="train",
                cwd="/home/user/project",
                env=(("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8")),
                resources=resources,
                time_limit=Span(2 * HOUR + number * MINUTE),
            )

    def start(self, key: RankKey, node: NodeName) -> None:
        """A placed rank runs."""
        self.take_up(RankStarted(at=self.now, node=node, key=key))

    def end(self, job: JobId) -> None:
        """A job that runs ends well."""
        attempt = self.state.durable.jobs[job].attempt
        assert attempt is not None
        for rank, each in enumerate(attempt.ranks):
            key = RankKey(job, attempt.number, rank)
            ended = RankExit(exit=ExitCode(code=0), reason="EXITED")
            self.take_up(RankExited(at=self.now, node=each.placement.node, key=key, exit=ended))


def big_fleet(nodes: int, seed: int = 1) -> BigFleet:
    """A fleet of nodes that are heard, without jobs."""
    fleet = BigFleet(state=State(), now=BEGIN, chance=random.Random(seed))
    fleet.take_up(SchedulerStarted(at=fleet.now))
    fleet.add_nodes(nodes)
    return fleet
