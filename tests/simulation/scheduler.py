"""The scheduler in the simulation: the real engine, links, output hub and agent servicer, killed at any moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import replace
from inspect import isasyncgen
from typing import Any

from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import GpufleetError
from gpufleet.telemetry.spans import OFF
from scheduler.api.fleet.agents import AgentService
from scheduler.api.inside.tunnels import Tunnels
from scheduler.api.output.channels import Channels
from scheduler.api.roles import Authenticator, Caller, _caller
from scheduler.api.sessions.joining import Joining
from scheduler.api.sessions.sessions import SessionCalls
from scheduler.clock import SlewedClock
from scheduler.engine import Changes, Engine, StoreAway, TooManyEvents
from scheduler.known_store import KnownStore, NewestCommit
from scheduler.links import Links
from scheduler.output_hub import OutputHub
from scheduler.outputs.errors import OutputHole
from scheduler.ports import Commit
from scheduler.session_links import SessionLinks
from scheduler.state.access import Role
from scheduler.state.attempts import OutputEnd
from scheduler.state.commands import Command
from scheduler.state.events import Event, NumbersReported, OutputSynced
from scheduler.state.ids import JobId, RankKey, TokenId, UserName
from scheduler.state.jobs import Job
from scheduler.state.limits import GpuRouting, Limits, WarningLimits
from scheduler.state.replies import Reply
from scheduler.state.sessions.commands import SessionCommand
from scheduler.state.state import State
from scheduler.state.units import SECOND, Instant, Span
from scheduler.store.errors import StoreUnavailable
from scheduler.store_position import StorePositions
from tests.simulation.accounts import Accounts
from tests.simulation.disks import STORE_ID, OpenStore, SimulatedOutputs, SimulatedStore
from tests.simulation.left import OpenPlace, SimulatedPlace
from tests.simulation.network import Call
from tests.simulation.world import Broken, World

BEGIN = 1_000_000 * SECOND

LIMITS = Limits(
    heartbeat_interval=Span(4 * SECOND),
    node_lease=Span(25 * SECOND),
    requeue_fence=Span(60 * SECOND),
    unreachable_span=Span(200 * SECOND),
    preemptible_after=Span(5 * SECOND),
    warnings=WarningLimits(idle_span=Span(15 * SECOND), throttled_span=Span(6 * SECOND)),
    kept_wait=Span(30 * SECOND),
    routing=GpuRouting(gpu_wait=Span(8 * SECOND), gpu_queue_limit=1),
)
"""The spans of the rules, shorter, so that a run of minutes meets all of them. (A fence is at least 30 s.)"""


def limits_of(world: World) -> Limits:
    """The limits of a run: in some, a user may hold only so much."""
    rng = world.rng("limits")
    return replace(LIMITS, user_gpus_max=rng.choice((0, 0, 0, 5)), user_jobs_max=rng.choice((0, 0, 0, 6)))


class Faults:
    """What is to go wrong next in the scheduler: each fault strikes once for each time it was armed."""

    def __init__(self) -> None:
        self._armed: dict[str, int] = {}

    def arm(self, fault: str, count: int = 1) -> None:
        self._armed[fault] = self._armed.get(fault, 0) + count

    def take(self, fault: str) -> bool:
        left = self._armed.get(fault, 0)
        if left:
            self._armed[fault] = left - 1
        return left > 0

    def clear(self) -> None:
        self._armed.clear()


class Aborted(Exception):
    """The servicer ended a call with a status."""


class Context:
    """What gRPC gives to a servicer."""

    def __init__(self, call: Call | None) -> None:
        self._call = call

    def peer(self) -> str:
        return "ipv4:10.0.0.1:4711"

    async def write(self, message: Any) -> None:
        assert self._call is not None
        self._call.down.send(message)

    async def abort_with_status(self, status: Any) -> None:
        raise Aborted(status)


def clock_of(world: World, newest: Instant) -> SlewedClock:
    """The real clock: it counts true, the nodes drift against it, and its wall clock is set to wrong times and back."""
    loop = world.loop
    return SlewedClock(
        newest,
        wall_us=lambda: BEGIN + round((loop.now + world.wall_is_off) * 1e6),
        boot_us=lambda: round(loop.now * 1e6),
    )


class SchedulerProcess:
    """One start of the scheduler."""

    def __init__(self, world: World, disk: SimulatedStore, outputs: SimulatedOutputs, place: SimulatedPlace) -> None:
        self.world = world
        self.outputs = outputs
        self.is_alive = True
        self.faults = Faults()
        self._rng = world.rng(f"scheduler {disk.term}")
        self.store = OpenStore(disk, self)
        self._folder, self._memory = disk.folder, self.store.memory
        self._newest_commit = NewestCommit(self._folder.path, self.store.lineage)
        self.links = Links(OFF, origin=world.worker_secrets.origins.text)
        self.hub = OutputHub(outputs, self._on_synced)  # type: ignore[arg-type]
        clock = clock_of(world, self.store.newest_instant())
        self.session_links = SessionLinks(clock.now, world.worker_secrets)
        self.engine = Engine(
            self.store,  # type: ignore[arg-type]
            self,
            clock,
            limits_of(world),
            self._publish,
            tell_session=self._tell_session,
            record=self._record,
            gap=(self._memory.gap, self._memory.jobs_above, self._memory.sessions_above),
        )
        self.accounts = Accounts(world, disk.accounts, self.store, lambda: self.engine)
        self.accounts.begin()
        self.service = AgentService(
            self.engine,
            self.links,
            self.hub,
            "1",
            Channels(self.links),
            Tunnels(self.links),
            world.worker_secrets.nodes,
            _blobs=OpenPlace(place, self),  # type: ignore[arg-type]
            _origins=world.worker_secrets.origins,
            _positions=StorePositions(
                world.worker_secrets.positions,
                self._memory,
                self._known_store,
                self.engine.view.durable,
                self._raise_numbers,
            ),
        )
        self.sessions = SessionCalls()
        self.sessions.engine, self.sessions.session_links = self.engine, self.session_links
        view, now = self.engine.view, self.engine.now
        self.sessions.joining = Joining(view, Authenticator(view, now), clock=lambda: now() / SECOND)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """In the order in which they began, so that a crash ends them in the same order in every process."""
        self._calls: dict[Call, None] = {}
        self.waiting: dict[int, tuple[Callable[[], Any], asyncio.Future[Any]]] = {}
        self._executions = 0
        self._start(self.engine.run())
        self._start(self.hub.run())
        self._start(self.accounts.run())
        self._start(self._note_store())
        world.note("scheduler: starts, term {}", self.store.term)

    @property
    def state(self) -> State:
        return self.engine._state

    # --- its threads

    def execute(self, call: Callable[[], Any], future: asyncio.Future[Any], is_healed: bool) -> None:
        """A call on the store's or the output's thread: it takes its time, mostly little."""
        self._executions += 1
        number = self._executions
        self.waiting[number] = (call, future)
        self.world.after(self._thread_seconds(self._rng, is_healed), self._execute, number)

    @staticmethod
    def _thread_seconds(rng: random.Random, is_healed: bool) -> float:
        roll = rng.random()
        if is_healed or roll < 0.985:
            return 0.0003 + roll * 0.002
        return rng.uniform(0.05, 2.0) if roll < 0.9985 else rng.uniform(5.0, 70.0)

    def _execute(self, number: int) -> None:
        call, future = self.waiting.pop(number, (None, None))
        if call is None or future is None or not self.is_alive:
            return
        try:
            result = call()
        except Broken:
            raise
        except Exception as problem:
            if not future.done():
                future.set_exception(problem)
        else:
            if self.is_alive and not future.done():
                future.set_result(result)

    # --- its end

    def crash(self) -> None:
        """Killed: nothing more is done. A transaction under way may still reach the disk."""
        if not self.is_alive:
            return
        self.world.note("scheduler: dies")
        self.faults.clear()
        waiting = list(self.waiting.values())
        self.waiting.clear()
        for call, _ in waiting:
            # What it does not survive to see it does not see: an error is as good as an answer.
            if self._rng.random() < 0.5:
                with suppress(StoreUnavailable, OutputHole, GpufleetError):
                    call()
        self.is_alive = False
        self._newest_commit.close()
        for task in tuple(self._tasks):
            task.cancel()
        for stream in tuple(self._calls):
            stream.server_has_left = True
            stream.break_()
        self.outputs.crash()
        self.world.scheduler_died(self)

    def close(self) -> None:
        """The run is over."""
        self._newest_commit.close()

    # --- what is asked of it

    def request(self, event_at: Callable[[Instant], Event], answer: Callable[[Reply | Exception], None]) -> None:
        """A person's request; the answer leaves when the engine gives it."""
        try:
            future = self.engine.request(event_at(self.engine.now()))
        except (StoreAway, TooManyEvents) as refusal:
            answer(refusal)
            return

        def done(reply: asyncio.Future[Reply]) -> None:
            problem = reply.exception() if not reply.cancelled() else None
            if not self.is_alive or reply.cancelled():
                return
            answer(reply.result() if problem is None else problem)  # type: ignore[arg-type]
            if self.faults.take("crash between replies"):
                self.crash()

        future.add_done_callback(done)

    def register(self, request: node_agent_pb2.RegisterRequest, answer: Callable[[Any], None]) -> None:
        async def run() -> None:
            try:
                _caller.set(Caller(user=UserName("agents"), role=Role.AGENT, token=TokenId("a")))
                response = await self.service.Register(request, Context(None))
            except Aborted:
                response = None
            if self.is_alive:
                answer(response)

        self._start(run())

    def serve(self, method: str, call: Call) -> None:
        self._calls[call] = None

        async def run() -> None:
            job = self.world.worker_secrets.job_of(call.token, self.engine.view.durable) if call.token else None
            if call.token and job is None:
                self.world.met.add("a worker whose attempt is over")
                self._calls.pop(call, None)
                call.server_ends()
                return
            _caller.set(Caller(user=UserName("alice"), role=Role.ADMIN, token=TokenId("t"), job=job))
            servicer = self.sessions if hasattr(self.sessions, method) else self.service
            served = getattr(servicer, method)(call, Context(call))
            try:
                if isasyncgen(served):
                    async for answer in served:
                        if self.is_alive:
                            call.down.send(answer)
                else:
                    await served
            except (Aborted, GpufleetError):
                pass
            finally:
                self._calls.pop(call, None)
                if self.is_alive:
                    call.server_ends()

        self._start(run())

    # --- what it needs of others

    def send(self, command: Command, stream: int) -> None:
        """The engine's link to the agents."""
        if self.is_alive:
            self.world.checks.command_leaves(command)
            self.links.send(command, stream)
            if self.faults.take("crash between commands"):
                self.crash()

    def _tell_session(self, command: SessionCommand) -> None:
        """The engine's link to gateways and workers."""
        if self.is_alive:
            self.world.checks.session_told(self, command)
            self.session_links.send(command)
            if self.faults.take("crash between commands"):
                self.crash()

    def _on_synced(self, key: RankKey, ends: tuple[OutputEnd, ...]) -> None:
        self.engine.report(OutputSynced(at=self.engine.now(), key=key, ends=ends))

    def _record(self, commit: Commit, sequence: int) -> None:
        if not self.is_alive:
            return
        counters = self.engine.view.durable.counters
        self._newest_commit.note(sequence, counters.next_job, counters.next_session)
        self.accounts.take(commit, sequence)

    async def _note_store(self) -> None:
        """Where a gap was accepted, that is stored before the data folder knows this store."""
        if self._memory.gap:
            await self.engine.begun.wait()
        known = self._known_store()
        assert known is not None
        self._folder.note(self._memory, known)

    def _known_store(self) -> KnownStore | None:
        if self._memory.gap and not self.engine.begun.is_set():
            return None
        counters = self.engine.view.durable.counters
        return KnownStore(
            store_id=STORE_ID,
            lineage=self.store.lineage,
            term=self.store.term,
            sequence=self.store.newest_sequence(),
            next_job=counters.next_job,
            next_session=counters.next_session,
        )

    def _raise_numbers(self, jobs_above: JobId, sessions_above: int) -> None:
        seen = NumbersReported(at=self.engine.now(), jobs_above=jobs_above, sessions_above=sessions_above)
        self.engine.report(seen)

    def _publish(self, changes: Changes) -> None:
        for job in changes.jobs:
            if isinstance(job, Job) and job.attempt is None:
                self.hub.stop_awaiting(job.id)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = self.world.loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if self.is_alive and not task.cancelled():
            problem = task.exception()
            if isinstance(problem, Broken):
                self.world.fail(problem)
            elif problem is not None:
                self.world.fail_with(problem)
