"""Starting a scheduler, an agent and a gateway on this machine, and waiting until work can be given to them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TypeVar

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.config.agent_settings import AUTO, OWNER, AgentSettings
from gpufleet.config.merged import load_program
from gpufleet.config.paths import program_config_file
from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.fleet.client import Client, connected
from gpufleet.fleet.settings import resolve
from gpufleet.net.addresses import Address
from gpufleet.net.listening import why_not

from ..options import Connection
from .folders import Folders, Record, Started, remove_record, started, write_record
from .gateway import Gateway

START_S_MAX = 60.0
"""A program that is not ready after this, in seconds, is given up; a first start makes a database."""

STOP_S_MAX = 15.0
POLL_S = 0.05
HOST = "127.0.0.1"
SCHEDULER_FLAG, GATEWAY_FLAG, GRPC_FLAG = "--scheduler-port", "--port", "--grpc-port"

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpOptions:
    """What `gpuctl up` was asked for."""

    folders: Folders
    port: int
    virtual_gpus: str
    with_agent: bool
    gateway: Gateway | None
    """None: no gateway."""
    shares_account: bool = False
    """Whether the jobs of all users run as this account."""


@dataclass(slots=True)
class Programs:
    """What was started so far."""

    folders: Folders
    children: list[Child] = field(default_factory=list)
    address: str = ""
    pages: list[str] = field(default_factory=list)
    """Where the gateway's page is; empty without one."""
    grpc: str = ""
    """HOST:PORT of served models over gRPC; empty without a gateway."""
    node: node_pb2.Node | None = None
    is_told_to_stop: Callable[[], bool] = lambda: False

    def add(self, child: Child) -> None:
        """Note a program at once, also for a `down` that comes while the others start."""
        self.children.append(child)
        write_record(self.folders.record, self.record())

    def record(self) -> Record:
        """What `down` must know."""
        return Record(
            address=self.address,
            scheduler_data=str(self.folders.scheduler),
            agent_data=str(self.folders.agent),
            node=self.node.name if self.node is not None else "",
            programs=tuple(child.started for child in self.children),
        )

    def client(self) -> AbstractContextManager[Client]:
        """A client with the admin's token."""
        return local_client(self.address, self.folders)

    def reap(self) -> None:
        """Take note of those that have ended."""
        for child in self.children:
            child.has_ended()

    def stop(self) -> None:
        """Stop them, the newest first. Jobs go on: only a start that failed ends this way."""
        for child in reversed(self.children):
            child.started.stop(STOP_S_MAX, while_waiting=child.has_ended)
            child.has_ended()
        if self.children:
            remove_record(self.folders.record)


def local_client(address: str, folders: Folders) -> AbstractContextManager[Client]:
    """A client of the scheduler that `up` started."""
    return connected(resolve(Connection(scheduler=address, token_file=folders.admin_token, connection_timeout="10s")))


class StopRequested(Exception):
    """Somebody wants no fleet any more, before all of it runs."""


def start_programs(
    options: UpOptions, say: Callable[[str], None], is_told_to_stop: Callable[[], bool] = lambda: False
) -> Programs:
    """Start them; when it fails, nothing is left running. Raises ToldToStop when that comes first."""
    programs = Programs(options.folders, is_told_to_stop=is_told_to_stop)
    ports = [(Address(HOST, options.port), SCHEDULER_FLAG)]
    if (gateway := options.gateway) is not None:
        ports.append((Address(gateway.settings.host, gateway.port), GATEWAY_FLAG))
        ports.append((Address(gateway.settings.host, gateway.grpc_port), GRPC_FLAG))
    for address, flag in ports:
        if address.port and (taken := why_not(address, flag)):
            raise taken
    try:
        say("starting the scheduler")
        _start_scheduler(options, programs)
        if options.with_agent:
            say("starting the agent")
            _start_agent(options, programs)
        if gateway is not None:
            say("starting the gateway")
            _start_gateway(gateway, programs)
    except BaseException:
        programs.stop()
        raise
    return programs


def _start_scheduler(options: UpOptions, programs: Programs) -> None:
    folders = options.folders
    arguments = ["--host", HOST, "--port", str(options.port), "--data", str(folders.scheduler)]
    programs.address = _start_listening(programs, "scheduler", ["gpufleet.scheduler", *arguments])

    def answer() -> bool:
        with programs.client() as client:
            try:
                client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
            except UnavailableError:
                return False
        return True

    _wait(programs, answer, "does not answer")


def _start_listening(programs: Programs, name: str, command: list[str]) -> str:
    """Start a program that writes down where it listens; answers where."""
    file = programs.folders.listening(name)
    before = _written_at(file)
    programs.add(Child(name, command))

    def listening() -> str:
        written = _written_at(file)
        return file.read_text().strip() if written is not None and written != before else ""

    return _wait(programs, listening, "does not listen")


def has_gateway() -> bool:
    """Whether what a gateway needs is installed."""
    return all(
        find_spec(name) is not None for name in ("cryptography", "itsdangerous", "starlette", "uvicorn", "websockets")
    )


def _start_gateway(gateway: Gateway, programs: Programs) -> None:
    folders = programs.folders
    arguments = [*gateway.flags, "--data", str(folders.gateway)]
    arguments += ["--scheduler", programs.address, "--token-file", str(folders.gateway_token)]
    listens_at = _start_listening(programs, "gateway", ["gpufleet.gateway", *arguments])
    _wait(programs, lambda: gateway.is_well(listens_at), "does not hear the scheduler")
    programs.pages = gateway.pages(listens_at)
    programs.grpc = gateway.shown(programs.folders.grpc_listening.read_text().strip())


def _start_agent(options: UpOptions, programs: Programs) -> None:
    folders = options.folders
    arguments = [
        "--scheduler",
        programs.address,
        "--token-file",
        str(folders.agent_token),
        "--data",
        str(folders.agent),
    ]
    arguments += [*_as_whom_jobs_run(options), "--virtual-gpus", options.virtual_gpus]
    programs.add(Child("agent", ["gpufleet.node_agent", *arguments]))
    with programs.client() as client:

        def ready() -> node_pb2.Node | None:
            nodes = client.call(client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()).nodes
            return next((node for node in nodes if _is_ours(node)), None)

        programs.node = _wait(programs, ready, "is not ready")


def _as_whom_jobs_run(options: UpOptions) -> list[str]:
    """It is one person's machine, also where that is root: their jobs run as this account, and nobody else's do.

    What the settings of this account's agent say holds.
    """
    if options.shares_account:
        return ["--shared-account"]
    file = program_config_file("agent")
    own = load_program(AgentSettings, "agent", flags={}, environment=os.environ, file=file, file_is_named=False)
    return ["--isolation", OWNER] if own.settings.isolation.users == AUTO else []


def _is_ours(node: node_pb2.Node) -> bool:
    is_up = node.is_connected and node.state in (node_pb2.NODE_STATE_READY, node_pb2.NODE_STATE_DRAINING)
    return is_up and node.info.hostname == socket.gethostname()


def _wait(programs: Programs, found: Callable[[], R | None], what: str) -> R:
    child = programs.children[-1]
    deadline = time.monotonic() + START_S_MAX
    while True:
        if programs.is_told_to_stop():
            raise StopRequested
        value = found()
        if value:
            return value
        if child.has_ended():
            raise child.failure()
        if time.monotonic() >= deadline:
            raise GpufleetError(
                Reason.INTERNAL,
                f"the {child.name} {what} after {START_S_MAX:g} s",
                next_step="See its log, which gpuctl up names at the next try with --verbose.",
            )
        time.sleep(POLL_S)


def _written_at(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


LAST_LINES_MAX = 30
LINE_BYTES_MAX = 4096


class Child:
    """A running program of ours.

    Its stderr is read while we are there; programs keep their whole log in a file, and go on when nobody reads.
    A session of its own keeps a Ctrl-C at our terminal from it: stopping is ours to order.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        environment = {key: value for key, value in os.environ.items() if key not in _OURS}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        self.started: Started = started(name, self._process.pid)
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES_MAX)
        stderr = self._process.stderr
        assert stderr is not None
        self._reader = threading.Thread(target=self._read, args=(stderr,), name=f"{name}-stderr", daemon=True)
        self._reader.start()

    def has_ended(self) -> bool:
        """Whether it has ended; waits for nothing, and reaps it."""
        return self._process.poll() is not None

    def failure(self) -> GpufleetError:
        """Why it ended, from its own last words."""
        self._reader.join(1.0)
        words = [line.decode(errors="replace").rstrip() for line in self._lines]
        said = [line for line in words if line.strip()][-8:]
        code = self._process.returncode
        if not said:
            return GpufleetError(Reason.INTERNAL, f"the {self.name} ended with code {code} and said nothing")
        return GpufleetError(
            Reason.INTERNAL,
            f"the {self.name} ended with code {code}: " + "\n  ".join(said[:-1] or said),
            next_step=said[-1],
        )

    def let_go(self) -> None:
        """Leave it running, on its own."""
        # Popen would complain about a child that is not waited for; init will wait for it.
        self._process.returncode = 0

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LINE_BYTES_MAX):
                self._lines.append(line)


_OURS = frozenset({"GPUCTL_SCHEDULER", "GPUCTL_TOKEN", "GPUCTL_TOKEN_FILE", "GPUCTL_CONTEXT"})
"""Of the submitter, and not meant for programs that are told by flags where everything is."""
