"""A container's runner and an engine that tells of ends late, or never: as no real one does."""

from __future__ import annotations

import json
import os
import re
import socketserver
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node_agent.keeper.containers.state import ContainerState, read_state, write_state
from node_agent.keeper.processes import look_at

DEADLINE_SECONDS = 120.0
SEEN_BY_NOBODY = 2**30
"""No process has this number on any machine."""

RUNNER = "from node_agent.keeper.containers.runner import main; import sys; main(sys.argv[1:])"
STAND_IN = """\
import os, sys
from node_agent.core.launch import Container
from node_agent.keeper.containers.entered import CommandInside, StandIn
container = Container(id="c", engine=sys.argv[1], state=sys.argv[2])
command = CommandInside(container=container, argv=("work",), env={}, input=None)
os._exit(StandIn(command, os.open(os.devnull, os.O_WRONLY)).run())
"""


class Engine(socketserver.ThreadingUnixStreamServer):
    """One container, or a command in it, whose process is on another machine. It ends at once with the code 3."""

    daemon_threads = True

    def __init__(self, socket: str, *, hangs_up: bool, looks_to_end: int) -> None:
        super().__init__(socket, Call)
        self.hangs_up = hangs_up
        self.looks_to_end = looks_to_end
        """So often it is told to run after its end."""
        self.status = "created"
        self.attached = 0
        self.is_removed = False
        self.has_started = threading.Event()
        self.is_over = threading.Event()

    def said(self, method: str, path: str) -> tuple[int, Any]:
        """The answer to a call: its status, and the object."""
        if method == "DELETE":
            self.is_removed = True
        elif path.endswith("/start"):
            self.status = "running"
            self.has_started.set()
        elif path.endswith("/exec"):
            return 201, {"Id": "e"}
        elif path == "/exec/e/json":
            return 200, {"Running": not self._has_ended(), "Pid": SEEN_BY_NOBODY, "ExitCode": 3}
        elif path.endswith("/json"):
            if self.status == "running" and self._has_ended():
                self.status = "exited"
            return 200, {"State": {"Status": self.status, "Pid": SEEN_BY_NOBODY, "ExitCode": 3}}
        return 204, {}

    def _has_ended(self) -> bool:
        self.looks_to_end -= 1
        return self.looks_to_end < 0


class Call(socketserver.StreamRequestHandler):
    """One call of one connection."""

    @property
    def engine(self) -> Engine:
        """Whose call it is."""
        assert isinstance(self.server, Engine)
        return self.server

    def handle(self) -> None:
        words = self.rfile.readline().split()
        body_bytes = 0
        while line := self.rfile.readline().strip():
            if found := re.fullmatch(rb"content-length: (\d+)", line.lower()):
                body_bytes = int(found[1])
        self.rfile.read(body_bytes)
        method, path = words[0].decode(), words[1].decode().partition("?")[0]
        if path.endswith("/attach") or path == "/exec/e/start":
            self._carry(is_exec=path == "/exec/e/start")
            return
        status, answer = self.engine.said(method, path)
        self.wfile.write(b"HTTP/1.0 %d -\r\n\r\n%s" % (status, json.dumps(answer).encode()))

    def _carry(self, *, is_exec: bool) -> None:
        engine = self.engine
        engine.attached += 1
        had_started = engine.has_started.is_set()
        if had_started:
            # As Podman does: what has ended is made ready to run again, and how it ended is forgotten.
            engine.status = "created"
        self.wfile.write(b"HTTP/1.1 101 UPGRADED\r\n\r\n")
        if had_started:
            engine.is_over.wait(DEADLINE_SECONDS)
            return
        if not is_exec:
            engine.has_started.wait(DEADLINE_SECONDS)
        self.wfile.write(struct.pack(">BxxxL", 1, 5) + b"done\n")
        if not engine.hangs_up:
            engine.is_over.wait(DEADLINE_SECONDS)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="runner-", dir="/tmp") as name:
        yield Path(name)


def ran(folder: Path, engine: Engine, program: str, *words: str) -> subprocess.CompletedProcess[bytes]:
    """What became of a process of the keeper's that this engine serves."""
    serving = threading.Thread(target=engine.serve_forever)
    serving.start()
    try:
        return subprocess.run(
            [sys.executable, "-c", program, str(folder / "engine.sock"), *words],
            cwd=Path(__file__).parents[3],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=DEADLINE_SECONDS,
            check=False,
        )
    finally:
        engine.is_over.set()
        engine.shutdown()
        engine.server_close()
        serving.join()


def run_container(folder: Path, engine: Engine) -> tuple[int, bytes, ContainerState]:
    state = folder / "state"
    done = ran(folder, engine, RUNNER, "c", str(state), "none", "mark")
    assert done.stderr == b""
    return done.returncode, done.stdout, read_state(str(state))


def test_an_end_that_the_streams_tell_before_the_engine_is_waited_for_and_the_container_not_made_ready_anew(
    folder: Path,
) -> None:
    engine = Engine(str(folder / "engine.sock"), hangs_up=True, looks_to_end=5)
    code, said, state = run_container(folder, engine)
    assert (code, said, state.failure) == (3, b"done\n", ""), state
    assert engine.attached == 1 and engine.is_removed


def test_an_engine_that_does_not_hang_up_is_asked_whether_the_container_runs(folder: Path) -> None:
    engine = Engine(str(folder / "engine.sock"), hangs_up=False, looks_to_end=3)
    code, said, state = run_container(folder, engine)
    assert (code, said, state.exit_code) == (3, b"done\n", 3), state
    assert engine.attached == 1 and engine.is_removed


def test_a_container_that_was_made_ready_anew_has_ended_and_nobody_knows_how(folder: Path) -> None:
    engine = Engine(str(folder / "engine.sock"), hangs_up=True, looks_to_end=1_000_000)
    code, said, state = run_container(folder, engine)
    assert (code, said, state.failure) == (125, b"done\n", "CONTAINER_FAILED"), state
    assert state.detail == "the container engine does not say how the container ended"
    assert engine.attached == 2 and engine.is_removed


def test_an_engine_that_does_not_hang_up_is_asked_whether_a_command_in_a_container_runs(folder: Path) -> None:
    engine = Engine(str(folder / "engine.sock"), hangs_up=False, looks_to_end=3)
    engine.status = "running"
    own = look_at(os.getpid())
    assert own is not None
    state = folder / "state"
    write_state(str(state), ContainerState(pid=os.getpid(), start_ticks=own.start_ticks))
    done = ran(folder, engine, STAND_IN, str(state))
    assert (done.returncode, done.stdout, done.stderr) == (3, b"done\n", b"")
