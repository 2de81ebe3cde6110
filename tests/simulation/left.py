"""What ranks leave in the simulation: nodes bring it by the agent's real decisions to the scheduler's real call.

Every folder here is empty but for what is kept for the next attempt, an empty file whose name says whose it is: what is
looked at is what becomes of it, and not how its bytes come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from gpufleet.v1 import node_agent_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import Entry, EntryKind, Folder, manifest_of
from gpufleet.jobs.run_protos import key_to_proto
from gpufleet.jobs.runs import RankKey
from node_agent.core.leavings import Bounds, Leavings
from node_agent.files.results import ANSWER_SECONDS, answer_in
from scheduler.blobs.results import EMPTY_DIGEST, Stored
from scheduler.blobs.upload_places import UploadPlaces
from tests.simulation.network import Call
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.agent import Agent
    from tests.simulation.scheduler import SchedulerProcess

BOUNDS = Bounds(seconds=50.0, bytes_max=10**9)
"""So long a node keeps what the scheduler refuses."""

AWAY_PROBABILITY, NEVER_PROBABILITY = 0.2, 0.05
"""That the place of files is away once, and that it can never store what one rank left."""


class SimulatedPlace:
    """The place of files: what it says is stored survives every crash."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("the place of files")
        self.notes: dict[RankKey, Stored] = {}
        self.manifests: dict[str, bytes] = {}
        self._never: dict[RankKey, bool] = {}

    def has(self, digest: str) -> bool:
        """Whether a manifest is stored."""
        return digest in self.manifests

    def reach(self, key: RankKey) -> None:
        """Errors: STORE_UNAVAILABLE."""
        if key not in self._never:
            self._never[key] = self.rng.random() < NEVER_PROBABILITY
        is_away = self.rng.random() < AWAY_PROBABILITY and not self.world.is_healed
        if self._never[key] or is_away:
            raise GpufleetError(Reason.STORE_UNAVAILABLE, "the place of files is away")


class OpenPlace:
    """The blob store as one scheduler process has it open, as far as what ranks leave needs it."""

    folder_bytes_max = 10**9

    def __init__(self, disk: SimulatedPlace, process: SchedulerProcess) -> None:
        self._disk = disk
        self._process = process
        self.results = self.folders = self
        self.upload_places = UploadPlaces()
        self.trouble: dict[RankKey, str] = {}

    async def on_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        future: asyncio.Future[Any] = self._disk.world.loop.create_future()
        self._process.execute(lambda: call(*arguments), future, self._disk.world.is_healed)
        return await future

    def of(self, key: RankKey) -> Stored | None:
        self._disk.reach(key)
        return self._disk.notes.get(key)

    def add(self, key: RankKey, stored: Stored) -> None:
        self._disk.reach(key)
        self._disk.notes[key] = stored

    def check_room(self, user: str, digest: str, size: int) -> None:
        """There is room."""

    def write(self, user: str, digest: str, offset: int, data: bytes) -> None:
        self._disk.manifests[digest] = data

    def finish(self, user: str, digest: str, size: int) -> None:
        """What was written is durable."""

    def holding(self, keys: Iterable[object]) -> AbstractContextManager[None]:
        return nullcontext()

    def keep(self, wanted: Iterable[object], *, is_asked: bool) -> None:
        """Nothing is dropped here."""

    def read(self, user: str, digest: str) -> Folder:
        assert digest == EMPTY_DIGEST
        return Folder((), ())


class Bringing:
    """The shell around what one agent decides about what ranks left, as thin as it can be made."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._machine, self._world = agent.machine, agent.machine.world
        self._left = Leavings()
        self._refused_at: dict[RankKey, float] = {}
        self._rng = self._world.rng(f"checkpoints on {self._machine.name}")

    def expect(self, key: RankKey, *, keeps: bool) -> None:
        """A rank is to leave something, which is noted before it starts."""
        self._machine.disk.left[key] = self._machine.boot
        if keeps:
            self._machine.disk.steps[key] = 1
            self._world.after(self._rng.choice((1.0, 8.0, 30.0)), self._checkpoint, key)

    def _checkpoint(self, key: RankKey) -> None:
        """A rank that runs has what it keeps stored, as far as it was when it asked."""
        process = self._machine.processes.get(key)
        if not self._agent.is_alive or key not in self._machine.disk.steps or process is None or not process.is_alive:
            return
        kept = self._kept_now(key)
        self._machine.disk.steps[key] += 1

        def answered(message: node_agent_pb2.StoreResultsResponse) -> None:
            if message.is_stored:
                call.hang_up()
            else:
                call.done_writing()

        call = Call(self._world, self._machine.name, answered, lambda: None)
        self._world.serve("StoreResults", call)
        call.send(
            node_agent_pb2.StoreResultsRequest(
                node=self._machine.name,
                incarnation=self._agent.incarnation,
                key=key_to_proto(key),
                kept_manifest=kept,
                is_checkpoint=True,
            )
        )
        self._world.after(self._rng.choice((5.0, 20.0)), self._checkpoint, key)

    def _kept_now(self, key: RankKey) -> bytes | None:
        step = self._machine.disk.steps.get(key)
        if step is None:
            return None
        return manifest_of(Folder((Entry(f"{key.name}-{step}", EntryKind.FILE, 0, False),), ()))

    def adopt(self, known: Collection[RankKey]) -> None:
        """What an earlier start of the agent noted of ranks that no keeper knows."""
        for key, boot in sorted(self._machine.disk.left.items()):
            if key in known:
                continue
            if boot == self._machine.boot:
                self.never_ran(key)
            else:
                self._world.met.add("results of a rank that no keeper knows")
                self.bring(key, lambda: None)

    def never_ran(self, key: RankKey) -> None:
        """It was refused, or given up before it was launched: what was noted of it goes."""
        self._machine.disk.steps.pop(key, None)
        if self._machine.disk.left.pop(key, None) is not None:
            self._world.checks.left_is_deleted(key)

    def bring(self, key: RankKey, then: Callable[[], None]) -> None:
        """Bring what a rank left, and go on once it is deleted."""
        if key in self._machine.disk.left:
            self._send(key, "", then)
        else:
            then()

    def _send(self, key: RankKey, gives_up: str, then: Callable[[], None]) -> None:
        if not self._agent.is_alive:
            return
        self._refused_at.setdefault(key, self._world.now)
        is_over = False

        def heard(message: node_agent_pb2.StoreResultsResponse) -> None:
            if answer_in(message).permits_deletion:
                over(settled=True)
            elif not is_over:
                call.done_writing()

        def over(*, settled: bool = False) -> None:
            nonlocal is_over
            if is_over or not self._agent.is_alive:
                return
            is_over = True
            call.hang_up()
            if settled:
                self._settled(key, then)
            else:
                self._refused(key, gives_up, then)

        call = Call(self._world, self._machine.name, heard, over)
        self._world.serve("StoreResults", call)
        call.send(
            node_agent_pb2.StoreResultsRequest(
                node=self._machine.name,
                incarnation=self._agent.incarnation,
                key=key_to_proto(key),
                gives_up=gives_up,
                kept_manifest=self._kept_now(key),
            )
        )
        self._world.after(ANSWER_SECONDS, over)

    def _settled(self, key: RankKey, then: Callable[[], None]) -> None:
        self._left.settled(key)
        self.never_ran(key)  # or it is gone: it was launched once more meanwhile, and that was refused
        then()

    def _refused(self, key: RankKey, gives_up: str, then: Callable[[], None]) -> None:
        self._world.met.add("results that were refused")
        refused = self._left.refused(key, self._world.now - self._refused_at[key], 1)
        self._refused_at[key] = self._world.now
        why = "" if gives_up else self._left.why_given_up(key, BOUNDS)
        if why:
            self._world.met.add("results that were given up")
            self._send(key, why, then)
        else:
            self._world.after(refused.pause_s, self._send, key, "", then)
