"""Programs that a measurement starts: a scheduler and an agent as a user starts them, and other servers."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
from gpufleet.v1 import scheduler_pb2, scheduler_pb2_grpc

from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target, connect, connect_async
from node_agent.keeper.supervisor import NAME as SUPERVISOR_NAME

START_SECONDS_MAX = 60.0
LOAD_SECONDS_MAX = 300.0
"""How long a scheduler may take to load a long queue."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The running programs and how to reach them."""

    folder: Path
    address: str
    scheduler_pid: int
    agent_pid: int

    @property
    def token(self) -> str:
        """The admin's token."""
        return (self.folder / "scheduler" / "admin.token").read_text().strip()

    @property
    def target(self) -> Target:
        """Where clients connect."""
        host, _, port = self.address.rpartition(":")
        return Target(address=Address(host, int(port)), token=self.token)

    def connect(self) -> grpc.aio.Channel:
        """A channel in the running loop."""
        return connect_async(self.target)

    def programs(self) -> dict[str, int]:
        """The process ids of the three programs, by name."""
        return {"scheduler": self.scheduler_pid, "agent": self.agent_pid, "keeper": self.keeper_pid()}

    def keeper_pid(self) -> int:
        """The keeper of the agent."""
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    is_supervisor = (process / "comm").read_text().strip() == SUPERVISOR_NAME
                except OSError:
                    continue
                if (
                    not is_supervisor
                    and b"gpufleet.node_agent.keeper" in words
                    and str(self.folder).encode() in b" ".join(words)
                ):
                    return int(process.name)
        raise LookupError("the agent has no keeper")


@contextmanager
def fleet(*, cpus: int) -> Iterator[Fleet]:
    """Start a scheduler and an agent with one virtual GPU; stop both, and the keeper, at the end."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    started: list[subprocess.Popen[bytes]] = []
    agent = folder / "agent"
    try:
        started.append(_start(folder, "scheduler", "--port", "0", "--data", str(folder / "scheduler")))
        listening = folder / "scheduler" / "listening"
        _wait_for(listening.exists, "the scheduler")
        address = listening.read_text().strip()
        started.append(
            _start(
                folder,
                "node_agent",
                *("--scheduler", address, "--node-id", "bench", "--virtual-gpus", "1", "--cpus", str(cpus)),
                *("--data", str(agent), "--token-file", str(folder / "scheduler" / "agent.token")),
            )
        )
        running = Fleet(folder, address, started[0].pid, started[1].pid)
        _wait_for(lambda: _is_ready(running), "the agent")
        yield running
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
            process.wait(START_SECONDS_MAX)
        stop_keeper = [sys.executable, "-P", "-m", "gpufleet.node_agent", "stop-keeper", "--data", str(agent), "--kill"]
        subprocess.run(stop_keeper, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scheduler_alone(folder: Path, *flags: str) -> Iterator[Fleet]:
    """Start a scheduler on the data in a folder, as it was left there; stop it at the end. It has no agent."""
    listening = folder / "scheduler" / "listening"
    listening.unlink(missing_ok=True)
    process = _start(folder, "scheduler", "--port", "0", "--data", str(folder / "scheduler"), *flags)
    try:
        _wait_for(
            lambda: listening.exists() and listening.read_text().endswith("\n"), "the scheduler", LOAD_SECONDS_MAX
        )
        running = Fleet(folder, listening.read_text().strip(), process.pid, 0)
        _ready_nodes(running)
        yield running
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(LOAD_SECONDS_MAX)


def _start(folder: Path, program: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / f"{program}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", f"gpufleet.{program}", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # As whom jobs run is measured by itself, in `isolation`.
            env={
                "GPUCTL_AGENT_ISOLATION_USERS": "shared",
                **os.environ,
                "XDG_CONFIG_HOME": str(folder / "config"),
                "XDG_STATE_HOME": str(folder / "state"),
            },
        )


def _is_ready(running: Fleet) -> bool:
    return _ready_nodes(running) == 1


def _ready_nodes(running: Fleet) -> int:
    with connect(running.target) as channel:
        stub = scheduler_pb2_grpc.SchedulerStub(channel)
        info = stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest(), timeout=START_SECONDS_MAX)
    return info.ready_node_count


def _wait_for(condition: Callable[[], bool], what: str, seconds_max: float = START_SECONDS_MAX) -> None:
    deadline = time.monotonic() + seconds_max
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not start")
        time.sleep(0.02)


def free_port() -> int:
    """One that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


@contextmanager
def running(command: Sequence[str], port: int, folder: Path) -> Iterator[None]:
    """A server, from when it listens."""
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"{command[0]} did not listen")
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.wait()
