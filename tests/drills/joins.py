"""Nodes that join a drill while it goes on, what of them is refused, and a node whose credential is taken away.

As with faults, what happens and when is a pure function of the seed. A join begins now and then with a fault of the
scheduler or of the people's link, so that its answer is lost.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import grpc.aio
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import Code, GpufleetError, Reason
from gpufleet.net.status import from_rpc_error
from gpufleet.security.tokens import write_token_file
from tests.drills.faults import SCHEDULER, Fault
from tests.e2e.client import Client
from tests.e2e.processes import AgentProcess
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Machine

NAMES = ("late1", "late2")
"""Nodes that join, each with a token of its own that is good for its name."""

UNWANTED = "stray"
"""A node that must never be one: it comes with a token that is used up, and with one of other names."""

PATTERN = "late*"
CALL_SECONDS_MAX = 10.0
AGAIN_SECONDS = 0.3
JOIN_SECONDS_MAX = 120.0
"""A node that joins is there after this, whatever goes wrong beside it."""

REFUSED_SECONDS_MAX = 90.0
"""And one that must not is told so."""

BEFORE_SECONDS = 6.0
REVOKED_SECONDS = (3.0, 12.0)
BESIDE_SHARE = 0.5
LAST_SECONDS = 40.0
"""Nothing of it begins in these last seconds, so that a revoked node is back when all has to come to its end."""

T = TypeVar("T")


class What(Enum):
    """What happens."""

    JOIN = "joins"
    REVOKE = "is revoked, and approved again"
    USED_UP = "comes with a token that is used up"
    KILL = "has its agent killed"
    OTHER_NAME = "comes with a token of other names"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """It begins `at` seconds from the start; `seconds` later a node is approved, or its agent started, again."""

    at: float
    what: What
    node: str
    seconds: float = 0.0

    def __str__(self) -> str:
        back = f" after {self.seconds:.1f} s" if self.seconds else ""
        return f"{self.at:7.1f}s  node {self.node}: {self.what.value}{back}"


def steps(seed: int, seconds: float, faults: Sequence[Fault], *, is_restored: bool = False) -> tuple[Step, ...]:
    """What happens in a drill of so many seconds, in the order of its beginnings.

    Where the store is put back, uses of tokens and what was revoked are put back as well, so that neither is tried.
    """
    rng = random.Random(f"joins {seed}")
    latest = seconds - LAST_SECONDS
    if latest <= BEFORE_SECONDS:
        return ()
    outages = [fault.at for fault in faults if fault.target == SCHEDULER and fault.at < latest]

    def moment(first: float, last: float) -> float:
        near = [at for at in outages if first <= at <= last]
        if near and rng.random() < BESIDE_SHARE:
            return round(max(0.0, rng.choice(near) - rng.uniform(0.0, 0.8)), 1)
        return round(rng.uniform(first, last), 1)

    found: list[Step] = []
    for name in NAMES:
        joined = moment(BEFORE_SECONDS, latest / 2)
        found.append(Step(at=joined, what=What.JOIN, node=name))
        # Before it has an answer, or as soon as it has one.
        killed = round(min(latest, joined + rng.uniform(0.5, 6.0)), 1)
        found.append(Step(at=killed, what=What.KILL, node=name, seconds=rng.choice((0.0, 2.0))))
        for _ in range(max(1, round((latest - joined) / 300))):
            at = moment(min(latest, joined + 15.0), latest)
            found.append(Step(at=at, what=What.REVOKE, node=name, seconds=round(rng.uniform(*REVOKED_SECONDS), 1)))
    found.append(Step(at=moment(BEFORE_SECONDS, latest), what=What.USED_UP, node=UNWANTED))
    found.append(Step(at=moment(BEFORE_SECONDS, latest), what=What.OTHER_NAME, node=UNWANTED))
    kept = [each for each in found if not (is_restored and each.what in (What.REVOKE, What.USED_UP))]
    return tuple(sorted(kept, key=lambda each: (each.at, each.node)))


class Joining:
    """Carries the steps out. What they come to that they should not is in `surprises`."""

    def __init__(
        self, fleet: SpreadFleet, admin: Client, machines: Sequence[Machine], folder: Path, flags: Sequence[str]
    ) -> None:
        self._fleet = fleet
        self._admin = admin
        self._machines = {machine.name: machine for machine in machines}
        self._folder = folder
        self._flags = flags
        self._in_turn = {name: asyncio.Lock() for name in (*NAMES, UNWANTED)}
        self._joined: dict[str, asyncio.Event] = {name: asyncio.Event() for name in NAMES}
        self._begun: dict[str, asyncio.Event] = {name: asyncio.Event() for name in NAMES}
        self._used_up = ""
        self.surprises: list[str] = []
        self.done: list[Step] = []

    async def carry_out(self, plan: Sequence[Step]) -> None:
        """Let all of it happen, and return once all of it is over."""
        self._folder.mkdir(exist_ok=True)
        start = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for step in plan:
                group.create_task(self._at(start, step))

    async def _at(self, start: float, step: Step) -> None:
        await asyncio.sleep(max(0.0, start + step.at - time.monotonic()))
        if step.what is What.REVOKE:
            await self._joined[step.node].wait()
        elif step.what is What.KILL:
            await self._begun[step.node].wait()
            # Not in turn: it happens to a node that is about to join.
            await self._kill(step)
            return
        async with self._in_turn[step.node]:
            match step.what:
                case What.JOIN:
                    await self._join(step.node)
                case What.REVOKE:
                    await self._revoke(step)
                case What.USED_UP:
                    await self._joined[NAMES[0]].wait()
                    await self._refused(step, Reason.TOKEN_USED_UP, self._used_up)
                case _:
                    await self._refused(step, Reason.PERMISSION_DENIED, (await self._token(PATTERN, 1)).secret)
            self.done.append(step)

    async def _join(self, node: str) -> None:
        secret = (await self._token("*" if node == NAMES[0] else node, 1)).secret
        if node == NAMES[0]:
            self._used_up = secret
        flags = self._with(secret, node)
        agent = self._fleet.agent(self._machines[node], *flags, *self._flags)
        agent.spawn()
        self._begun[node].set()
        if not await self._comes_to(lambda: self._is_ready(node), JOIN_SECONDS_MAX):
            self.surprises.append(f"{node} did not join: {agent.tail()[-2000:]}")
        self._joined[node].set()

    async def _kill(self, step: Step) -> None:
        agent = self._fleet.agents[step.node]
        agent.kill()
        await asyncio.sleep(step.seconds)
        agent.spawn()
        self.done.append(step)

    async def _revoke(self, step: Step) -> None:
        request = scheduler_pb2.RevokeNodeRequest(node=step.node, reason="by the drill")
        await self._insist(lambda: self._admin.stub.RevokeNode(request, timeout=CALL_SECONDS_MAX))
        if not await self._comes_to(lambda: self._is_shut(step.node), JOIN_SECONDS_MAX):
            self.surprises.append(f"{step.node} was revoked, and its streams go on")
        await asyncio.sleep(step.seconds)
        if await self._is_ready(step.node):
            self.surprises.append(f"{step.node} was revoked, and is back before anybody approved it")
        # It joins anew, and its token has let the only node join that it may.
        self._with((await self._token(step.node, 1)).secret, step.node)
        approval = scheduler_pb2.ApproveNodeRequest(node=step.node)
        await self._insist(lambda: self._admin.stub.ApproveNode(approval, timeout=CALL_SECONDS_MAX))
        if not await self._comes_to(lambda: self._is_ready(step.node), JOIN_SECONDS_MAX):
            tail = self._fleet.agents[step.node].tail()[-2000:]
            self.surprises.append(f"{step.node} was approved again, and did not come back: {tail}")

    async def _refused(self, step: Step, reason: Reason, secret: str) -> None:
        """An agent with this token is told why not, and no node of its name is known."""
        data = self._folder / f"{step.node}-{step.what.name.lower()}"
        agent = AgentProcess(self._fleet.scheduler, data, step.node, ["--insecure", *self._with(secret, data.name)])
        agent.inside = self._machines[UNWANTED].inside
        agent.spawn()
        try:
            if not await self._is_told(agent, reason, data.name):
                self.surprises.append(f"{step}, and was not told {reason.name}: {agent.tail()[-1000:]}")
            if await self._node(step.node) is not None:
                self.surprises.append(f"{step}, and is a node now")
        finally:
            agent.kill()
            await agent.end_keeper()

    async def _is_told(self, agent: AgentProcess, reason: Reason, name: str) -> bool:
        """Whether the agent is refused so. The time in which no scheduler answers anybody does not count."""
        left = REFUSED_SECONDS_MAX
        while left > 0:
            if reason.name in (said := agent.log_text()):
                return True
            if reason is Reason.PERMISSION_DENIED and Reason.TOKEN_INVALID.name in said:
                # Its token was made in a gap, and is nobody's any more.
                self._with((await self._token(PATTERN, 1)).secret, name)
            await self._node(UNWANTED)
            await asyncio.sleep(AGAIN_SECONDS)
            left -= AGAIN_SECONDS
        return False

    # --- asking

    def _with(self, secret: str, name: str) -> list[str]:
        """The flags of an agent with this token, which is read anew at each try."""
        file = self._folder / f"{name}.token"
        write_token_file(file, secret)
        return ["--token-file", str(file), "--log-level", "debug"]

    async def _token(self, nodes: str, uses: int) -> scheduler_pb2.CreateTokenResponse:
        request = scheduler_pb2.CreateTokenRequest(
            user="nodes", role=scheduler_pb2.ROLE_NODE, nodes=nodes, uses_max=uses, valid_for=Duration(seconds=86_400)
        )
        made = await self._insist(lambda: self._admin.stub.CreateToken(request, timeout=CALL_SECONDS_MAX))
        assert isinstance(made, scheduler_pb2.CreateTokenResponse), made
        return made

    async def _node(self, name: str) -> scheduler_pb2.ListNodesResponse | None:
        request = scheduler_pb2.ListNodesRequest(names=[name])
        found = await self._insist(lambda: self._admin.stub.ListNodes(request, timeout=CALL_SECONDS_MAX))
        return None if isinstance(found, GpufleetError) or not found.nodes else found

    async def _is_ready(self, name: str) -> bool:
        found = await self._node(name)
        return found is not None and found.nodes[0].is_connected and not found.nodes[0].is_revoked

    async def _is_shut(self, name: str) -> bool:
        found = await self._node(name)
        return found is not None and found.nodes[0].is_revoked and not found.nodes[0].is_connected

    async def _comes_to(self, condition: Callable[[], bool | Awaitable[bool]], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            answer = condition()
            if answer if isinstance(answer, bool) else await answer:
                return True
            await asyncio.sleep(AGAIN_SECONDS)
        return False

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T | GpufleetError:
        """Ask until there is an answer; a refusal is one."""
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                if error.code not in (Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED):
                    return error
            await asyncio.sleep(AGAIN_SECONDS)
