"""A fleet whose programs live on machines with networks of their own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.e2e.fleet import Fleet
from tests.e2e.processes import AgentProcess
from tests.several_nodes.door import Door
from tests.several_nodes.network import Machine

SHORT_SPANS = {
    "GPUCTL_SCHEDULER_NODES_HEARTBEAT": "1s",
    "GPUCTL_SCHEDULER_NODES_LEASE": "12s",
    "GPUCTL_SCHEDULER_NODES_REQUEUE_FENCE": "30s",
}
"""A silent node is SUSPECT after 3 s and LOST after 12 s, so that a look meets both; the fence is the shortest."""


class SpreadFleet(Fleet):
    """The scheduler on `head`; `add_node_on` starts an agent on another machine; `client` speaks through a door."""

    def __init__(
        self,
        folder: Path,
        head: Machine,
        *flags: str,
        environment: Mapping[str, str] | None = None,
        agents_environment: Mapping[str, str] | None = None,
    ) -> None:
        where = flags or ("--host", head.address, "--insecure")
        super().__init__(folder, *where, environment={**SHORT_SPANS, **(environment or {})})
        self.scheduler.inside = head.inside
        self._head = head
        self._agents_environment = dict(agents_environment or {})
        self._door: Door | None = None

    @property
    def dialled(self) -> str:
        """The door's end in this process's network."""
        assert self._door is not None, "the fleet was not started"
        return self._door.address

    async def __aenter__(self) -> SpreadFleet:
        await super().__aenter__()
        self._door = Door(self._head, self.scheduler.address)
        await self._door.open()
        return self

    async def end(self) -> None:
        """End every process and the door."""
        if self._door is not None:
            await self._door.close()
        await super().end()

    async def add_node_on(
        self, machine: Machine, *flags: str, name: str = "", environment: Mapping[str, str] | None = None
    ) -> AgentProcess:
        """Start an agent on the machine, by default with two virtual GPUs, and return once it can be given work."""
        more = flags or ("--virtual-gpus", "2")
        whole = self._agents_environment | dict(environment or {})
        return await self.add_node(name or machine.name, "--insecure", *more, environment=whole, inside=machine.inside)

    def agent(self, machine: Machine, *flags: str, name: str = "") -> AgentProcess:
        """An agent of that machine, not started; the fleet ends it."""
        node = name or machine.name
        folder = self.folder / f"agent-{machine.name}"
        agent = AgentProcess(self.scheduler, folder, node, ["--insecure", *flags], self._agents_environment)
        agent.inside = machine.inside
        self.agents[machine.name] = agent
        return agent

    def as_admin(self) -> dict[str, str]:
        """What the admin has set on a machine to reach this scheduler."""
        token = str(self.scheduler.data / "admin.token")
        return {"GPUCTL_SCHEDULER": self.scheduler.address, "GPUCTL_TOKEN_FILE": token, "GPUCTL_INSECURE": "true"}
