"""One drill: a fleet on machines of their own, people who use it, faults by a plan, and then the truth of it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.v1 import node_pb2, scheduler_pb2

from tests.drills.beside import Outsider, privacy_of, verdict_of
from tests.drills.checker import Violation, check
from tests.drills.database import SQLITE
from tests.drills.faults import FENCE_SECONDS, PEOPLE, SECONDS_PER_FAULT, Fault, plan
from tests.drills.gaps import lost, ran_again
from tests.drills.history import History
from tests.drills.injector import Injector
from tests.drills.joins import NAMES as LATE
from tests.drills.joins import UNWANTED, Joining, Step, steps
from tests.drills.limits import keep_within_limits
from tests.drills.links import Links
from tests.drills.mal import ISOLATED, LIMITED, MAL, WITHSTOOD, Mal
from tests.drills.people import Person
from tests.drills.reading import DIARIES, LOOT, NOTES, STAMPS, read_history
from tests.drills.restores import Restore, Restoring, restores
from tests.e2e.client import Client, dial
from tests.e2e.interpreters import python_of_all
from tests.several_nodes.door import Door
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Network

USERS = ("ada", "bob", "cyd")
PROBER = "eve"
"""Who keeps every node busy, and looks in the end whether it takes work."""

NODE_GPUS, NODE_CPUS = 2, 4
NODE_FLAGS = ("--virtual-gpus", str(NODE_GPUS), "--cpus", str(NODE_CPUS))
SETTINGS = {
    "GPUCTL_SCHEDULER_NODES_HEARTBEAT": "500ms",
    "GPUCTL_SCHEDULER_NODES_LEASE": "6s",
    "GPUCTL_SCHEDULER_NODES_REQUEUE_FENCE": f"{FENCE_SECONDS:.0f}s",
    "GPUCTL_SCHEDULER_POLICY_PREEMPTIBLE_AFTER": "2s",
    "GPUCTL_SCHEDULER_POLICY_BANDS": '{ roles = { user = ["low", "normal", "high", "urgent"] } }',
    "GPUCTL_SCHEDULER_PLACEMENT_DEVICE_PAUSE": "5s",
}
STALL_SECONDS_MAX = 150.0
"""Once all works again, something changes within this until all has ended; a fence is the longest that nothing does."""

SETTLE_SECONDS_MIN, SETTLE_SHARE = 900.0, 2.0
"""And all has ended within this many seconds, or within this many times the drill's own length, whichever is more: how
long the queue that is left takes depends on the machine, and is longer the longer people went on submitting."""

NODE_SECONDS_PER_SUBMIT = 9.0
"""How far apart the submits of one person are, in a fleet of one node; of three nodes a third."""

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What drill is wanted."""

    seed: int
    seconds: float
    node_count: int
    seconds_per_fault: float = SECONDS_PER_FAULT
    store: str = SQLITE
    is_restored: bool = False
    """Whether the store is put back now and then."""

    is_all_hostile: bool = False
    """Whether jobs try what only isolated ones cannot do."""

    @property
    def means(self) -> tuple[str, ...]:
        """What hostile jobs try."""
        return (*WITHSTOOD, *ISOLATED) if self.is_all_hostile else WITHSTOOD

    @property
    def python(self) -> str:
        """What jobs are run by. NoInterpreter where those of other accounts have none."""
        return python_of_all() if self.is_all_hostile else sys.executable

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of the nodes."""
        return tuple(f"node{number}" for number in range(1, self.node_count + 1))

    @property
    def plan(self) -> tuple[Fault, ...]:
        """Its faults."""
        return plan(self.seed, self.nodes, self.seconds, self.seconds_per_fault)

    @property
    def joins(self) -> tuple[Step, ...]:
        """What happens to nodes that join."""
        return steps(self.seed, self.seconds, self.plan, is_restored=self.is_restored)

    @property
    def restores(self) -> tuple[Restore, ...]:
        """When the store is put back."""
        return restores(self.seed, self.seconds) if self.is_restored else ()

    @property
    def command(self) -> str:
        """What replays it."""
        every = f" --every {self.seconds_per_fault:g}" if self.seconds_per_fault != SECONDS_PER_FAULT else ""
        store = f" --store {self.store}" if self.store != SQLITE else ""
        hostile = " --all-hostile" if self.is_all_hostile else ""
        hostile += " --restores" if self.is_restored else ""
        flags = f"--minutes {self.seconds / 60:g} --nodes {self.node_count}{every}{store}{hostile}"
        return f'make drill SEED={self.seed} ARGS="{flags}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What became of a drill."""

    order: Order
    folder: Path
    history: History
    violations: tuple[Violation, ...]
    outsiders: str
    """How much the outsider looked at."""

    @property
    def is_good(self) -> bool:
        """Whether every rule held."""
        return not self.violations

    def summary(self) -> str:
        """How much was tried, in one line."""
        history = self.history
        attempts = sum(len(job.attempts) for job in history.jobs.values())
        total = sum(output.length for output in history.outputs.values())
        put_back = (
            f"{len(history.cuts)} restores, {len(lost(history))} jobs lost, {len(ran_again(history))} run again, "
            if history.cuts
            else ""
        )
        return (
            f"seed {self.order.seed}: {len(self.order.plan)} faults, {len(history.jobs)} jobs, {attempts} attempts, "
            f"{sum(hold.slot is not None for hold in history.holds)} of them out of backlogs, "
            f"{len(history.runs)} processes, {total / 1e6:.0f} MB of output, {len(history.followed)} followers, "
            f"{len(self.order.joins)} joins and the like, {history.hostile} hostile jobs, "
            f"{put_back}and {self.outsiders}"
        )

    def __str__(self) -> str:
        """Of a drill that failed: what went wrong, the plan, and how to repeat it; the shortest account that tells."""
        if self.is_good:
            return f"{self.summary()}; every rule held"
        wrong = [f"  {violation}" for violation in self.violations[:20]]
        left_out = len(self.violations) - len(wrong)
        wrong += [f"  and {left_out} more"] if left_out else []
        happens = [(each.at, str(each)) for each in self.order.plan]
        happens += [(each.at, str(each)) for each in self.order.restores]
        happens += [(each.at, str(each)) for each in self.order.joins]
        faults = [f"  {text}" for _, text in sorted(happens)]
        return "\n".join(
            [
                self.summary(),
                *("broken:", *wrong),
                *("the plan:", *faults),
                f"all of it is in {self.folder}; look at it again: python -m tests.drills --check {self.folder}",
                f"replay: {self.order.command}",
            ]
        )


async def drill(order: Order, folder: Path, network: Network, store_url: str = "") -> Report:
    """Carry a drill out on an empty network and look at what came of it. The folder is left as it is.

    `store_url` is that of an empty database, or empty for a file.
    """
    _prepare(folder)
    surprises, leftovers = await _live(order, folder, network, store_url)
    (folder / NOTES).write_text(json.dumps({"surprises": surprises, "leftovers": leftovers}))
    return await asyncio.to_thread(examine, order, folder, store_url)


def _prepare(folder: Path) -> None:
    for name in (STAMPS, LOOT):
        (folder / name).mkdir(parents=True)
        (folder / name).chmod(0o1777)  # jobs write here, whoever they run as
    folder.chmod(0o755)
    (folder / DIARIES).mkdir()


def examine(order: Order, folder: Path, store_url: str = "") -> Report:
    """Look at what a drill left."""
    history = read_history(folder, store_url)
    found, looked = verdict_of(folder)
    outsiders = (Violation(f"the outsider, {rule}", text) for rule, text in found)
    violations = (*check(history), *outsiders)
    return Report(order=order, folder=folder, history=history, violations=violations, outsiders=looked)


async def _live(order: Order, folder: Path, network: Network, store_url: str) -> tuple[list[str], list[str]]:
    """The drill itself; what was strange, and what was left over."""
    head, place = network.machine("head"), network.machine(PEOPLE)
    machines = [network.machine(name) for name in order.nodes]
    late = [network.machine(name) for name in (*LATE, UNWANTED)]
    means = (*order.means, *(LIMITED if keep_within_limits((*machines, *late)) else ()))
    async with AsyncExitStack() as stack:
        links = Links(network)
        stack.callback(links.close)
        flags = ("--host", head.address, "--insecure", *(("--store", store_url) if store_url else ()))
        environment = SETTINGS | {"GPUCTL_SCHEDULER_PRIVACY_OUTPUT": privacy_of(order.seed)}
        isolated = {"GPUCTL_AGENT_ISOLATION_USERS": "range"} if order.is_all_hostile else {}
        fleet = await stack.enter_async_context(
            SpreadFleet(folder / "fleet", head, *flags, environment=environment, agents_environment=isolated)
        )
        for machine in machines:
            await fleet.add_node_on(machine, *NODE_FLAGS)
        admin = await stack.enter_async_context(fleet.client())
        door = Door(place, fleet.scheduler.address)
        await door.open()
        stack.push_async_callback(door.close)
        everybody = (*USERS, PROBER)
        people = [await stack.enter_async_context(_person(name, admin, door, order, folder)) for name in everybody]
        his = await stack.enter_async_context(_user(MAL, admin, door))
        mal = Mal(his, order.seed, folder / DIARIES, folder / LOOT, order.python, means)
        outsider = Outsider(folder, order.seed, order.python)
        stack.callback(outsider.close)
        await outsider.start(admin, place, fleet.scheduler.address)
        injector = Injector(fleet, links)
        restoring = Restoring(fleet, injector, outsider, folder)
        joining = Joining(fleet, admin, late, folder / "joins", NODE_FLAGS)
        async with asyncio.TaskGroup() as group:
            for person in people[:-1]:
                group.create_task(person.work(order.seconds, NODE_SECONDS_PER_SUBMIT / order.node_count))
            for node in order.nodes:
                group.create_task(people[-1].keep_busy(node, order.seconds))
            group.create_task(mal.work(order.seconds))
            group.create_task(injector.carry_out(order.plan))
            group.create_task(restoring.carry_out(order.restores))
            group.create_task(joining.carry_out(order.joins))
        outsider.tell("over")
        leftovers = await _settled(Site(fleet, network, admin), people, injector, order.seconds)
        await outsider.ended()
        await mal.leave(1.0)
        if injector.left_out:
            print(f"{len(injector.left_out)} faults came too late and were left out: this machine is slow")
        return [*injector.surprises, *joining.surprises], leftovers


@asynccontextmanager
async def _person(name: str, admin: Client, door: Door, order: Order, folder: Path) -> AsyncIterator[Person]:
    async with _user(name, admin, door) as client:
        yield Person(name, client, order.seed, folder / DIARIES, folder / STAMPS, order.python)


@asynccontextmanager
async def _user(name: str, admin: Client, door: Door) -> AsyncIterator[Client]:
    request = scheduler_pb2.CreateTokenRequest(user=name, role=scheduler_pb2.ROLE_USER)
    token = (await admin.stub.CreateToken(request)).secret
    async with dial(door.address, token) as channel:
        client = Client(channel, admin.cwd, set())
        try:
            yield client
        finally:
            client.forget()


@dataclass(frozen=True, slots=True)
class Site:
    """Where a drill takes place, for those who look at it."""

    fleet: SpreadFleet
    network: Network
    admin: Client

    async def left_over(self) -> list[str]:
        """What is not as before the first job: in the scheduler, on the nodes' disks, among their processes."""
        return [*await self._unfinished(), *self._on_disk(), *self._processes()]

    async def _unfinished(self) -> list[str]:
        queue = await self.admin.queue(page_size=1000)
        left = [f"job {job.id} has not ended" for job in queue.jobs]
        for node in (await self.admin.stub.ListNodes(scheduler_pb2.ListNodesRequest())).nodes:
            if node.state != node_pb2.NODE_STATE_READY:
                left.append(f"{node.name} is {node_pb2.NodeState.Name(node.state)}")
            if node.job_ids or node.cpus_used or node.memory_used_bytes:
                left.append(f"{node.name} is still held by jobs {list(node.job_ids)}")
            left += [f"{device.device.uuid} is not free" for device in node.devices if not device.is_free]
        return left

    def _on_disk(self) -> list[str]:
        """Attempts that a node has not been told to forget."""
        return [
            f"{name} still keeps {path.name}"
            for name, agent in self.fleet.agents.items()
            for path in sorted((agent.data / "keeper" / "attempts").glob("[0-9]*"))
        ]

    def _processes(self) -> list[str]:
        """What lives on a node beside its agent, its keepers and their supervisors."""
        found: list[str] = []
        for name, agent in self.fleet.agents.items():
            known = {agent.pid, *agent.keeper_pids(with_supervisors=True)}
            found += [f"process {pid} is left on {name}" for pid in sorted(self.network.machines[name].pids() - known)]
        return found


async def _settled(site: Site, people: list[Person], injector: Injector, seconds: float) -> list[str]:
    """Once everything works again: all comes to its end. What does not, and what is left then."""
    end = time.monotonic() + max(SETTLE_SECONDS_MIN, SETTLE_SHARE * seconds)
    watching = asyncio.create_task(injector.watch())
    try:
        await _in_time(end, *(person.go_home() for person in people))
        left = ["nobody has looked yet"]
        stalls = time.monotonic() + STALL_SECONDS_MAX
        while left and time.monotonic() < min(end, stalls):
            await asyncio.sleep(LOOK_SECONDS)
            before, left = left, await site.left_over()
            if left != before:
                stalls = time.monotonic() + STALL_SECONDS_MAX
        if not left:
            # A node with something lingering takes nothing: each is given all that it can hold.
            await _in_time(end, *(people[-1].probe(node, NODE_GPUS, NODE_CPUS) for node in site.fleet.agents))
        for person in people:
            await person.leave(STALL_SECONDS_MAX if not left else 1.0)
        return left
    finally:
        watching.cancel()


async def _in_time(end: float, *doing: Coroutine[Any, Any, None]) -> None:
    """What is not done by then is left; the checker sees what is missing."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(asyncio.get_running_loop().time() + end - time.monotonic()):
            await asyncio.gather(*doing)
