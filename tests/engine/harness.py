"""A real engine over fakes of its ports, and small words to drive it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import TypeVar

from gpufleet.jobs.runs import ExitCode
from scheduler.engine import Changes, Engine
from scheduler.state.attempts import OutputEnd, RankExit
from scheduler.state.durable import Durable
from scheduler.state.events import (
    CancelRequested,
    InventoryReported,
    JobsSubmitted,
    NodeAnnounced,
    NodeBeat,
    OutputSynced,
    RankExited,
    RankStarted,
    ReportedState,
    WantedJob,
)
from scheduler.state.ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from scheduler.state.jobs import Job
from scheduler.state.limits import Limits
from scheduler.state.nodes import Device, DeviceSample, NodeInfo
from scheduler.state.replies import Reply, Submitted
from scheduler.state.specs import Band, JobSpec
from scheduler.state.units import GB
from tests.core.fleet import assert_same, spec
from tests.engine.fakes import FakeClock, FakeStore, RecordingLink

ALICE = UserName("alice")
NOBODY = NodeName("nobody")
DEADLINE_SECONDS = 60.0
T = TypeVar("T")


async def eventually(what: str, is_so: Callable[[], T], seconds: float = DEADLINE_SECONDS) -> T:
    """Wait for a condition with a deadline; its value."""
    end = asyncio.get_running_loop().time() + seconds
    while not (value := is_so()):
        assert asyncio.get_running_loop().time() < end, f"not within {seconds} s: {what}"
        await asyncio.sleep(0.001)
    return value


class Harness:
    """One start of an engine."""

    def __init__(
        self, store: FakeStore | None = None, clock: FakeClock | None = None, limits: Limits | None = None
    ) -> None:
        self.store = store or FakeStore()
        self.clock = clock or FakeClock()
        self.limits = limits or Limits()
        self.link = RecordingLink(self.store)
        self.changes: list[Changes] = []
        self.streams = 0
        self.engine = Engine(self.store, self.link, self.clock, self.limits, self.changes.append)
        self.task: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Harness]:
        """Run the engine; what ended it early is raised at the end."""
        self.task = asyncio.create_task(self.engine.run(), name="engine")
        try:
            yield self
        finally:
            self.store.unblock()
            self.engine.stop()
            try:
                await asyncio.wait_for(self.task, DEADLINE_SECONDS)
            finally:
                self.engine.close()

    def restarted(self) -> Harness:
        """Another start on what is stored."""
        return Harness(self.store.reopened(), self.clock, self.limits)

    # --- looking

    @property
    def view(self) -> Durable:
        return self.engine.view.durable

    @property
    def decided(self) -> Durable:
        """What is decided, stored or not."""
        return self.engine._state.durable

    def job(self, number: int) -> Job:
        """A job as reads see it, live or ended."""
        return self.view.jobs.get(JobId(number)) or self.engine.recently_finished[JobId(number)]

    def check_agreement(self) -> None:
        """What is decided, what is shown and what is stored are the same."""
        assert_same(self.view, self.decided)
        assert_same(self.store.durable(), self.decided)

    # --- time

    async def advance(self, span: int) -> None:
        """Let time pass, and let the loop notice."""
        self.clock.advance(span)
        await self.poke()

    async def poke(self) -> None:
        """A turn in which nothing happens, and every turn before it."""
        await self.engine.report(NodeBeat(at=self.clock.now(), node=NOBODY, stream=0))

    # --- people

    def ask(self, *specs: JobSpec, request_id: str = "", held: bool = False, count: int = 1) -> asyncio.Future[Reply]:
        """Submit, without waiting for the answer."""
        wanted = specs or (spec(),)
        return self.engine.request(
            JobsSubmitted(
                at=self.clock.now(),
                user=ALICE,
                jobs=tuple(WantedJob(spec=each, band=Band.NORMAL, is_held=held) for each in wanted),
                count=count,
                request_id=request_id,
                request_digest=request_id,
            )
        )

    async def submit(self, *specs: JobSpec, request_id: str = "", held: bool = False, count: int = 1) -> JobId:
        """Submit; the first job's id."""
        reply = await self.ask(*specs, request_id=request_id, held=held, count=count)
        assert isinstance(reply, Submitted), reply
        return reply.first

    async def cancel(self, *jobs: int, abandon: bool = False) -> Reply:
        """Cancel jobs."""
        ids = tuple(map(JobId, jobs))
        return await self.engine.request(CancelRequested(at=self.clock.now(), by=ALICE, jobs=ids, is_abandoned=abandon))

    # --- nodes

    async def join(self, name: str = "n1", *, gpus: int = 0, cpus: int = 64) -> NodeName:
        """A node registers, opens a stream and beats."""
        node = NodeName(name)
        info = NodeInfo(
            hostname=name,
            cpus=cpus,
            memory_bytes=64 * GB,
            devices=tuple(
                Device(uuid=DeviceUuid(f"{name}-gpu{index}"), index=index, name="A100", memory_bytes=80 * GB)
                for index in range(gpus)
            ),
        )
        await self.engine.request(
            NodeAnnounced(
                at=self.clock.now(), name=node, agent_id=f"agent-{name}", incarnation=1, boot_id="boot", info=info
            )
        )
        await self.inventory(node)
        await self.beat(node)
        return node

    def inventory(self, node: NodeName, entries: Iterable[tuple[RankKey, ReportedState]] = ()) -> asyncio.Future[Reply]:
        """The node opens a stream."""
        self.streams += 1
        known = self.decided.nodes[node]
        return self.engine.report(
            InventoryReported(
                at=self.clock.now(),
                node=node,
                agent_id=known.agent_id,
                incarnation=known.incarnation,
                sequence=self.streams,
                stream=self.streams,
                boot_id=known.boot_id,
                info=known.info,
                entries=tuple(entries),
            )
        )

    def beat(self, node: NodeName, *, unhealthy: str = "") -> asyncio.Future[Reply]:
        """A sign of life on the node's newest stream, with samples of now."""
        live = self.engine.view.live.nodes.get(node)
        samples = tuple(
            DeviceSample(
                uuid=device.uuid,
                taken_at=self.clock.now(),
                utilization_percent=0,
                memory_used_bytes=0,
                memory_free_bytes=device.memory_bytes,
                is_healthy=not unhealthy,
                unhealthy_reason=unhealthy,
            )
            for device in self.decided.nodes[node].info.devices
        )
        stream = live.stream if live is not None else 0
        return self.engine.report(NodeBeat(at=self.clock.now(), node=node, stream=stream, samples=samples))

    def started(self, node: NodeName, job: int, attempt: int = 1) -> asyncio.Future[Reply]:
        """The rank runs."""
        key = RankKey(JobId(job), attempt, 0)
        return self.engine.report(RankStarted(at=self.clock.now(), node=node, key=key))

    def exited(self, node: NodeName, job: int, attempt: int = 1, *, code: int = 0) -> asyncio.Future[Reply]:
        """The rank has ended, without output."""
        key = RankKey(JobId(job), attempt, 0)
        exit_ = RankExit(exit=ExitCode(code=code), reason="EXITED")
        return self.engine.report(RankExited(at=self.clock.now(), node=node, key=key, exit=exit_))

    def synced(self, job: int, attempt: int = 1, ends: tuple[OutputEnd, ...] = ()) -> asyncio.Future[Reply]:
        """The output of the rank is stored."""
        return self.engine.report(OutputSynced(at=self.clock.now(), key=RankKey(JobId(job), attempt, 0), ends=ends))
