"""A scheduler's core with a clock and with nodes that report: what transcripts, one-event tests and properties run.

It does what the engine does with each event (take note, decide, make true, one pass), checks every invariant after it,
and keeps what a store would keep, so that a restart loads exactly that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, replace

from scheduler.core.deadlines import Wakes, wake_at
from scheduler.core.decide import make_true, step
from scheduler.core.decision import Decision
from scheduler.core.scheduling import schedule
from scheduler.core.sessions.turns import settle
from scheduler.policy.caps import Caps
from scheduler.policy.explain import WaitReason
from scheduler.policy.node_cache import NodeCache
from scheduler.policy.page_reasons import PassReasons
from scheduler.state.commands import Command
from scheduler.state.durable import Durable, Entity, EntityKey, load, turn_over
from scheduler.state.events import (
    ClockAdvanced,
    Event,
    InventoryReported,
    JobsSubmitted,
    NodeAnnounced,
    NodeBeat,
    NodeDisconnected,
    ReportedExited,
    ReportedState,
    SchedulerStarted,
    WantedJob,
)
from scheduler.state.gap import Origin
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.invariants import check_all, check_touched, versions_that_do_not_rise
from scheduler.state.jobs import Job, item_ended_together
from scheduler.state.limits import Limits
from scheduler.state.nodes import Device, DeviceSample, JobAccounts, NodeContainers, NodeInfo, RunsAs
from scheduler.state.records import Record
from scheduler.state.replies import Reply
from scheduler.state.sessions.commands import SessionCommand
from scheduler.state.specs import Band, JobSpec, Resources
from scheduler.state.state import State
from scheduler.state.units import GB, SECOND, Instant, after

BEGIN = Instant(1_000_000 * SECOND)

HEARTBEATS_COMPARED = 10
"""Of so many signs of life in a row that decide nothing, one is compared with a pass that remembers nothing."""


@dataclass(slots=True)
class FakeNode:
    """A machine with an agent, as far as the scheduler can see it; it beats by itself while it is connected."""

    name: NodeName
    agent_id: str
    info: NodeInfo
    incarnation: int = 1
    boot_id: str = "boot-1"
    stream: int = 0
    is_connected: bool = False
    knows_lineages: bool = False
    keeps_backlog: bool = False
    samples: dict[DeviceUuid, DeviceSample] = field(default_factory=dict)

    def readings(self, at: Instant) -> tuple[DeviceSample, ...]:
        return tuple(replace(self.samples[device.uuid], taken_at=at) for device in self.info.devices)

    def found(self, numbers: Iterable[int]) -> NodeInfo:
        """What a new start of its agent tells when it finds only these of its devices, by their first indices."""
        uuids = [f"{self.name}-gpu{number}" for number in numbers]
        first = next(iter(self.info.devices))
        devices = tuple(replace(first, uuid=DeviceUuid(uuid), index=index) for index, uuid in enumerate(uuids))
        return replace(self.info, devices=devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What followed from one event: its own decision and that of the pass behind it."""

    at: Instant
    records: tuple[Record, ...]
    commands: tuple[Command, ...]
    reply: Reply
    session_commands: tuple[SessionCommand, ...] = ()


@dataclass(slots=True)
class FakeStore:
    """What a store would hold: every entity by its key, and the jobs that have ended."""

    entities: dict[EntityKey, Entity] = field(default_factory=dict)
    finished: dict[JobId, Job] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)

    def commit(self, durable: Durable, records: Iterable[Record]) -> None:
        """Take over what was touched since the last commit."""
        for key, entity in durable.touched.items():
            if entity is None:
                self.entities.pop(key, None)
            else:
                self.entities[key] = entity
        again = self.finished.keys() & durable.finished.keys()
        assert not again, f"jobs end twice: {sorted(again)}"
        self.finished.update(durable.finished)
        self.records.extend(records)
        durable.touched, durable.finished = {}, {}

    def versions(self) -> dict[EntityKey, int]:
        versions = {key: getattr(entity, "version", None) for key, entity in self.entities.items()}
        return {key: version for key, version in versions.items() if version is not None}


class Fleet:
    """The core under test; `take_up` is its only way in."""

    def __init__(self, limits: Limits | None = None, *, passes: bool = True, lineage: str = "") -> None:
        self.limits = limits or Limits()
        self.state = State(limits=self.limits, lineage=lineage)
        self.store = FakeStore()
        self.now = BEGIN
        self.nodes: dict[NodeName, FakeNode] = {}
        self.streams = 0
        self.view = Durable()
        self._passes = passes
        self._known = NodeCache()
        self._wakes = Wakes()
        self._heartbeats = 0
        """How many in a row decided nothing."""
        self.take_up(SchedulerStarted(at=self.now))

    # --- one event

    def take_up(self, event: Event) -> Turn:
        """Take up an event as the engine does, run the pass, and check what must always be true."""
        decision = step(self.state, event)
        settled = settle(self.state, self.now)
        make_true(self.state, settled)
        passed = self._pass(event) if self._passes else Decision()
        make_true(self.state, passed)
        records = (*decision.records, *settled.records, *passed.records)
        # Most events are signs of life that decide nothing: what is durable is what it was, and was checked then.
        if records or self.state.durable.touched:
            self._check(event, records)
            self._turn_over()
        self._check_wakes(event, records)
        self.store.commit(self.state.durable, records)
        return Turn(
            at=self.now,
            records=records,
            commands=(*decision.commands, *settled.commands, *passed.commands),
            reply=decision.reply,
            session_commands=(*decision.session_commands, *settled.session_commands),
        )

    def reasons(self, jobs: Iterable[Job]) -> dict[JobId, WaitReason]:
        """Why jobs wait, by what the last pass left."""
        assert self._known.last_pass is not None
        reasons = PassReasons(self._known.last_pass)
        return {job.id: reasons.of(job, Caps(self.state, self.now)) for job in jobs}

    def _pass(self, event: Event) -> Decision:
        """A pass decides by what it remembers what it would decide without.

        Compared at every event, of the signs of life at every HEARTBEATS_COMPARED-th: a difference lasts until then.
        """
        passed = schedule(self.state, self.now, self._known)
        self._heartbeats = self._heartbeats + 1 if isinstance(event, NodeBeat) and passed == Decision() else 0
        if self._heartbeats % HEARTBEATS_COMPARED == 0:
            assert passed == schedule(self.state, self.now), "a pass remembers something of the nodes that is not true"
        return passed

    def _check_wakes(self, event: Event, records: tuple[Record, ...]) -> None:
        """What is known of deadlines from turn to turn is never later than what a look at all of them says."""
        known, true = self._wakes.next(self.state, (event,), records), wake_at(self.state)
        assert true is None or (known is not None and known <= true), f"after {event}: {known} instead of {true}"

    def _turn_over(self) -> None:
        """The view that reads are answered from follows the commits and never the decisions."""
        touched = self.state.durable.touched
        turn_over(
            self.view,
            [entity for entity in touched.values() if entity is not None],
            [key for key, entity in touched.items() if entity is None],
        )
        assert_same(self.view, self.state.durable)

    def _check(self, event: Event, records: tuple[Record, ...]) -> None:
        durable = self.state.durable
        wrong = [
            *check_touched(self.state, durable.touched, durable.finished),
            *check_all(self.state),
            *versions_that_do_not_rise(self.store.versions(), durable.touched),
        ]
        assert not wrong, f"after {event}:\n" + "\n".join(wrong) + f"\nrecords: {records}"

    # --- time

    def advance(self, span: int, *, beats: bool = True) -> Iterator[Turn]:
        """Let time pass: connected nodes beat, deadlines come when the core has asked for them."""
        end = after(self.now, span)
        next_beat = after(self.now, self.limits.heartbeat_interval if beats else span + 1)
        while True:
            deadline = wake_at(self.state)
            due = min(end, next_beat, end if deadline is None else max(deadline, self.now))
            assert due > self.now or deadline is None or deadline <= self.now or due == end
            self.now = due
            if deadline is not None and deadline <= due:
                turn = self.take_up(ClockAdvanced(at=self.now))
                yield turn
                again = wake_at(self.state)
                # What was decided may bring the next one, such as the queue time-out of a job that waits again.
                is_new = again is None or again > self.now or turn.records
                assert is_new, "a deadline that was carried out is asked for again"
            if due == next_beat:
                next_beat = after(next_beat, self.limits.heartbeat_interval)
                yield from self._beats()
            if due == end:
                return

    def _beats(self) -> Iterator[Turn]:
        for node in self.nodes.values():
            if node.is_connected:
                yield self.beat(node.name)

    # --- nodes

    def add_node(
        self,
        name: str,
        *,
        gpus: int = 0,
        memory_bytes: int = 80 * GB,
        cpus: int = 64,
        ram_bytes: int = 512 * GB,
        model: str = "NVIDIA A100",
        is_virtual: bool = False,
        labels: tuple[tuple[str, str], ...] = (),
        agent_id: str = "",
        shared_root: str = "",
        engine: str = "",
        owner: str = "",
        keeps_backlog: bool = False,
    ) -> FakeNode:
        """Describe a machine; nothing is said to the scheduler yet. With an owner it takes nobody else's jobs."""
        node_name = NodeName(name)
        devices = tuple(
            Device(
                uuid=DeviceUuid(f"{name}-gpu{index}"),
                index=index,
                name=model,
                memory_bytes=memory_bytes,
                is_virtual=is_virtual,
            )
            for index in range(gpus)
        )
        accounts = JobAccounts(runs_as=RunsAs.OWNER, owner=UserName(owner)) if owner else JobAccounts()
        info = NodeInfo(
            hostname=name,
            cpus=cpus,
            memory_bytes=ram_bytes,
            devices=devices,
            labels=labels,
            shared_root=shared_root,
            containers=NodeContainers(engine=engine, gpus_by="nvidia") if engine else None,
            job_accounts=accounts,
        )
        node = FakeNode(name=node_name, agent_id=agent_id or f"agent-{name}", info=info, keeps_backlog=keeps_backlog)
        node.samples = {
            device.uuid: DeviceSample(
                uuid=device.uuid,
                taken_at=self.now,
                utilization_percent=0,
                memory_used_bytes=0,
                memory_free_bytes=device.memory_bytes,
            )
            for device in devices
        }
        self.nodes[node_name] = node
        return node

    def announce(self, node: FakeNode, address: str = "10.0.0.1") -> Turn:
        """Its agent registers."""
        return self.take_up(
            NodeAnnounced(
                at=self.now,
                name=node.name,
                agent_id=node.agent_id,
                incarnation=node.incarnation,
                boot_id=node.boot_id,
                info=node.info,
                address=address,
                knows_lineages=node.knows_lineages,
                keeps_backlog=node.keeps_backlog,
            )
        )

    def inventory(
        self,
        node: FakeNode,
        entries: Iterable[tuple[RankKey, ReportedState]] = (),
        forgotten: Iterable[tuple[RankKey, ReportedExited]] = (),
        origins: Iterable[tuple[RankKey, Origin]] = (),
    ) -> Turn:
        """Its agent opens a stream and says what it knows."""
        node.is_connected = True
        self.streams += 1
        node.stream = self.streams
        return self.take_up(
            InventoryReported(
                at=self.now,
                node=node.name,
                agent_id=node.agent_id,
                incarnation=node.incarnation,
                sequence=node.stream,
                stream=node.stream,
                boot_id=node.boot_id,
                info=node.info,
                entries=tuple(entries),
                forgotten=tuple(forgotten),
                origins=tuple(origins),
            )
        )

    def beat(self, name: NodeName) -> Turn:
        """A sign of life with samples of now."""
        node = self.nodes[name]
        return self.take_up(NodeBeat(at=self.now, node=name, stream=node.stream, samples=node.readings(self.now)))

    def join(self, node: FakeNode) -> list[Turn]:
        """Register, open a stream, beat."""
        return [self.announce(node), self.inventory(node), self.beat(node.name)]

    def disconnect(self, name: NodeName) -> Turn:
        """Its stream breaks."""
        node = self.nodes[name]
        node.is_connected = False
        return self.take_up(NodeDisconnected(at=self.now, node=name, stream=node.stream))

    # --- the scheduler

    def restart(self, lineage: str = "") -> Turn:
        """The scheduler starts again: it knows what is stored, and no more."""
        before = self.state.durable
        self._load(lineage)
        assert_same(self.state.durable, before)
        return self.take_up(SchedulerStarted(at=self.now))

    def copy(self) -> FakeStore:
        """What is stored now, to be put back later."""
        return FakeStore(dict(self.store.entities), dict(self.store.finished), list(self.store.records))

    def put_back(self, copy: FakeStore, jobs_above: int, lineage: str = "") -> Turn:
        """The scheduler starts with a copy of its store, and somebody has said that it shall."""
        self.store = copy
        self._load(lineage)
        self.view = load(iter(self.store.entities.values()))
        reason = "the database is older than it was"
        return self.take_up(SchedulerStarted(at=self.now, gap=reason, jobs_above=JobId(jobs_above)))

    def _load(self, lineage: str) -> None:
        self.state = State(durable=load(iter(self.store.entities.values())), limits=self.limits, lineage=lineage)
        self._known, self._wakes = NodeCache(), Wakes()
        for node in self.nodes.values():
            node.is_connected = False

    # --- jobs

    def submit(self, *specs: JobSpec, band: Band = Band.NORMAL, user: str = "alice", held: bool = False) -> Turn:
        """Submit one job per spec."""
        return self.take_up(
            JobsSubmitted(
                at=self.now,
                user=UserName(user),
                jobs=tuple(WantedJob(spec=each, band=band, is_held=held) for each in specs),
            )
        )

    def job(self, number: int) -> Job:
        """A job, live or ended."""
        job_id = JobId(number)
        found = self.state.durable.jobs.get(job_id) or self.store.finished.get(job_id)
        return found or next(item for item in self._ended_together(job_id) if item is not None)

    def _ended_together(self, job_id: JobId) -> Iterator[Job | None]:
        """An item of which only its array knows how it ended."""
        durable = self.state.durable
        for array, tally in durable.tallies.items():
            yield item_ended_together(durable.jobs[array], tally, job_id)
        for job in self.store.finished.values():
            if job.items is not None and job.items.ended is not None:
                yield item_ended_together(job, job.items.ended, job_id)


HELD_AND_INDEXED = tuple(
    each.name
    for each in fields(Durable)
    if each.name
    not in (
        "touched",
        "finished",
        "hold_changes",
        "_largest_device_bytes",
        "_owners",
        "could_hold",
        "lacking_gpu_nodes",
    )
)
"""Everything of a durable state but what it has yet to commit and what it only remembers."""


def assert_same(one: Durable, other: Durable) -> None:
    """Two durable states hold the same, indexes included; what each has yet to commit aside."""
    for name in HELD_AND_INDEXED:
        assert getattr(one, name) == getattr(other, name), f"{name} differ"


def spec(*, name: str = "train", argv: tuple[str, ...] = ("true",), **fields: object) -> JobSpec:
    """A job that asks for little; fields of Resources and JobSpec may be named together."""
    resources = {key: fields.pop(key) for key in tuple(fields) if key in Resources.__dataclass_fields__}
    return JobSpec(argv=argv, name=name, cwd="/", resources=Resources(**resources), **fields)  # type: ignore[arg-type]
