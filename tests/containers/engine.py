"""Podman's service for a test session: its images, containers and sockets lie in one folder, and nothing is left.

It runs in a mount namespace of its own, where a machine's half-mounted second version of control groups is hidden, as
its run time refuses to work with both. Where the right to raise limits lacks, containers are made without any.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

DEADLINE_SECONDS = 60.0
COMMAND_SECONDS_MAX = 600.0
"""How long a command of the engine may take: an image is many files, and the disk may be busy."""
IMAGE = "localhost/busybox:1"
WEB_IMAGE, WEB_PORT = "localhost/web:1", 8000
"""What runs by itself a web server on this port, which answers `1` for /version."""
WEB_SERVER = """#!/bin/sh
mkdir /tmp/www
echo ${{2:-1}} >/tmp/www/version
exec httpd -f -p ${{1:-{port}}} -h /tmp/www
"""
"""Its program, /bin/web: another port and another version may be said."""
APPLETS = (
    "sh",
    "echo",
    "sleep",
    "cat",
    "ls",
    "env",
    "id",
    "true",
    "kill",
    "stty",
    "dd",
    "touch",
    "pwd",
    "grep",
    "seq",
    "wc",
    "ps",
    "nc",
    "tr",
    "head",
    "httpd",
    "mkdir",
    "test",
    "printf",
    "tail",
    "trap",
    "sync",
)

# A `#!` line names no path with a space: the shell runs the second line, and to Python it is a string.
RUNTIME = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import json, os, sys
words = sys.argv[1:]
for number, word in enumerate(words):
    path = ""
    if word in ("--bundle", "-b"):
        path = os.path.join(words[number + 1], "config.json")
    elif word in ("--process", "-p"):
        path = words[number + 1]
    if path:
        with open(path) as file:
            config = json.load(file)
        config.pop("rlimits", None)
        config.get("process", {{}}).pop("rlimits", None)
        with open(path, "w") as file:
            json.dump(config, file)
os.execv({runtime!r}, [{runtime!r}, *words])
"""

REGISTRIES = """unqualified-search-registries = []
[[registry]]
location = "127.0.0.1"
insecure = true
"""
"""A registry of a test has no certificate."""

BEGIN = """
if mountpoint -q /sys/fs/cgroup/unified; then
    mount -t tmpfs tmpfs /mnt
    for each in /sys/fs/cgroup/*; do
        if [ "$each" != /sys/fs/cgroup/unified ] && mountpoint -q "$each"; then
            mkdir "/mnt/${each##*/}" && mount --bind "$each" "/mnt/${each##*/}"
        fi
    done
    mount --move /mnt /sys/fs/cgroup
fi
exec "$@"
"""
"""Hides the folder of the half-mounted second version: a run time takes its being there for its being used."""


@dataclass(frozen=True)
class EngineOfTests:
    """A running engine: `url` is what an agent's setting names, `socket` the path of it."""

    folder: Path
    options: tuple[str, ...]
    inside: tuple[str, ...] = ()
    """What its command line begins with: how to get into the network that its containers have."""

    @property
    def socket(self) -> str:
        return str(self.folder / "engine.sock")

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    @property
    def environment(self) -> dict[str, str]:
        """For an agent that is to use it."""
        return {"GPUCTL_AGENT_CONTAINERS_ENGINE": self.url}

    def ask(self, method: str, path: str) -> Any:
        """What the engine answers; None where there is no such thing."""
        connection = _UnixConnection(self.socket)
        with contextlib.closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        return None if answer.status == 404 else json.loads(body) if body else {}

    def containers(self) -> list[dict[str, Any]]:
        """All that there are, also those that do not run."""
        found: list[dict[str, Any]] = self.ask("GET", "/v1.41/containers/json?all=1")
        return found


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("engine", timeout=DEADLINE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(DEADLINE_SECONDS)
        self.sock.connect(self._path)


def why_no_engine() -> str:
    """Why there can be no engine of one's own here; empty where there can."""
    if os.geteuid() != 0:
        return "a container engine of one's own needs root"
    missing = [name for name in ("podman", "busybox", "unshare") if shutil.which(name) is None]
    if missing or not (shutil.which("crun") or shutil.which("runc")):
        return f"a container engine needs {', '.join(missing) or 'crun or runc'}"
    return ""


def skip_without_podman() -> None:
    """Skip where there is nothing to test with."""
    if why := why_no_engine():
        pytest.skip(why)


class EngineProcess:
    """The service, to be ended and started again."""

    def __init__(self, engine: EngineOfTests) -> None:
        self._engine = engine
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def mounts(self) -> tuple[str, ...]:
        """What a command line begins with that is to see the engine's mounts, as all programs of a machine do."""
        assert self._process is not None, "the engine does not run"
        return ("nsenter", "--target", str(self._process.pid), "--mount", f"--wd={self._engine.folder}")

    def start(self) -> None:
        """Start it and wait until it answers."""
        Path(self._engine.socket).unlink(missing_ok=True)
        log = (self._engine.folder / "engine.log").open("ab")
        command = ["podman", *self._engine.options, "system", "service", "--time", "0", self._engine.url]
        self._process = subprocess.Popen(
            [*self._engine.inside, "unshare", "--mount", "sh", "-c", BEGIN, "sh", *command],
            stdout=log,
            stderr=log,
            env=environment(self._engine.folder),
            # Where its monitors note with an empty file that the kernel ended a container for want of memory.
            cwd=self._engine.folder,
        )
        log.close()
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            with contextlib.suppress(OSError, ValueError):
                if self._engine.ask("GET", "/v1.41/version"):
                    return
            assert self._process.poll() is None, (self._engine.folder / "engine.log").read_text()
            assert time.monotonic() < deadline, "the engine does not answer"
            time.sleep(0.05)

    def end(self, number: int = signal.SIGTERM) -> None:
        """End the service; containers go on."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(DEADLINE_SECONDS)
            self._process = None


def environment(folder: Path) -> dict[str, str]:
    """That of podman in a folder: no file of the machine's says anything to it."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_RUNTIME_DIR": str(folder),
        "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
    }


@contextlib.contextmanager
def running_engine(
    folder: Path, inside: tuple[str, ...] = (), driver: str = "vfs"
) -> Iterator[tuple[EngineOfTests, EngineProcess]]:
    """An engine with the images IMAGE and WEB_IMAGE; ended with all its containers."""
    runtime = shutil.which("crun") or shutil.which("runc")
    wrapper = folder / "runtime"
    wrapper.write_text(RUNTIME.format(python=sys.executable, runtime=runtime))
    wrapper.chmod(0o755)
    (folder / "registries.conf").write_text(REGISTRIES)
    options = (
        *("--root", str(folder / "root"), "--runroot", str(folder / "run"), "--storage-driver", driver),
        *("--cgroup-manager", "cgroupfs", "--runtime", str(wrapper), "--events-backend", "file"),
    )
    engine = EngineOfTests(folder, options, inside)
    process = EngineProcess(engine)
    try:
        _import_images(engine)
        process.start()
        yield engine, process
    finally:
        process.end()
        _podman(engine, "rm", "--force", "--all", "--time", "0")
        _end_monitors(folder)


def driver_for_many_files(folder: Path) -> str:
    """What stores images in this folder: overlay, which copies nothing, where it may lie upon this file system."""
    parts = {name: folder / f"try-{name}" for name in ("lower", "upper", "work", "merged")}
    for each in parts.values():
        each.mkdir()
    options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
    trying = ["unshare", "--mount", "mount", "-t", "overlay", "-o", options, "overlay", str(parts["merged"])]
    works = subprocess.run(trying, capture_output=True, check=False).returncode == 0
    for each in parts.values():
        shutil.rmtree(each)
    return "overlay" if works else "vfs"


def _end_monitors(folder: Path) -> None:
    """End what watches over each command that was run in a container: minutes later it would write into the folder."""
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                command = (process / "cmdline").read_bytes()
                if b"conmon" in command.partition(b"\0")[0] and os.fsencode(f"{folder}/") in command:
                    os.kill(int(process.name), signal.SIGKILL)


def _import_images(engine: EngineOfTests) -> None:
    files = engine.folder / "image"
    (files / "bin").mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, files / "bin" / "busybox")
    for name in APPLETS:
        (files / "bin" / name).symlink_to("busybox")
    (files / "bin" / "web").write_text(WEB_SERVER.format(port=WEB_PORT))
    (files / "bin" / "web").chmod(0o755)
    for name in ("tmp", "etc", "work"):
        (files / name).mkdir()
    (files / "tmp").chmod(0o1777)
    (files / "etc" / "not-a-program").write_text("nothing")
    import_image(engine, files, IMAGE, "ENV=FROM_IMAGE=yes", "WORKDIR=/work")
    import_image(engine, files, WEB_IMAGE, "ENV=PATH=/bin", "CMD=/bin/web")


def import_image(engine: EngineOfTests, files: Path, name: str, *changes: str) -> None:
    """Give the engine an image of what lies in the folder, with these lines of a Containerfile."""
    archive = engine.folder / "image.tar"
    subprocess.run(["tar", "--create", "--file", archive, "--directory", files, "."], check=True)
    _podman(engine, "import", *(word for each in changes for word in ("--change", each)), str(archive), name)
    archive.unlink()


def _podman(engine: EngineOfTests, *words: str) -> str:
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", BEGIN, "sh", "podman", *engine.options, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=COMMAND_SECONDS_MAX,
        env=environment(engine.folder),
        cwd=engine.folder,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
