"""An upgrade drill: a scheduler, agents, a gateway and people of both versions on machines of their own, replaced
one by one under load.

A job on each node runs from before the first step until behind the last, so that it outlives each agent. After each
step the time is taken until a submit is acknowledged of people of each version that began behind it.
"""

from __future__ import annotations

import asyncio
import hashlib
import http.client
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from pathlib import Path

from gpufleet.errors import Reason
from tests.drills.takeover import customers
from tests.drills.takeover.judging_takeovers import Evidence, problems_of, read_evidence, served_after
from tests.drills.upgrades.two_versions import NEWER, Version
from tests.drills.upgrades.upgrade_plan import GATEWAY, SCHEDULER, Move, Step, UpgradeOrder
from tests.e2e.processes import AgentProcess, Program, SchedulerProcess, clean_environment, until
from tests.several_nodes.network import Done, Network

PORT, GATEWAY_PORT = 50_051, 8080
GATEWAY_SECONDS_MAX = 10.0
REFUSES = "a newer version of this program made the store's tables"
LOST_CONTACT = {
    each.name for each in (Reason.SCHEDULER_UNREACHABLE, Reason.OUTCOME_UNKNOWN, Reason.DEADLINE, Reason.CANCELLED)
}
"""Why somebody gives up a question while a scheduler stops, or is away for longer than clients wait."""

LONG_JOB = 'echo begun; while ! test -e "$GO"; do sleep 0.2; done; echo ended'
LONG_JOB_PRINTS = "begun\nended\n"


class UpgradeDrill:
    """One drill, in a folder of its own. `say` hears what happens, a line each."""

    def __init__(
        self,
        order: UpgradeOrder,
        folder: Path,
        network: Network,
        versions: tuple[Version, Version],
        say: Callable[[str], None],
    ) -> None:
        self._order, self._folder, self._say = order, folder, say
        self._older, self._newer = versions
        self._runs, self._go = folder / "runs", folder / "go"
        self.measured: list[tuple[Step, float]] = []
        self.problems: list[str] = []
        head = network.machine("head")
        self._people = network.machine("people")
        self._scheduler = SchedulerProcess(folder / "scheduler", ("--host", head.address, "--insecure"))
        self._scheduler.address = f"{head.address}:{PORT}"
        self._scheduler.inside = head.inside
        self._head = head
        self._machines = {name: network.machine(name) for name in order.agents}
        self._agents: dict[str, AgentProcess] = {}
        self._gateway: Program | None = None
        self._long_jobs: dict[str, int] = {}
        self._backup = folder / "backup.tar"
        self._jobs_backed_up: list[int] = []

    async def run(self) -> list[str]:
        """Everything in its order; answers what was wrong, nothing for a good drill."""
        async with self._fleet(), AsyncExitStack() as stack:
            await self._check_upgrade()
            await self._begin_long_jobs()
            crowds = [await stack.enter_async_context(self._crowd(version)) for version in self._both()]
            await self._acknowledged(time.monotonic())
            for number, step in enumerate(self._order.plan(), 1):
                began = time.monotonic()
                await self._carry_out(step)
                done = time.monotonic()
                seconds = await self._acknowledged(done)
                self.measured.append((step, seconds))
                self._say(f"{number}. {step}, in {done - began:.2f} s; acknowledged after {seconds:.2f} s more")
            for crowd in crowds:
                assert crowd.stdin is not None
                crowd.stdin.close()
            await until(
                "everything that was submitted has ended", lambda: all(c.returncode is not None for c in crowds)
            )
            await self._end_long_jobs()
            for version, crowd in zip(self._both(), crowds, strict=True):
                await self._judge(version, crowd)
            await self._go_back()
        return self.problems

    # --- the fleet

    def _both(self) -> tuple[Version, Version]:
        return self._older, self._newer

    @asynccontextmanager
    async def _fleet(self) -> AsyncIterator[None]:
        """All of the older version."""
        self._scheduler.environment |= self._older.environment
        try:
            await self._serve()
            for name, machine in self._machines.items():
                flags = ("--insecure", "--cpus", "512")
                agent = AgentProcess(self._scheduler, self._folder / name, name, flags, self._older.environment)
                agent.inside = machine.inside
                self._agents[name] = agent
                await self._join(agent)
            await self._open_gateway(self._older)
            yield
        finally:
            if self._gateway is not None:
                self._gateway.kill()
            for agent in self._agents.values():
                agent.kill()
                await agent.end_keeper()
            self._scheduler.kill()

    async def _serve(self) -> None:
        listening = self._scheduler.data / "listening"
        listening.unlink(missing_ok=True)
        self._scheduler.spawn("--port", str(PORT))
        await until("the scheduler serves", lambda: self._scheduler.must_run() and listening.exists())

    async def _join(self, agent: AgentProcess) -> None:
        agent.spawn()
        await until(f"{agent.name} is there", lambda: agent.must_run() and agent.has_registered())

    async def _open_gateway(self, version: Version) -> None:
        if self._gateway is None:
            token = self._scheduler.data / "gateway.token"
            flags: tuple[str, ...] = (
                "--scheduler",
                self._scheduler.address,
                "--token-file",
                str(token),
                "--gateway-id",
                "edge",
            )
            flags += ("--host", self._head.address, "--port", str(GATEWAY_PORT), "--insecure")
            self._gateway = Program("gateway", self._folder / "gateway", "gpufleet.gateway", flags, {})
            self._gateway.inside = self._head.inside
        gateway = self._gateway
        gateway.environment |= version.environment
        gateway.spawn()
        await until("the gateway hears the scheduler", lambda: gateway.must_run() and asyncio.to_thread(self._is_heard))

    def _is_heard(self) -> bool:
        """Whether the gateway says that it hears the scheduler; asked from another machine."""
        asking = http.client.HTTPConnection(self._head.address, GATEWAY_PORT, timeout=GATEWAY_SECONDS_MAX)
        with closing(asking), suppress(OSError, http.client.HTTPException):
            with self._people.sockets():
                asking.connect()
            asking.request("GET", "/healthz")
            return asking.getresponse().status == http.HTTPStatus.OK
        return False

    # --- people

    @asynccontextmanager
    async def _crowd(self, version: Version) -> AsyncIterator[asyncio.subprocess.Process]:
        """People of a version, who submit and follow until their standard input ends."""
        more = {"GPUCTL_TOKEN": self._scheduler.token("admin"), **version.environment}
        rate = self._order.submits_per_s / 2
        with self._log_of(version).open("ab") as log:
            people = await asyncio.create_subprocess_exec(
                *self._people.inside,
                *(sys.executable, str(Path(customers.__file__)), str(self._events_of(version))),
                *(self._scheduler.address, str(rate), str(self._runs)),
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=clean_environment(self._folder, more),
                cwd=self._folder,
            )
        try:
            yield people
        finally:
            if people.returncode is None:
                people.kill()
            await people.wait()

    def _events_of(self, version: Version) -> Path:
        return self._folder / f"events-{version.name}.jsonl"

    def _log_of(self, version: Version) -> Path:
        return self._folder / f"people-{version.name}.log"

    def evidence_of(self, version: Version) -> Evidence:
        """What the people of a version met, and what their jobs did."""
        found = read_evidence(self._events_of(version), self._runs)
        for job in [job for job in found.runs if job not in found.acknowledged and found.runs[job] < 2]:
            del found.runs[job]  # of people of the other version
        return found

    async def _acknowledged(self, at: float) -> float:
        """Seconds until people of both versions had a submit acknowledged that they began behind that."""

        def slowest() -> float | None:
            found = [served_after(self.evidence_of(version), at) for version in self._both()]
            return max(each for each in found if each is not None) if None not in found else None

        await until("people of both versions are served", lambda: slowest() is not None)
        seconds = slowest()
        assert seconds is not None
        return seconds

    async def _gpuctl(self, version: Version, *words: str) -> Done:
        more = {"GPUCTL_TOKEN": self._scheduler.token("admin"), "GPUCTL_SCHEDULER": self._scheduler.address}
        more |= {"GPUCTL_INSECURE": "1", **version.environment}
        return await self._people.gpuctl(*words, home=self._folder, **more)

    async def _check_upgrade(self) -> None:
        """The newer gpuctl says what is to be upgraded, and that nothing is in the way."""
        done = await self._gpuctl(self._newer, "upgrade", "--check", "-o", "json")
        assert done.code == 0, (done.out, done.err)
        found = json.loads(done.out)
        assert found["after"] == NEWER and found["in_the_way"] == []
        wanted = {"the scheduler", *(f"node {name}" for name in self._order.agents)}
        assert wanted <= found["to_upgrade"].keys(), found

    async def _begin_long_jobs(self) -> None:
        for name in self._order.agents:
            words = ("submit", "-o", "name", "--cwd", "/", "--nodelist", name, "--env", f"GO={self._go}")
            done = await self._gpuctl(self._older, *words, "--", "sh", "-c", LONG_JOB)
            assert done.code == 0, (done.out, done.err)
            self._long_jobs[name] = int(done.out)
        await until("they have begun", self._have_begun)

    async def _have_begun(self) -> bool:
        for job in self._long_jobs.values():
            if (await self._gpuctl(self._older, "logs", str(job))).out != "begun\n":
                return False
        return True

    async def _end_long_jobs(self) -> None:
        """Each has run once, from before the first step until now, and nothing that it printed is lost."""
        self._go.touch()
        for name, job in self._long_jobs.items():
            waited = await self._gpuctl(self._newer, "wait", str(job))
            told = json.loads((await self._gpuctl(self._newer, "job", str(job), "-o", "json")).out)
            printed = (await self._gpuctl(self._newer, "logs", str(job))).out
            attempts = told.get("attempt_count", told.get("attemptCount"))
            if (waited.code, printed, attempts) != (0, LONG_JOB_PRINTS, 1):
                self.problems.append(f"job {job}, which ran on {name}: {waited}, {printed!r}, {attempts} attempts")

    # --- the steps

    async def _carry_out(self, step: Step) -> None:
        version = self._older if step.move is Move.TO_OLDER else self._newer
        if step.move is Move.REFUSED:
            await self._scheduler.stop()
            await self._try_older_scheduler()
            await self._serve()
        elif step.program == SCHEDULER:
            await self._back_up()
            await self._scheduler.stop()
            self._scheduler.environment |= version.environment
            await self._serve()
        elif step.program == GATEWAY:
            assert self._gateway is not None
            await self._gateway.stop()
            await self._open_gateway(version)
        else:
            agent = self._agents[step.program]
            await agent.stop()
            agent.environment |= version.environment
            await self._join(agent)

    async def _try_older_scheduler(self) -> None:
        """It refuses the newer store in a sentence, and has changed nothing of it."""
        before = await asyncio.to_thread(digest_of, self._scheduler.data / "scheduler.db")
        words = ("gpufleet.scheduler", "--data", str(self._scheduler.data), "--port", str(PORT), "--insecure")
        more = self._older.environment
        done = await self._head.run(sys.executable, "-P", "-m", *words, home=self._folder, **more)
        after = await asyncio.to_thread(digest_of, self._scheduler.data / "scheduler.db")
        if done.code == 0 or REFUSES not in done.err:
            self.problems.append(f"the older scheduler did not refuse the newer store: {done}")
        if before != after:
            self.problems.append("the older scheduler changed the store that it refused")

    async def _back_up(self) -> None:
        """As docs/install.md says: before the scheduler is upgraded, by the version that it has, while it works."""
        self._jobs_backed_up = [job for each in self._both() for job in self.evidence_of(each).acknowledged]
        await self._older_scheduler_does("backup", str(self._backup))

    async def _go_back(self) -> None:
        """As docs/install.md says: the older scheduler on the backup knows what was there then, and goes on with it."""
        await self._scheduler.stop()
        await self._older_scheduler_does("restore", str(self._backup), "--replace")
        self._scheduler.environment |= self._older.environment
        await self._serve()
        for agent in self._agents.values():
            await agent.stop()
            agent.environment |= self._older.environment
            await self._join(agent)
        known = json.loads((await self._gpuctl(self._older, "queue", "--all", "-o", "json")).out)
        numbers = {int(each["id"]) for each in known["jobs"]}
        gone = sorted({*self._jobs_backed_up, *self._long_jobs.values()} - numbers)
        if gone:
            self.problems.append(f"jobs {gone} were in the backup, and are gone once it is restored")
        done = await self._gpuctl(self._older, "run", "--cwd", "/", "--", "echo", "back")
        if (done.code, done.out) != (0, "back\n"):
            self.problems.append(f"the older version runs nothing once the backup is restored: {done}")
        self._say(f"back on the backup: {len(numbers)} jobs known, and another one ran")

    async def _older_scheduler_does(self, *words: str) -> None:
        words = ("gpufleet.scheduler", *words, "--data", str(self._scheduler.data))
        done = await self._head.run(sys.executable, "-P", "-m", *words, home=self._folder, **self._older.environment)
        assert done.code == 0, done

    # --- what came of it

    async def _judge(self, version: Version, people: asyncio.subprocess.Process) -> None:
        evidence = self.evidence_of(version)
        gave_up = [job for job, why in evidence.lost.items() if why.partition(":")[0] in LOST_CONTACT]
        for job in gave_up:
            # A scheduler may be away for longer than people have patience; what they followed must be there.
            del evidence.lost[job]
            evidence.followed[job] = await self._asked_again(version, job)
        self.problems += [f"people of {version.name}: {each}" for each in problems_of(evidence)]
        if people.returncode != 0:
            log = self._log_of(version).read_text()
            self.problems.append(f"people of {version.name} ended with {people.returncode}: {log}")
        seen_bytes = sum(size for _, size, _ in evidence.followed.values())
        self._say(
            f"people of {version.name}: {len(evidence.acknowledged)} jobs acknowledged, "
            f"{sum(evidence.refused.values())} submits refused ({dict(evidence.refused)}), {seen_bytes} bytes seen, "
            f"{len(gave_up)} followers gave up meanwhile and asked again"
        )

    async def _asked_again(self, version: Version, job: int) -> tuple[bool, int, str]:
        """Whether all that the job printed is there, how many bytes, and how it ended; once it has."""
        waited = await self._gpuctl(version, "wait", str(job))
        printed = (await self._gpuctl(version, "logs", str(job))).out
        return printed == customers.expected_of(job), len(printed), "succeeded" if waited.code == 0 else waited.err


def digest_of(database: Path) -> str:
    """Of everything that a database of SQLite holds, tables and rows."""
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()
