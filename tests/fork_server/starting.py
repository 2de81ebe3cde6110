"""Has `subprocess.Popen` fork the programs of this repository where an exec would do the same, only slower."""

from __future__ import annotations

import inspect
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpufleet.host.grpc_forks import FORK_HANDLERS_VARIABLE
from gpufleet.net.grpc_import import BY_SYSTEM, RESOLVER_VARIABLE
from tests.fork_server.server import FOR_THEMSELVES, HEADER_BYTES, PROGRAMS

START_S_MAX = 120.0
"""How long a start may take: the first one of a server imports the program."""

PLAIN = {
    "preexec_fn": (None,),
    "close_fds": (True,),
    "startupinfo": (None,),
    "creationflags": (0,),
    "shell": (False,),
    "restore_signals": (True,),
    "gid": (None,),
    "gids": (None,),
    "uid": (None,),
}
"""Arguments of Popen that the server imitates with these values only."""

OF_THE_INTERPRETER = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "GLIBC_")
OF_LIBRARIES = ("OPENBLAS_", "OMP_", "MKL_", "GRPC_", "OPENSSL_", "SSL_")
READ_AT_START = (*OF_THE_INTERPRETER, *OF_LIBRARIES)
"""Variables that the interpreter, the C library, NumPy or gRPC read once: a start with other values is an exec."""

SET_BY_PROGRAMS = {RESOLVER_VARIABLE: BY_SYSTEM, FORK_HANDLERS_VARIABLE: "false"}
"""What each program sets before it imports gRPC."""

ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""For the server: NumPy's BLAS starts threads when it is imported, and no thread survives a fork."""

LIMITS = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]


class ForkServer:
    """One server process and its socket. Not for several threads at once: `ForkServers` takes turns."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-P", str(Path(__file__).with_name("server.py")), str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                cwd="/",
                env={**os.environ, **ONE_THREAD},
            )
        self._socket = ours
        self._socket.settimeout(START_S_MAX)
        self.read_at_start = read_at_start(os.environ)
        """The variables that it began with, of those that are read once."""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def descriptor(self) -> int:
        return self._socket.fileno()

    def start(self, request: Mapping[str, Any], descriptors: list[int]) -> int:
        """Fork the program and answer its pid; OSError where the server failed to."""
        body = json.dumps(request).encode()
        socket.send_fds(self._socket, [len(body).to_bytes(HEADER_BYTES, "big")], descriptors)
        self._socket.sendall(body)
        answer = self._socket.recv(HEADER_BYTES, socket.MSG_WAITALL)
        if len(answer) < HEADER_BYTES:
            raise OSError(f"the fork server ended with {self._process.wait()}")
        pid = int.from_bytes(answer, "big", signed=True)
        if pid < 0:
            raise OSError(-pid, f"fork of {request['module']}: {os.strerror(-pid)}")
        return pid

    def close(self) -> None:
        """End it. The programs that it forked go on."""
        self._socket.close()
        self._process.wait(START_S_MAX)


class ForkServers:
    """The servers of this process, each started when it is first needed."""

    def __init__(self) -> None:
        self._servers: dict[str, ForkServer] = {}
        self._lock = threading.Lock()
        self.is_on = False

    def start(self, request: Mapping[str, Any], descriptors: list[int]) -> int | None:
        """The new program's pid, or None where it has to be started by exec."""
        with self._lock:
            kind = request["module"] if request["module"] in FOR_THEMSELVES else ""
            if kind not in self._servers:
                with without_hook():
                    self._servers[kind] = ForkServer()
            server = self._servers[kind]
            if server.read_at_start != read_at_start(request["variables"]):
                return None
            return server.start(request, descriptors)

    def pids(self) -> frozenset[int]:
        return frozenset(server.pid for server in self._servers.values())

    def descriptors(self) -> frozenset[int]:
        return frozenset(server.descriptor for server in self._servers.values())

    def close(self) -> None:
        """End all servers; the next start begins a new one."""
        with self._lock:
            while self._servers:
                self._servers.popitem()[1].close()


servers = ForkServers()


def read_at_start(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables that a program reads before its first line, without those that it would set as they are."""
    read = {name: value for name, value in variables.items() if name.startswith(READ_AT_START)}
    return dict(read.items() - SET_BY_PROGRAMS.items())


def request_for(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[int]] | None:
    """What the server is asked for to start this; None where only an exec starts the same.

    `given` are the arguments of `Popen._execute_child`. The descriptors come in the order of the request's.
    """
    if any(name in given and given[name] not in values for name, values in PLAIN.items()):
        return None
    words = given["args"]
    if not isinstance(words, (list, tuple)) or not all(isinstance(word, (str, os.PathLike)) for word in words):
        return None
    words = [os.fspath(word) for word in words]
    if words[:3] != [sys.executable, "-P", "-m"] or len(words) < 4 or words[3] not in PROGRAMS:
        return None
    if given["executable"] not in (None, sys.executable) or _ignored_signals() or signal.pthread_sigmask(0, ()):
        return None
    try:
        folder = os.fspath(given["cwd"]) if given["cwd"] is not None else os.getcwd()  # noqa: PTH109
        streams = [given[name] if given[name] >= 0 else number for number, name in enumerate(STREAMS)]
        for number in streams:
            os.fstat(number)
    except OSError:
        return None
    if not os.access(folder, os.X_OK) or not Path(folder).is_dir():
        return None
    passed = sorted(given["pass_fds"])
    if any(number < len(streams) for number in passed):
        return None
    variables = dict(os.environ if given["env"] is None else given["env"])
    request = {
        "module": words[3],
        "arguments": words[4:],
        "words": words,
        "variables": {os.fsdecode(name): os.fsdecode(value) for name, value in variables.items()},
        "folder": os.fsdecode(folder),
        "umask": _umask() if given["umask"] < 0 else given["umask"],
        "is_session": bool(given["start_new_session"]),
        "process_group": given.get("process_group", -1),
        "limits": [(number, *resource.getrlimit(number)) for number in LIMITS],
        "descriptors": [*range(len(streams)), *passed],
    }
    return request, [*streams, *passed]


STREAMS = ("p2cread", "c2pwrite", "errwrite")
"""The arguments of Popen's that are stdin, stdout and stderr; -1 is this process's own."""


def _ignored_signals() -> bool:
    """Whether this process ignores a signal that a program would go on ignoring."""
    ignored = {number for number in signal.valid_signals() if signal.getsignal(number) is signal.SIG_IGN}
    return bool(ignored - {signal.SIGPIPE, signal.SIGXFSZ})  # the interpreter ignores these two itself


def _umask() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("Umask:"))
    return int(line.split()[1], 8)


_execute_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_names = list(inspect.signature(_execute_child).parameters)[1:]


def _fork_or_execute(process: Any, *arguments: Any) -> None:
    given = dict(zip(_names, arguments, strict=True))
    asked = request_for(given) if servers.is_on else None
    pid = servers.start(*asked) if asked is not None else None
    if pid is None:
        _execute_child(process, *arguments)
        return
    process.pid = pid
    process._child_created = True
    process._close_pipe_fds(*(given[name] for name in PIPES))


PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")


def install() -> None:
    """Hook into `subprocess.Popen` of this process, for good."""
    subprocess.Popen._execute_child = _fork_or_execute  # type: ignore[attr-defined]
    servers.is_on = True


@contextmanager
def without_hook() -> Iterator[None]:
    """Start programs by exec in this context."""
    before, servers.is_on = servers.is_on, False
    try:
        yield
    finally:
        servers.is_on = before
