"""Starting a scheduler, an agent and a gateway on this machine, and waiting until work can be given to them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.addresses import Address
from gpufleet.errors import GpufleetError, Reason, UnavailableError
from gpufleet.listening import why_not

from ..client import Client
from ..options import Connection
from ..settings import resolve
from .child import Child
from .folders import Folders
from .gateway import Gateway
from .record import Record

START_S_MAX = 60.0
"""A program that is not ready after this, in seconds, is given up; a first start makes a database."""

STOP_S_MAX = 15.0
POLL_S = 0.05
HOST = "127.0.0.1"
SCHEDULER_FLAG, GATEWAY_FLAG = "--scheduler-port", "--port"

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


@dataclass(slots=True)
class Programs:
    """What was started so far."""

    folders: Folders
    children: list[Child] = field(default_factory=list)
    address: str = ""
    pages: list[str] = field(default_factory=list)
    """Where the gateway's page is; empty without one."""
    node: node_pb2.Node | None = None

    def record(self) -> Record:
        """What `down` must know."""
        return Record(
            address=self.address,
            scheduler_data=str(self.folders.scheduler),
            agent_data=str(self.folders.agent),
            node=self.node.name if self.node is not None else "",
            programs=tuple(child.started for child in self.children),
        )

    def client(self) -> Client:
        """A client with the admin's token."""
        return local_client(self.address, self.folders)

    def stop(self) -> None:
        """Stop them, the newest first. Jobs go on: only a start that failed ends this way."""
        for child in reversed(self.children):
            child.started.stop(STOP_S_MAX, while_waiting=child.has_ended)
            child.has_ended()


def local_client(address: str, folders: Folders) -> Client:
    """A client of the scheduler that `up` started."""
    return Client(resolve(Connection(scheduler=address, token_file=folders.admin_token, connection_timeout="10s")))


def start_programs(options: UpOptions, say: Callable[[str], None]) -> Programs:
    """Start them; when it fails, nothing is left running."""
    programs = Programs(options.folders)
    ports = [(Address(HOST, options.port), SCHEDULER_FLAG)]
    if (gateway := options.gateway) is not None:
        ports.append((Address(gateway.settings.host, gateway.port), GATEWAY_FLAG))
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
    child = programs.children[-1]

    def answer() -> bool:
        client = programs.client()
        try:
            client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        except UnavailableError:
            return False
        finally:
            client.close()
        return True

    _wait(child, answer, "does not answer")


def _start_listening(programs: Programs, name: str, command: list[str]) -> str:
    """Start a program that writes down where it listens; answers where."""
    file = programs.folders.listening(name)
    before = _written_at(file)
    child = Child(name, command)
    programs.children.append(child)

    def listening() -> str:
        written = _written_at(file)
        return file.read_text().strip() if written is not None and written != before else ""

    return _wait(child, listening, "does not listen")


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
    _wait(programs.children[-1], lambda: gateway.is_well(listens_at), "does not hear the scheduler")
    programs.pages = gateway.pages(listens_at)


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
    child = Child("agent", ["gpufleet.node_agent", *arguments, "--virtual-gpus", options.virtual_gpus])
    programs.children.append(child)
    client = programs.client()

    def ready() -> node_pb2.Node | None:
        nodes = client.call(client.scheduler.ListNodes, scheduler_pb2.ListNodesRequest()).nodes
        return next((node for node in nodes if _is_ours(node)), None)

    try:
        programs.node = _wait(child, ready, "is not ready")
    finally:
        client.close()


def _is_ours(node: node_pb2.Node) -> bool:
    is_up = node.is_connected and node.state in (node_pb2.NODE_STATE_READY, node_pb2.NODE_STATE_DRAINING)
    return is_up and node.info.hostname == socket.gethostname()


def _wait(child: Child, found: Callable[[], R | None], what: str) -> R:
    deadline = time.monotonic() + START_S_MAX
    while True:
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
