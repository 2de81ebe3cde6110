"""A whole fleet of real processes in a folder: one scheduler, any number of nodes, and people who use it."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path

from gpufleet.v1 import node_pb2, scheduler_pb2

from tests.e2e.client import Client, dial
from tests.e2e.processes import DEADLINE_SECONDS, AgentProcess, SchedulerProcess, tail_of, until

STORIES_SHOWN = 5
STORY_LINES_SHOWN = 30

started: list[Fleet] = []
"""Fleets that the present test started, for its report; the shared one is not among them."""


class Fleet:
    """`async with Fleet(folder)` starts a scheduler; `add_node` adds nodes; the end ends all of it, jobs too."""

    def __init__(
        self, folder: Path, *flags: str, environment: Mapping[str, str] | None = None, data: Path | None = None
    ) -> None:
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir(parents=True)
        self.scheduler = SchedulerProcess(data or folder / "scheduler", flags, environment)
        self.ca_file: Path | None = None
        """The authority of a scheduler that speaks TLS."""
        self.client_cert_file: Path | None = None
        """The admin's certificate for one that asks for such."""
        self.agents: dict[str, AgentProcess] = {}
        self.seen: set[int] = set()

    async def __aenter__(self) -> Fleet:
        started.append(self)
        await self.scheduler.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()

    async def end(self) -> None:
        """End every process: agents, keepers with their jobs, the scheduler."""
        for agent in self.agents.values():
            agent.kill()
        for agent in self.agents.values():
            await agent.end_keeper()
        if self.scheduler.process is not None:
            await self.scheduler.stop()

    async def add_node(
        self,
        name: str = "n1",
        *flags: str,
        environment: Mapping[str, str] | None = None,
        data: Path | None = None,
        inside: Sequence[str] = (),
    ) -> AgentProcess:
        """Start an agent, by default with two virtual GPUs, and return once its node can be given work."""
        chosen = flags or ("--virtual-gpus", "2")
        folder = data or self.folder / f"agent-{name}"
        agent = AgentProcess(self.scheduler, folder, name, [*chosen, "--log-level", "debug"], environment)
        agent.inside = inside
        self.agents[name] = agent
        agent.spawn()
        await self.node_is_ready(name)
        return agent

    @property
    def dialled(self) -> str:
        """Where the people of `client` find the scheduler."""
        return self.scheduler.address

    async def node_is_ready(self, name: str) -> None:
        """Return once the scheduler hears the node."""

        async def is_ready() -> bool:
            self.agents[name].must_run()
            if not self.agents[name].has_registered():
                return False  # what is heard is the end of the agent before
            nodes = (await client.stub.ListNodes(scheduler_pb2.ListNodesRequest(), timeout=DEADLINE_SECONDS)).nodes
            return any(node.name == name and node.state == node_pb2.NODE_STATE_READY for node in nodes)

        async with self.client() as client:
            await until(f"node {name} is ready", is_ready)

    @asynccontextmanager
    async def client(self, token: str | None = None) -> AsyncIterator[Client]:
        """A person; the admin of the first start unless a token is given."""
        async with dial(
            self.dialled, token or self.scheduler.token("admin"), self.ca_file, self.client_cert_file
        ) as channel:
            person = Client(channel, self.work, self.seen)
            try:
                yield person
            finally:
                person.forget()

    def report(self) -> str:
        """For a failed test: the stories of the newest jobs, and the ends of all logs."""
        parts = [f"story of job {job}:\n{self._stored_story(job)}" for job in sorted(self.seen)[-STORIES_SHOWN:]]
        parts += [f"log of {each.name}:\n{each.tail()}" for each in (self.scheduler, *self.agents.values())]
        for agent in self.agents.values():
            parts += [f"log of keeper {each}:\n{tail_of(each)}" for each in sorted(agent.data.glob("keeper/**/log"))]
        return "\n\n".join(parts)

    def _stored_story(self, job: int) -> str:
        """Read from the database itself: the scheduler may be what failed."""
        database = self.scheduler.data / "scheduler.db"
        if not database.exists():
            return "  (not in a file)"
        try:
            with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
                rows = connection.execute(
                    "SELECT seq, kind, payload FROM record WHERE job_id = ? ORDER BY seq LIMIT ?",
                    (job, STORY_LINES_SHOWN),
                ).fetchall()
        except sqlite3.Error as error:
            return f"  (cannot be read: {error})"
        return "\n".join(f"  {sequence} {kind} {str(payload)[:300]}" for sequence, kind, payload in rows)
