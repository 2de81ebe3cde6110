"""A program that the tests' fork server starts is what an exec would have started."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from tests.fork_server import starting
from tests.fork_server.server import PROGRAMS
from tests.leaks import read_start

SERVED = [sys.executable, "-P", "-m", "served"]

PROGRAM = """
import gc, json, locale, os, resource, signal, sys, threading, time, warnings
from pathlib import Path

def look():
    served = sys.modules["served.deep"]
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kept = ("Umask", "Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "SigQ", "SigPnd", "SigBlk", "SigIgn", "SigCgt")
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    main = sys.modules["__main__"]
    streams = [
        [s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.newlines, s.isatty(), s.fileno()]
        for s in (sys.stdin, sys.stdout, sys.stderr)
    ]
    return {
        "status": {name: status[name] for name in kept if name != "SigQ"},
        "parent": os.getppid(),
        "is_leader": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
        "nice": stat[16],
        "comm": Path("/proc/self/comm").read_text(),
        "exe": os.readlink("/proc/self/exe"),
        "cmdline": Path("/proc/self/cmdline").read_bytes().decode(errors="surrogateescape"),
        "environ": sorted(Path("/proc/self/environ").read_bytes().decode(errors="surrogateescape").split("\\0")),
        "variables": dict(os.environ),
        "folder": os.getcwd(),
        "limits": Path("/proc/self/limits").read_text(),
        "descriptors": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
        "inheritable": [os.get_inheritable(number) for number in (0, 1, 2)],
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": str(sys.flags),
        "main": [main.__name__, main.__spec__ and main.__spec__.name, main.__file__, main.__package__],
        "streams": streams,
        "handlers": {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()},
        "threads": [[t.name, t.native_id == os.getpid(), t is threading.main_thread()] for t in threading.enumerate()],
        "collector": [gc.isenabled(), gc.get_threshold()],
        "filters": str(warnings.filters),
        "locale": locale.setlocale(locale.LC_ALL),
        "zone": time.tzname,
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
        "imported": [name for name in sys.modules if name.startswith("served")],
        "imported_by": served.PID != os.getpid(),
    }

import served.deep

for word in sys.argv[1:]:
    if word == "look":
        print(json.dumps(look()))
    if word == "waits":
        print("up", flush=True)
        time.sleep(60)
    if word == "reads":
        print(sys.stdin.read(), os.read(int(sys.argv[2]), 5))
    if word == "fails":
        raise ValueError("on purpose")
sys.exit(3)
"""
"""What the program does by its words. `look` prints what it sees of itself, as JSON."""


@pytest.fixture(autouse=True)
def _served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A program of two modules, and fork servers of the test's own that know it."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "__init__.py").write_text("")
    (tmp_path / "served" / "deep.py").write_text("import os\nPID = os.getpid()\n")
    (tmp_path / "served" / "__main__.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setitem(PROGRAMS, "served", ())
    own = starting.ForkServers()
    own.is_on = True
    monkeypatch.setattr(starting, "servers", own)
    yield
    own.close()


@pytest.fixture(params=["forked", "executed"])
def start(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test runs both ways."""
    with nullcontext() if request.param == "forked" else starting.without_hook():
        yield
    assert bool(starting.servers.pids()) == (request.param == "forked")


def seen(*, forked: bool, **how: Any) -> dict[str, Any]:
    """What the program sees of itself."""
    with nullcontext() if forked else starting.without_hook():
        done = subprocess.run([*SERVED, "look", "två", ""], capture_output=True, check=False, **how)
    assert done.returncode == 3, done.stderr.decode()
    return dict(json.loads(done.stdout))


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "as it is": lambda folder: {},
    "with its own environment, folder and mask": lambda folder: {
        "env": {**os.environ, "TZ": "Asia/Tokyo", "GREETING": "hej=å\udcff", "EMPTY": ""},
        "cwd": folder,
        "umask": 0o027,
    },
    "in a session of its own, with a descriptor": lambda folder: {
        "start_new_session": True,
        "pass_fds": (os.dup(1),),
    },
    "in a group of its own, without input": lambda folder: {"process_group": 0, "stdin": subprocess.DEVNULL},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_program_sees_the_same_of_itself_forked_and_executed(way: str, tmp_path: Path) -> None:
    how = {"env": dict(os.environ), **WAYS[way](tmp_path)}  # the C library may hold more: readline sets COLUMNS
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    try:
        forked, executed = seen(forked=True, **how), seen(forked=False, **how)
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))
        for number in how.get("pass_fds", ()):
            os.close(number)
    # The one difference that is meant: the server has imported the program already, in a process before.
    assert (forked.pop("imported_by"), executed.pop("imported_by")) == (True, False)
    for name in executed:
        assert forked[name] == executed[name], name
    assert executed["parent"] == os.getpid()


def test_the_test_is_the_parent_and_waits_for_it(start: None) -> None:
    with subprocess.Popen([*SERVED, "waits"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        assert read_start(process.pid)[1] == [*SERVED, "waits", ""]
        os.kill(process.pid, signal.SIGSTOP)
        assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL


def test_an_interrupt_and_an_error_end_it_as_they_end_any_program(start: None) -> None:
    with subprocess.Popen([*SERVED, "waits"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        assert (process.wait(), b"KeyboardInterrupt" in process.communicate()[1]) == (-signal.SIGINT, True)
    done = subprocess.run([*SERVED, "fails"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[-1]) == (1, "ValueError: on purpose")


async def test_asyncio_starts_it_feeds_it_and_learns_of_its_end(start: None) -> None:
    readable, writable = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(*SERVED, "reads", str(readable)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        pass_fds=(readable,),
    )
    os.write(writable, b"fifth")
    os.close(readable)
    os.close(writable)
    out, _ = await process.communicate(b"typed")
    assert (out, process.returncode) == (b"typed b'fifth'\n", 3)


@pytest.mark.parametrize(
    "how",
    [
        {"preexec_fn": lambda: None},
        {"close_fds": False},
        {"env": {**os.environ, "PYTHONUTF8": "0"}},
        {"env": {**os.environ, "GRPC_VERBOSITY": "debug"}},
        {"user": os.getuid()},
    ],
)
def test_what_a_fork_cannot_imitate_is_executed(how: dict[str, Any], tmp_path: Path) -> None:
    how = {**how, "env": {**how.get("env", os.environ), "PYTHONPATH": str(tmp_path)}}
    done = subprocess.run([*SERVED, "look"], capture_output=True, check=False, **how)
    assert json.loads(done.stdout)["imported_by"] is False


def test_a_folder_that_is_missing_fails_as_it_does_with_exec(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run([*SERVED, "look"], cwd=tmp_path / "nowhere", check=False)
