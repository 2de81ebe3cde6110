"""A node's keepers as the tests hold them: real processes, and words to wait for what they do."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from gpufleet.jobs.runs import JobId, RankKey
from node_agent.core.attempt import Limits
from node_agent.core.launch import Launch, Launched, Process
from node_agent.core.outcome import AttemptEnd, AttemptView, Offsets, Stream
from node_agent.keeper.client import Keepers, OutputEnds
from node_agent.keeper.events import AttemptEnded, Event, KeeperDied
from node_agent.keeper.linux import boottime_us
from node_agent.keeper.processes import all_processes, children, environment_of, look_at
from node_agent.keeper.spawn import KEY_VARIABLE
from node_agent.spool import SpoolReader

COMMAND = (sys.executable, "-P", "-X", "utf8", "-m", "gpufleet.node_agent.keeper")
DEADLINE_S = 60.0
SECOND_US = 1_000_000

Found = TypeVar("Found")


async def until(look: Callable[[], Found | None], what: str = "what was waited for") -> Found:
    """Look again and again until there is something."""
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while asyncio.get_running_loop().time() < end:
        found = look()
        if found:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError(f"{what} did not come within {DEADLINE_S} s")


async def until_async(look: Callable[[], Awaitable[Found | None]], what: str = "what was waited for") -> Found:
    """Like `until`, for what must be awaited."""
    end = asyncio.get_running_loop().time() + DEADLINE_S
    while asyncio.get_running_loop().time() < end:
        found = await look()
        if found:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError(f"{what} did not come within {DEADLINE_S} s")


@contextmanager
def run_apart(*argv: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that is no keeper's, in a session of its own; it is killed at the end."""
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            yield process
        finally:
            process.kill()


def open_files(pid: int | None) -> dict[str, str]:
    """Answer what each of a process's descriptors is; while it is being loaded, its libraries are among them."""
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found[path.name] = str(path.readlink())
    return found


def exists(path: Path | str) -> bool:
    return Path(path).exists()


def is_alive(pid: int) -> bool:
    process = look_at(pid)
    return process is not None and not process.is_dead


def kill_with_supervisors(keeper_pid: int) -> None:
    """Kill a keeper, and before it can do anything about it all that would end its attempts in its place."""
    os.kill(keeper_pid, signal.SIGSTOP)
    for pid in children(keeper_pid):
        os.kill(pid, signal.SIGKILL)
    os.kill(keeper_pid, signal.SIGKILL)


def launch_with(launch: Launch, **changes: Any) -> Launch:
    """The launch with other values in it, or in its process."""
    of_process = {each.name for each in fields(Process)}
    process = replace(launch.process, **{name: value for name, value in changes.items() if name in of_process})
    return replace(
        launch, process=process, **{name: value for name, value in changes.items() if name not in of_process}
    )


@dataclass
class Node:
    """One state directory, the agents that were opened on it, and what they heard."""

    state_dir: Path
    cwd: Path
    agents: list[Keepers] = field(default_factory=list)
    keeper_pids: set[int] = field(default_factory=set)
    keeper_ids: set[str] = field(default_factory=set)

    async def open(self, build: str = "1") -> Agent:
        keepers = await Keepers.open(self.state_dir, build=build, command=COMMAND)
        self.agents.append(keepers)
        agent = Agent(self, keepers)
        agent.note_keepers()
        return agent

    def launch(self, job_id: int, *argv: str, **changes: object) -> Launch:
        process = Process(
            argv=argv,
            env={"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"},
            cwd=str(self.cwd),
            limits=Limits(grace_us=5 * SECOND_US),
        )
        launch = Launch(key=RankKey(JobId(job_id), 1, 0), process=process, heartbeat_sent_us=boottime_us())
        return launch_with(launch, **changes)

    def script(self, job_id: int, text: str, **changes: object) -> Launch:
        return self.launch(job_id, sys.executable, "-c", text, **changes)

    def shell(self, job_id: int, text: str, **changes: object) -> Launch:
        return self.launch(job_id, "/bin/sh", "-c", text, **changes)

    def left_over(self) -> list[int]:
        """List the processes that any keeper of this node started and that still run."""
        prefixes = tuple(os.fsencode(keeper_id) + b":" for keeper_id in self.keeper_ids)
        return [
            process.pid
            for process in all_processes()
            if not process.is_dead and environment_of(process.pid).get(KEY_VARIABLE.encode(), b"-").startswith(prefixes)
        ]

    def kill_keepers(self) -> None:
        """Kill what a failed test may have left."""
        for pid in filter(is_alive, self.keeper_pids):
            os.kill(pid, signal.SIGKILL)

    async def close(self) -> None:
        """End everything that a test started, through an agent where one can still be opened."""
        for keepers in self.agents:
            await keepers.close()
        if self.keeper_ids:
            last = await Keepers.open(self.state_dir, build="last", command=COMMAND)
            await last.shutdown(kill=True, grace_us=0)
            await last.close()
            try:
                await until(lambda: not any(map(is_alive, self.keeper_pids)), "the end of every keeper")
            finally:
                self.kill_keepers()
            assert not self.left_over(), "a keeper left processes behind"


@dataclass
class Agent:
    """One opened `Keepers`, and what it has heard so far."""

    node: Node
    keepers: Keepers
    heard: list[Event] = field(default_factory=list)

    def note_keepers(self) -> None:
        for connection in self.keepers._roster.connections():
            self.node.keeper_pids.add(connection.pid)
            self.node.keeper_ids.add(connection.keeper_id)

    @property
    def keeper_pid(self) -> int:
        """The pid of the keeper that takes launches."""
        return next(c.pid for c in self.keepers._roster.connections() if not c.is_retired)

    async def start(self, launch: Launch) -> AttemptView:
        answer = await self.keepers.launch(launch)
        assert isinstance(answer, Launched), answer
        return answer.attempt

    async def event(self, kind: type[Found], key: RankKey | None = None) -> Found:
        """Answer the first event of this kind (about this attempt) that was not answered before."""

        async def listen() -> Found:
            while True:
                for event in self.heard:
                    if isinstance(event, kind) and (key is None or getattr(event, "key", None) == key):
                        self.heard.remove(event)
                        return event
                self.heard.append(await self.keepers.next_event())

        return await asyncio.wait_for(listen(), DEADLINE_S)

    async def end(self, view: AttemptView) -> AttemptEnd:
        return (await self.event(AttemptEnded, view.key)).end

    async def death(self) -> KeeperDied:
        return await self.event(KeeperDied)

    async def run(self, launch: Launch) -> tuple[AttemptEnd, bytes, bytes]:
        """Launch, wait for the end, and read all output."""
        view = await self.start(launch)
        end = await self.end(view)
        return end, read_all(view, Stream.STDOUT), read_all(view, Stream.STDERR)

    async def output(self, view: AttemptView, least: int) -> bytes:
        """Wait until stdout has at least so many bytes."""
        have = Offsets()
        while have.stdout < least:
            answer = await asyncio.wait_for(self.keepers.wait_for_output(view.key, have), DEADLINE_S)
            assert isinstance(answer, OutputEnds), answer
            have = answer.ends
            if answer.is_final:
                break
        return read_all(view, Stream.STDOUT)

    async def view(self, key: RankKey) -> AttemptView:
        return next(view for view in await self.keepers.inventory() if view.key == key)


def read_all(view: AttemptView, stream: Stream, offset: int = 0) -> bytes:
    reader = SpoolReader(view.directory)
    pieces = []
    while piece := reader.read(stream, offset, 1_000_000).data:
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)
