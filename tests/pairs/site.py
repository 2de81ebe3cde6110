"""A small real fleet for rows: a scheduler, a gateway, two nodes, and people who type."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpufleet.v1 import scheduler_pb2 as pb

from tests.containers.engine import running_engine
from tests.e2e.client import Client
from tests.e2e.disks import Disk, small_disk
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment
from tests.gateway.stage import Stage
from tests.pairs.hook import Hook
from tests.pairs.typing_at import Done, typed_in_pipes, typed_on_terminal

GPUCTL = (sys.executable, "-P", "-m", "gpufleet.cli")
NODES = ("n1", "n2")
GPUS, CPUS = 32, 128
"""Of each node: every row of a batch has room at once."""

BYSTANDER_SECONDS_MAX = 15.0
"""The longest wait of a job for which there is room: a node that is left out for a while is left out for longer."""

DISK_BYTES, ENVIRONMENTS = 600_000_000, "200MB"
"""Of each node: its disk, and how much of it environments may have."""

TYPED_AT_ONCE = 6
"""Commands that are typed at once, but those that stay with a job."""

CONFIG = """
[policy]
preemptible_after = "0s"
bands = { roles = { user = ["low", "normal", "high"], admin = ["low", "normal", "high", "urgent"] } }
"""
OUTSIDE = Path("/srv")
"""Where fleets lie: jobs that are isolated have a /tmp of their own."""


class Site:
    """The fleet of some rows, which all have the same level of `isolation`."""

    def __init__(self, folder: Path, on: Machine, isolation: str) -> None:
        folder.parent.chmod(0o755)
        folder.mkdir()
        (folder / "scheduler.toml").write_text(CONFIG)
        self.outputs = folder / "outputs"
        self.outputs.mkdir()
        self.outputs.chmod(0o1777)
        self.folder = folder
        self.stage = Stage(folder / "fleet", "--config", str(folder / "scheduler.toml"))
        self.fleet = self.stage.fleet
        self.disks = on.disks
        self._on = on
        self._isolation = isolation
        self._typing = asyncio.Semaphore(TYPED_AT_ONCE)
        self._bystanders = 0
        self.hook = Hook()

    async def start(self) -> None:
        """Start the programs."""
        await self.hook.start()
        await self.stage.start()
        known = {
            "GPUCTL_AGENT_NOTIFY_ALLOW_LOCAL": "true",
            "GPUCTL_AGENT_SETUP_CACHE_LIMIT": ENVIRONMENTS,
            "GPUCTL_AGENT_ISOLATION_USERS": {"shared account": "shared", "own account": "range"}[self._isolation],
        }
        inside: Sequence[str] = ()
        if self._isolation == "shared account":
            known |= self._on.variables
            inside = self._on.inside
        flags = ("--virtual-gpus", str(GPUS), "--cpus", str(CPUS))
        for name in NODES:
            data = self._data(name)
            await self.fleet.add_node(name, *flags, environment=known, data=data, inside=inside)

    async def end(self) -> None:
        """End the programs and all jobs."""
        await self.stage.end()
        await self.hook.end()

    def _data(self, node: str) -> Path:
        return self.disks[node].path / self._isolation.replace(" ", "-")

    @asynccontextmanager
    async def person(self, name: str) -> AsyncIterator[Person]:
        """A user of this name, with a folder of their own."""
        async with self.fleet.client() as admin:
            request = pb.CreateTokenRequest(user=name, role=pb.ROLE_USER)
            token = (await admin.stub.CreateToken(request, timeout=DEADLINE_SECONDS)).secret
        folder = self.folder / name
        folder.mkdir()
        async with self.fleet.client(token) as client:
            yield Person(self, name, token, folder, client)

    @asynccontextmanager
    async def admin(self) -> AsyncIterator[Person]:
        """The administrator."""
        async with self.fleet.client() as client:
            yield Person(self, "admin", self.fleet.scheduler.token("admin"), self.folder, client)

    async def type(
        self, folder: Path, token: str, *words: str, stdin: bytes = b"", stays: bool = False, on_terminal: int = 0
    ) -> Done:
        """What `gpuctl` prints and exits with, typed in a folder; one that `stays` with a job keeps nobody waiting.

        `on_terminal` is the number of ranks that a terminal shows.
        """
        known = {"GPUCTL_SCHEDULER": self.fleet.scheduler.address, "GPUCTL_TOKEN": token}
        command = (*GPUCTL, *words)
        variables = clean_environment(folder, known)
        async with AsyncExitStack() as turn:
            if not stays:
                await turn.enter_async_context(self._typing)
            if on_terminal:
                return await typed_on_terminal(command, variables, folder, stdin, on_terminal)
            return await typed_in_pipes(command, variables, folder, stdin)

    async def get(self, token: str, path: str) -> Any:
        """What the HTTP API answers."""
        request = urllib.request.Request(
            f"http://{self.stage.gateway}/api/v1/{path}", headers={"Authorization": f"Bearer {token}"}
        )

        def answer() -> Any:
            with urllib.request.urlopen(request, timeout=DEADLINE_SECONDS) as response:
                return json.load(response)

        return await asyncio.to_thread(answer)

    async def bystander(self) -> None:
        """Somebody else's job, which must start on time whatever happens to the others."""
        self._bystanders += 1
        async with self.person(f"bystander-{self._bystanders}") as person:
            done = await person.type("run", "--gpus", "1", "--cwd", "/", "--", "echo", "here", stays=True)
            assert (done.code, done.out) == (0, "here\n"), f"the bystander's job: {done}"
            (entry,) = (await person.shown("history", "--user", person.name))["jobs"]
            submitted, started = (datetime.fromisoformat(entry[each]) for each in ("submit_time", "start_time"))
            waited = (started - submitted).total_seconds()
            assert waited <= BYSTANDER_SECONDS_MAX, f"the bystander's job waited for {waited:g} s"

    def left_of(self, job: int) -> list[str]:
        """What nodes still have of a job: folders of its attempts, and processes."""
        folders = [(name, each) for name in NODES for each in self._data(name).glob(f"files/attempts/{job}.*")]
        return [*(f"{name}: {each.name}" for name, each in folders), *self._processes_of(job)]

    def _processes_of(self, job: int) -> list[str]:
        variable, scheduler = f"GPUFLEET_JOB_ID={job}", f"GPUFLEET_SCHEDULER={self.fleet.scheduler.address}"
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                variables = (path / "environ").read_bytes().decode(errors="replace").split("\0")
                if variable in variables and scheduler in variables:
                    found.append(f"process {path.name}: {(path / 'comm').read_text().strip()}")
            except OSError:
                continue  # it has ended, or is another user's
        return found


class Person:
    """Somebody with a token and a folder, who types, and whose calls a test makes as well."""

    def __init__(self, site: Site, name: str, token: str, folder: Path, client: Client) -> None:
        self.site = site
        self.name = name
        self.folder = folder
        self.client = client
        self._token = token

    async def type(self, *words: str, stdin: bytes = b"", stays: bool = False, on_terminal: int = 0) -> Done:
        """Type `gpuctl` with these words in the own folder."""
        return await self.site.type(self.folder, self._token, *words, stdin=stdin, stays=stays, on_terminal=on_terminal)

    async def shown(self, *words: str) -> Any:
        """What a reading command shows, as JSON."""
        done = await self.type(*words, "-o", "json")
        assert done.code == 0, f"gpuctl {' '.join(words)}: {done.err}"
        return json.loads(done.out)

    async def get(self, path: str) -> Any:
        """What the HTTP API answers them."""
        return await self.site.get(self._token, path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the fleets of a run share: disks, and a container engine."""

    disks: Mapping[str, Disk]
    """By node."""
    variables: Mapping[str, str]
    """For agents, so that they find the engine."""
    inside: Sequence[str] = ()
    """How programs get to where the engine's mounts are seen."""


@contextmanager
def machine(*, has_engine: bool) -> Iterator[Machine]:
    """Disks, mounted before the engine starts, which sees the mounts that are there then."""
    with ExitStack() as ended:
        disks = {name: ended.enter_context(small_disk(DISK_BYTES)) for name in NODES}
        if not has_engine:
            yield Machine(disks=disks, variables={})
            return
        # Podman takes no folder whose name is long.
        folder = ended.enter_context(tempfile.TemporaryDirectory(prefix="engine-", dir="/tmp"))
        engine, process = ended.enter_context(running_engine(Path(folder)))
        yield Machine(disks=disks, variables=engine.environment, inside=process.mounts)


@asynccontextmanager
async def running_site(isolation: str, on: Machine) -> AsyncIterator[Site]:
    """A fleet whose nodes run jobs in this way; everything ends with the block."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-pairs-", dir=OUTSIDE if os.access(OUTSIDE, os.W_OK) else None))
    site = Site(folder / "site", on, isolation)
    try:
        await site.start()
        yield site
    finally:
        await site.end()
        shutil.rmtree(folder)
