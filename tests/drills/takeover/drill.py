"""A takeover drill: a store, two schedulers, nodes and customers on machines of their own, and what goes wrong.

After each fault the time is taken until a submit is acknowledged that began behind it. The scheduler that was killed,
paused or cut off then stands by, and once it is warm comes the next fault.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import psycopg

from tests.drills.takeover import customers
from tests.drills.takeover.judging_takeovers import Evidence, problems_of, read_evidence, served_after, table_of
from tests.drills.takeover.plan import PlannedTrouble, TakeoverOrder, Trouble
from tests.drills.takeover.store_machine import StoreMachine
from tests.e2e.processes import AgentProcess, SchedulerProcess, clean_environment, until
from tests.leading.pair import copy_keys
from tests.several_nodes.network import Machine, Network

PORT = 50_051
CALM_S = 1.0
"""Between the end of a fault and the next."""

SETTLED_S = 20.0
"""A leader that the store was away for, and that does not beat again, has lost its place by then, and has ended."""

CUT_OFF_S = 12.0
"""A leader that lost its store has ended itself by then."""


class TakeoverDrill:
    """One drill, in a folder of its own. `say` hears what happens, a line each."""

    def __init__(
        self, order: TakeoverOrder, folder: Path, network: Network, programs: Path, say: Callable[[str], None]
    ) -> None:
        self._order = order
        self._folder = folder
        self._say = say
        self._events, self._runs = folder / "events.jsonl", folder / "runs"
        self.measured: list[tuple[Trouble, float]] = []
        self._people = network.machine("people")
        self._node = network.machine("node1")
        self._store_machine = network.machine("store")
        place = folder / "postgres"
        place.mkdir()
        self._store = StoreMachine(programs, place, self._store_machine)
        self._machines: dict[int, Machine] = {}
        self._schedulers = [self._made(number, network.machine(f"sched{number}")) for number in (1, 2)]
        self._agent: AgentProcess | None = None

    def _made(self, number: int, machine: Machine) -> SchedulerProcess:
        flags = ("--host", machine.address, "--insecure", "--standby")
        made = SchedulerProcess(self._folder / f"scheduler{number}", flags)
        made.name = f"scheduler {number}"
        made.address = f"{machine.address}:{PORT}"
        made.inside = machine.inside
        self._machines[id(made)] = machine
        return made

    @property
    def leader(self) -> SchedulerProcess:
        """The scheduler that leads; the other one is behind it in the list."""
        return self._schedulers[0]

    @property
    def standby(self) -> SchedulerProcess:
        """The other one."""
        return self._schedulers[1]

    async def run(self) -> list[str]:
        """Everything in its order; answers what was wrong, nothing for a good drill."""
        await asyncio.to_thread(self._store.start)
        async with self._fleet(), self._customers() as people:
            await self._acknowledged(time.monotonic())
            if self._order.calm_s:
                await self._tell_costs()
            for number, trouble in enumerate(self._order.plan(), 1):
                seconds = await self._carry_out(trouble)
                self.measured.append((trouble.kind, seconds))
                self._say(f"{number}. {trouble}: acknowledged after {seconds:.2f} s")
                await asyncio.sleep(CALM_S)
            assert people.stdin is not None
            people.stdin.close()
            await until("everything that was submitted has ended", lambda: people.returncode is not None)
        evidence = read_evidence(self._events, self._runs)
        problems = problems_of(evidence)
        if people.returncode != 0:
            problems.append(
                f"the customers ended with {people.returncode}: {(self._folder / 'people.log').read_text()}"
            )
        self._report(evidence, problems)
        return problems

    async def _tell_costs(self) -> None:
        """What a standby costs: its processor time and memory beside the leader's, under the submits of the drill."""
        processes = {
            "the leader": psutil.Process(self.leader.pid),
            "the standby": psutil.Process(self.standby.pid),
        }
        before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        await asyncio.sleep(self._order.calm_s)
        for name, process in processes.items():
            share = (sum(process.cpu_times()[:2]) - before[name]) / self._order.calm_s * 100
            self._say(f"{name}: {share:.1f} % of a core, {process.memory_info().rss / 1e6:.0f} MB")

    def _report(self, evidence: Evidence, problems: list[str]) -> None:
        seen_bytes = sum(size for _, size, _ in evidence.followed.values())
        self._say("\n".join(table_of(self.measured)))
        self._say(
            f"{len(evidence.acknowledged)} jobs acknowledged, {sum(evidence.refused.values())} submits refused "
            f"({dict(evidence.refused)}), {seen_bytes} bytes followed, {len(problems)} problems"
        )

    @asynccontextmanager
    async def _fleet(self) -> AsyncIterator[None]:
        url = self._store.network_url(self._store.new_database())
        for each in self._schedulers:
            each.flags += ["--store", url]
        try:
            self.leader.spawn("--port", str(PORT))
            await self._serves(self.leader)
            copy_keys(self.leader, self.standby)
            await self._stands_by(self.standby)
            await self._begin_node()
            yield
        finally:
            if self._agent is not None:
                self._agent.kill()
                await self._agent.end_keeper()
            for each in self._schedulers:
                if each.process is not None:
                    each.process.kill()
                    each.process.wait()
            if self._store.is_running:
                self._store.stop()

    async def _begin_node(self) -> None:
        flags = ["--insecure", "--cpus", "512", "--scheduler", self._both()]
        agent = self._agent = AgentProcess(self.leader, self._folder / "agent", "n1", flags)
        agent.inside = self._node.inside
        agent.spawn()
        await until("the node is there", lambda: agent.must_run() and agent.has_registered())

    @asynccontextmanager
    async def _customers(self) -> AsyncIterator[asyncio.subprocess.Process]:
        token = self.leader.token("admin")
        with (self._folder / "people.log").open("ab") as log:
            people = await asyncio.create_subprocess_exec(
                *self._people.inside,
                *(sys.executable, str(Path(customers.__file__)), str(self._events), self._both()),
                *(str(self._order.submits_per_s), str(self._runs)),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=clean_environment(self._folder, {"GPUCTL_TOKEN": token}),
                cwd=self._folder,
            )
        try:
            yield people
        finally:
            if people.returncode is None:
                people.kill()
            await people.wait()

    def _both(self) -> str:
        return ",".join(sorted(each.address for each in self._schedulers))

    async def _carry_out(self, trouble: PlannedTrouble) -> float:
        """Do it, and mend it; answers the seconds until a submit was acknowledged."""
        match trouble.kind:
            case Trouble.KILLED:
                began = time.monotonic()
                self.leader.kill()
                return await self._taken_over(began)
            case Trouble.PAUSED:
                return await self._paused(trouble)
            case Trouble.STORE_KILLED:
                return await self._store_killed(trouble)
            case Trouble.STORE_LOST:
                return await self._store_lost(trouble)
            case Trouble.CLIENTS_LOST | Trouble.STANDBY_LOST:
                return await self._cut_off(trouble)

    async def _taken_over(self, began: float) -> float:
        """The other one leads, and the one before stands by."""
        await self._serves(self.standby)
        seconds = await self._acknowledged(began)
        before = self._schedulers.pop(0)
        self._schedulers.append(before)
        if before.process is None:
            await self._stands_by(before)
        return seconds

    async def _paused(self, trouble: PlannedTrouble) -> float:
        paused, began = self.leader, time.monotonic()
        paused.signal(signal.SIGSTOP)
        seconds = await self._taken_over(began)
        await asyncio.sleep(trouble.seconds)
        paused.signal(signal.SIGCONT)
        await paused.ended()
        await self._stands_by(paused)
        return seconds

    async def _store_killed(self, trouble: PlannedTrouble) -> float:
        await asyncio.to_thread(self._store.kill)
        await asyncio.sleep(trouble.seconds)
        await asyncio.to_thread(self._store.start)
        seconds = await self._acknowledged(time.monotonic())
        await self._who_leads()
        return seconds

    async def _who_leads(self) -> None:
        """Both may have ended or changed places since there was no store, and some time after it was back."""
        await asyncio.sleep(SETTLED_S)
        for each in tuple(self._schedulers):
            process = each.process
            if process is not None and process.poll() is not None:
                await each.ended()
        leading = self._asked("SELECT pid FROM scheduler_run WHERE role = 'leading' ORDER BY term DESC LIMIT 1")
        if self.standby.process is not None and self.standby.pid == leading:
            self._schedulers.reverse()
        assert self.leader.process is not None and self.leader.pid == leading, "nobody leads"
        if self.standby.process is None:
            await self._stands_by(self.standby)
        else:
            await self._is_warm(self.standby)

    async def _store_lost(self, trouble: PlannedTrouble) -> float:
        cut, began = self.leader, time.monotonic()
        rule = self._rule(self._machines[id(cut)], trouble, self._store_machine)
        self._store_machine.iptables("-I", *rule)
        try:
            seconds = await self._taken_over(began)
            await asyncio.sleep(max(CUT_OFF_S - (time.monotonic() - began), 0.0))
        finally:
            self._store_machine.iptables("-D", *rule)
        await cut.ended()
        await self._stands_by(cut)
        return seconds

    async def _cut_off(self, trouble: PlannedTrouble) -> float:
        """From people, or from the other scheduler: nobody takes over, and all goes on once it is mended."""
        far = self._people if trouble.kind is Trouble.CLIENTS_LOST else self._machines[id(self.standby)]
        rule = self._rule(self._machines[id(self.leader)], trouble, far)
        far.iptables("-I", *rule)
        try:
            await asyncio.sleep(trouble.seconds)
        finally:
            far.iptables("-D", *rule)
        return await self._acknowledged(time.monotonic())

    def _rule(self, leader: Machine, trouble: PlannedTrouble, far: Machine) -> tuple[str, ...]:
        """The firewall's rule, on the far machine, that loses one way between it and the leader."""
        assert far is not leader
        way = ("INPUT", "-s") if trouble.is_from_leader else ("OUTPUT", "-d")
        return (*way, leader.address, "-j", "DROP")

    async def _acknowledged(self, at: float) -> float:
        seconds: float | None = None

        def is_acknowledged() -> bool:
            nonlocal seconds
            seconds = served_after(read_evidence(self._events, self._runs), at)
            return seconds is not None

        await until("a submit is acknowledged", is_acknowledged)
        assert seconds is not None
        return seconds

    async def _serves(self, scheduler: SchedulerProcess) -> None:
        await until(f"{scheduler.name} serves", lambda: scheduler.must_run() and _listens(scheduler))

    async def _stands_by(self, scheduler: SchedulerProcess) -> None:
        (scheduler.data / "listening").unlink(missing_ok=True)
        scheduler.spawn("--port", str(PORT))
        await self._is_warm(scheduler)

    async def _is_warm(self, standby: SchedulerProcess) -> None:
        """Return once it has what is stored now."""
        wanted = self._asked("SELECT record_seq FROM meta")

        def has_it() -> bool:
            standby.must_run()
            query = f"SELECT sequence FROM scheduler_run WHERE pid = {standby.pid} AND role = 'standing by'"
            sequence = self._asked(query)
            return sequence is not None and wanted is not None and sequence >= wanted

        await until(f"{standby.name} is warm", has_it)

    def _asked(self, query: str) -> int | None:
        with psycopg.connect(self._store.socket_url("fleet_1")) as connection:
            row = connection.execute(query.encode()).fetchone()
        return None if row is None else int(row[0])


def _listens(scheduler: SchedulerProcess) -> bool:
    return (scheduler.data / "listening").exists()
