"""A real agent as a process of its own, with a data folder, for tests that talk to it as a scheduler would."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from gpufleet.security.tokens import write_token_file
from node_agent.keeper.supervisor import NAME as SUPERVISOR_NAME
from tests.e2e.processes import end_keepers
from tests.node_agent.fake_scheduler import FakeScheduler

ENDS_WITHIN_SECONDS = 60.0


class AgentProcess:
    """`start`, then `kill` or `terminate`, then `start` again: the data folder stays."""

    def __init__(
        self,
        scheduler: FakeScheduler,
        folder: Path,
        *flags: str,
        node: str = "n1",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.data = folder / node
        self.log = folder / f"{node}.log"
        token_file = folder / f"{node}.token"
        write_token_file(token_file, scheduler.token)
        self.command = [
            *(sys.executable, "-P", "-m", "gpufleet.node_agent"),
            *("--scheduler", scheduler.address, "--node-id", node, "--data", str(self.data)),
            *("--token-file", str(token_file), "--log-level", "debug"),
            *(flags or ("--virtual-gpus", "2")),
        ]
        self.environment = dict(environment or {})
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        own = {name: value for name, value in os.environ.items() if not name.startswith("GPUCTL_")}
        environment = own | {"GPUCTL_AGENT_ISOLATION_USERS": "shared"} | self.environment
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )

    async def kill(self) -> None:
        """SIGKILL: no word to anybody."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; answers the exit code."""
        return await self._end(signal.SIGTERM)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def _end(self, number: int) -> int:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.send_signal(number)
        code = await asyncio.wait_for(self.process.wait(), ENDS_WITHIN_SECONDS)
        self.process = None
        return code

    async def stop_keeper(self) -> None:
        """End the keeper and whatever runs; the agent must be gone."""
        await end_keepers(self.data)

    async def run(self, *arguments: str) -> tuple[int | None, str]:
        """Run the program with these arguments to its end; answers exit code and stderr."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "gpufleet.node_agent", *arguments), stderr=asyncio.subprocess.PIPE
        )
        try:
            _, said = await asyncio.wait_for(process.communicate(), ENDS_WITHIN_SECONDS)
        except TimeoutError:
            process.kill()
            await process.wait()
            raise
        return process.returncode, said.decode()

    def keeper_pids(self) -> list[int]:
        """The living keepers of this agent's folder, without what one of them has just forked."""
        parents = {
            process.pid: process.info["ppid"]
            for process in psutil.process_iter(["cmdline", "name", "ppid"])
            if str(self.data / "keeper") in (process.info["cmdline"] or []) and process.info["name"] != SUPERVISOR_NAME
        }
        return [pid for pid, parent in parents.items() if parent not in parents]

    async def __aenter__(self) -> AgentProcess:
        await self.start()
        return self

    async def __aexit__(self, *problem: Any) -> None:
        if self.process is not None:
            await self.kill()
        await self.stop_keeper()
        if problem[0] is not None:
            print(self.log.read_text(errors="replace")[-20_000:])
