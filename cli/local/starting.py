"""Starting a scheduler, an agent and a gateway on this machine, and waiting until work can be given to them."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

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
from .child import Child
from .folders import Folders, Record, Started, remove_record, started, write_record
from .gateway import Gateway
from .up_options import NAMES, UpOptions, at_the_same_addresses

START_S_MAX = 60.0
"""A program that is not ready after this, in seconds, is given up; a first start makes a database."""

STOP_S_MAX = 15.0
POLL_S = 0.05
HOST = "127.0.0.1"
SCHEDULER_FLAG, GATEWAY_FLAG, GRPC_FLAG = "--scheduler-port", "--port", "--grpc-port"

R = TypeVar("R")


@dataclass(slots=True)
class Programs:
    """What was started so far."""

    options: UpOptions
    before: tuple[Started, ...] = ()
    """What an earlier `up` has started."""
    kept: tuple[Started, ...] = ()
    """What runs of that, and stays."""
    children: list[Child] = field(default_factory=list)
    address: str = ""
    pages: list[str] = field(default_factory=list)
    """Where the gateway's page is; empty without one."""
    grpc: str = ""
    """HOST:PORT of served models over gRPC; empty without a gateway."""
    node: node_pb2.Node | None = None
    node_name: str = ""
    """The node's, from the record, until its agent is heard."""
    is_told_to_stop: Callable[[], bool] = lambda: False
    is_let_go: bool = False
    """Whether they go on by themselves, without this process."""

    @property
    def folders(self) -> Folders:
        """Where all of it is."""
        return self.options.folders

    def keeps(self, name: str) -> bool:
        """Whether this program runs already."""
        return any(each.name == name for each in self.kept)

    def add(self, child: Child) -> None:
        """Note a program at once, also for a `down` that comes while the others start."""
        self.children.append(child)
        write_record(self.folders.record, self.record())

    @property
    def started(self) -> tuple[Started, ...]:
        """All of them, in the order of starting; what has died as it was, until it is started again."""
        found = {each.name: each for each in (*self.before, *(child.started for child in self.children))}
        return tuple(found[name] for name in NAMES if name in found)

    def record(self) -> Record:
        """What `down` must know."""
        return Record(
            address=self.address,
            scheduler_data=str(self.folders.scheduler),
            agent_data=str(self.folders.agent),
            node=self.node.name if self.node is not None else self.node_name,
            programs=self.started,
            options=self.options.written(),
            by=None if self.is_let_go else started("up", os.getpid()),
        )

    def failure(self) -> GpufleetError | None:
        """Why one of them has ended; None while all run."""
        for child in self.children:
            if child.has_ended():
                return child.failure()
        for each in self.kept:
            if not each.is_running():
                log = self.folders.log(each.name)
                return GpufleetError(
                    Reason.INTERNAL, f"the {each.name} has ended", next_step=f"Its log says why: {log}"
                )
        return None

    def client(self) -> AbstractContextManager[Client]:
        """A client with the admin's token."""
        return local_client(self.address, self.folders)

    def let_go(self) -> None:
        """Leave them running, on their own."""
        for child in self.children:
            child.let_go()
        self.is_let_go = True
        write_record(self.folders.record, self.record())

    def reap(self) -> None:
        """Take note of those that have ended."""
        for child in self.children:
            child.has_ended()

    def stop(self) -> None:
        """Stop what was started now, the newest first. Jobs go on: only a start that failed ends this way."""
        for child in reversed(self.children):
            child.started.stop(STOP_S_MAX, while_waiting=child.has_ended)
            child.has_ended()
        if self.kept:  # what was started now is named as having ended, and is started again the next time
            self.is_let_go = True
            write_record(self.folders.record, self.record())
        elif self.children:
            remove_record(self.folders.record)


def local_client(address: str, folders: Folders) -> AbstractContextManager[Client]:
    """A client of the scheduler that `up` started."""
    return connected(resolve(Connection(scheduler=address, token_file=folders.admin_token, connection_timeout="10s")))


class StopRequested(Exception):
    """Somebody wants no fleet any more, before all of it runs."""


def start_programs(
    options: UpOptions,
    say: Callable[[str], None],
    is_told_to_stop: Callable[[], bool] = lambda: False,
    before: Record | None = None,
) -> Programs:
    """Start those that do not run; when it fails, none of these is left running. Raises StopRequested when that comes
    first. `before` says what an `up` has started: what runs of it stays.
    """
    programs = Programs(options, is_told_to_stop=is_told_to_stop)
    if before is not None:
        programs.before, programs.kept = before.programs, tuple(before.running())
        programs.address, programs.node_name = before.address, before.node
        options = at_the_same_addresses(options, before)
    gateway = options.gateway
    ports = [] if programs.keeps("scheduler") else [(Address(HOST, options.port), SCHEDULER_FLAG)]
    if gateway is not None and not programs.keeps("gateway"):
        ports.append((Address(gateway.settings.host, gateway.port), GATEWAY_FLAG))
        ports.append((Address(gateway.settings.host, gateway.grpc_port), GRPC_FLAG))
    for address, flag in ports:
        if address.port and (taken := why_not(address, flag)):
            raise taken
    try:
        if not programs.keeps("scheduler"):
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

    _wait(programs, answer, "scheduler", "does not answer")


def _start_listening(programs: Programs, name: str, command: list[str]) -> str:
    """Start a program that writes down where it listens; answers where."""
    file = programs.folders.listening(name)
    before = _written_at(file)
    programs.add(Child(name, command))

    def listening() -> str:
        written = _written_at(file)
        return file.read_text().strip() if written is not None and written != before else ""

    return _wait(programs, listening, name, "does not listen")


def has_gateway() -> bool:
    """Whether what a gateway needs is installed."""
    return all(
        find_spec(name) is not None for name in ("cryptography", "itsdangerous", "starlette", "uvicorn", "websockets")
    )


def _start_gateway(gateway: Gateway, programs: Programs) -> None:
    folders = programs.folders
    arguments = [*gateway.flags, "--data", str(folders.gateway)]
    arguments += ["--scheduler", programs.address, "--token-file", str(folders.gateway_token)]
    if programs.keeps("gateway"):
        listens_at = folders.listening("gateway").read_text().strip()
    else:
        listens_at = _start_listening(programs, "gateway", ["gpufleet.gateway", *arguments])
    _wait(programs, lambda: gateway.is_well(listens_at), "gateway", "does not hear the scheduler")
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
    if not programs.keeps("agent"):
        programs.add(Child("agent", ["gpufleet.node_agent", *arguments]))
    with programs.client() as client:

        def ready() -> node_pb2.Node | None:
            nodes = client.call(client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()).nodes
            return next((node for node in nodes if _is_ours(node)), None)

        programs.node = _wait(programs, ready, "agent", "is not ready")


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


def _wait(programs: Programs, found: Callable[[], R | None], name: str, what: str) -> R:
    deadline = time.monotonic() + START_S_MAX
    while True:
        if programs.is_told_to_stop():
            raise StopRequested
        value = found()
        if value:
            return value
        if (failure := programs.failure()) is not None:
            raise failure
        if time.monotonic() >= deadline:
            raise GpufleetError(
                Reason.INTERNAL,
                f"the {name} {what} after {START_S_MAX:g} s",
                next_step="See its log, which gpuctl up names at the next try with --verbose.",
            )
        time.sleep(POLL_S)


def _written_at(file: Path) -> tuple[int, int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns
