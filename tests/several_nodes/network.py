"""Machines with networks of their own on one machine: Linux network namespaces, joined by a switch.

    head ──┐                      ┌── node1          10.77.0.0/24, all on the switch's bridge
           ├── switch (bridge) ───┤
   client ─┘                      ├── node2
                                  └── router ═ masquerades ═ 192.168.77.0/24 ── hidden

Each machine has its own network devices, addresses, routes, firewall and ports, its own host name, and a hosts file
with the names of all. Nothing is done to the network of the machine that the tests run on. All that is made carries
the test's pid in its name, is removed at the end, and is swept up at the next start if this process is killed.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.processes import DEADLINE_SECONDS, POLL_SECONDS, clean_environment

NAMESPACES = Path("/run/netns")
CONFIGURED = Path("/etc/netns")
"""What is below here in a namespace's name is laid over /etc by `ip netns exec`."""

MADE = re.compile(r"gf(\d+)-\w+")
LAN, HIDDEN_LAN = "10.77.0", "192.168.77"
HOST_NAME_FILE = "/proc/sys/kernel/hostname"
CONNECT_SECONDS_MAX = 5.0
NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of <sched.h>."""


class NotPermitted(Exception):
    """This account may not make networks, or the programs for it are missing."""


@dataclass(frozen=True, slots=True)
class Done:
    """What one command did."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class Machine:
    """One machine: its name, namespace and address."""

    name: str
    namespace: str
    address: str
    environment: dict[str, str] = field(default_factory=dict)
    """Variables of the people on this machine."""

    prepare: str = ""
    """A line for the shell, run before each program here: in its own mounts, and with what it exports."""

    @property
    def inside(self) -> list[str]:
        """What a command line begins with to run here: each of these words becomes the next, so the pid stays."""
        named = f'echo {self.name} > {HOST_NAME_FILE}; {self.prepare or ":"}; exec "$@"'
        return ["ip", "netns", "exec", self.namespace, "unshare", "--uts", "sh", "-c", named, "sh"]

    def ip(self, *words: str) -> None:
        """Change this machine's network."""
        system("ip", "-n", self.namespace, *words)

    def iptables(self, *words: str) -> None:
        """Change this machine's firewall."""
        system("ip", "netns", "exec", self.namespace, "iptables", *words)

    def pids(self) -> set[int]:
        """The processes that live on this machine now; one that is dead and waits for its parent does not."""
        found = subprocess.run(["ip", "netns", "pids", self.namespace], check=True, capture_output=True, text=True)
        return {pid for pid in map(int, found.stdout.split()) if not _is_dead(pid)}

    async def run(self, *words: str, home: Path, **more: str) -> Done:
        """Run a command here to its end."""
        process = await asyncio.create_subprocess_exec(
            *self.inside,
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=clean_environment(home, {**self.environment, **more}),
            cwd=home,
        )
        try:
            async with asyncio.timeout(2 * DEADLINE_SECONDS):
                out, err = await process.communicate()
        except BaseException:
            process.kill()
            await process.wait()
            raise
        assert process.returncode is not None
        return Done(process.returncode, out.decode(), err.decode())

    async def gpuctl(self, *words: str, home: Path, **more: str) -> Done:
        """Run gpuctl here."""
        return await self.run(sys.executable, "-P", "-m", "gpufleet.cli", *words, home=home, **more)

    @contextmanager
    def sockets(self) -> Iterator[None]:
        """Sockets that this thread makes inside the block belong to this machine's network, for good."""
        with open("/proc/thread-self/ns/net") as own, (NAMESPACES / self.namespace).open() as other:  # noqa: PTH123
            _enter(other.fileno())
            try:
                yield
            finally:
                _enter(own.fileno())

    def reaches(self, address: tuple[str, int]) -> bool:
        """Whether a connection from this machine gets through."""
        with self.sockets():
            dialling = socket.socket()
        with dialling:
            dialling.settimeout(CONNECT_SECONDS_MAX)
            return dialling.connect_ex(address) == 0


class Network:
    """A switch and the machines on it. `with Network() as network:` removes all of it at the end."""

    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self._prefix = f"gf{os.getpid()}"
        self._made: list[str] = []
        self._next = 1

    def __enter__(self) -> Network:
        """Make the switch; raises NotPermitted."""
        check_programs()
        sweep()
        try:
            self._switch = self._namespace("switch")
            system("ip", "-n", self._switch, "link", "add", "bridge", "up", "type", "bridge")
            system("ip", "netns", "exec", self._switch, "iptables", "-t", "nat", "-S")
        except BaseException as problem:
            self.remove()
            if isinstance(problem, subprocess.CalledProcessError):
                raise NotPermitted(_words(problem)) from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def switch(self) -> str:
        """The namespace of the switch: its ports are `p-MACHINE`, on the device `bridge`."""
        return self._switch

    def machine(self, name: str) -> Machine:
        """A machine on the switch."""
        machine = self._machine(name, f"{LAN}.{self._number()}")
        self._plug(self._switch, machine, f"{machine.address}/24")
        return machine

    def router(self, name: str = "router") -> Machine:
        """A machine on the switch whose second side is a network that nobody outside can dial into.

        What comes from inside goes out under the router's own address, as behind the router of a home or a cloud.
        """
        router = self.machine(name)
        router.ip("link", "add", "inner", "up", "type", "bridge")
        router.ip("address", "add", f"{HIDDEN_LAN}.1/24", "dev", "inner")
        system("ip", "netns", "exec", router.namespace, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        router.iptables("-t", "nat", "-A", "POSTROUTING", "-o", "eth0", "-j", "MASQUERADE")
        router.iptables("-A", "FORWARD", "-i", "eth0", "-m", "conntrack", "--ctstate", "NEW", "-j", "DROP")
        return router

    def hidden(self, name: str, router: Machine) -> Machine:
        """A machine behind the router."""
        machine = self._machine(name, f"{HIDDEN_LAN}.{self._number() + 1}")
        self._plug(router.namespace, machine, f"{machine.address}/24", bridge="inner")
        machine.ip("route", "add", "default", "via", f"{HIDDEN_LAN}.1")
        return machine

    def cut(self, machine: Machine) -> None:
        """Pull the machine's cable: nothing comes through, and neither side is told."""
        system("ip", "-n", self._switch, "link", "set", f"p-{machine.name}", "down")

    def heal(self, machine: Machine) -> None:
        """Plug it in again."""
        system("ip", "-n", self._switch, "link", "set", f"p-{machine.name}", "up")

    def configure(self, machine: Machine, file: str, text: str) -> None:
        """What the machine's programs, from now on, find at /etc/FILE, where this machine has such a file."""
        folder = CONFIGURED / machine.namespace
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(text)

    def remove(self) -> None:
        """End what still runs on the machines, and remove them; done twice, it does nothing more."""
        while self._made:
            remove_namespace(self._made.pop())
        self.machines.clear()

    def _machine(self, name: str, address: str) -> Machine:
        machine = Machine(name, self._namespace(name), address)
        self.machines[name] = machine
        self._write_hosts()
        return machine

    def _number(self) -> int:
        self._next += 1
        return self._next - 1

    def _namespace(self, name: str) -> str:
        namespace = f"{self._prefix}-{name}"
        self._made.append(namespace)
        system("ip", "netns", "add", namespace)
        system("ip", "-n", namespace, "link", "set", "lo", "up")
        return namespace

    def _plug(self, switch: str, machine: Machine, address: str, bridge: str = "bridge") -> None:
        port = f"p-{machine.name}"
        peer = ("peer", "name", "eth0", "netns", machine.namespace)
        system("ip", "-n", switch, "link", "add", port, "type", "veth", *peer)
        system("ip", "-n", switch, "link", "set", port, "master", bridge, "up")
        machine.ip("address", "add", address, "dev", "eth0")
        machine.ip("link", "set", "eth0", "up")

    def _write_hosts(self) -> None:
        names = "".join(f"{each.address} {each.name}\n" for each in self.machines.values())
        for machine in self.machines.values():
            self.configure(machine, "hosts", f"127.0.0.1 localhost\n{names}")
            # Names are looked up in that file only: there is no name server, and none must be waited for.
            self.configure(machine, "nsswitch.conf", "hosts: files\n")


def system(*words: str) -> None:
    """Run a command of the system; raises CalledProcessError with what it said."""
    subprocess.run(words, check=True, capture_output=True, text=True)


def check_programs() -> None:
    """Raise NotPermitted where a program is missing."""
    for program, package in (("ip", "iproute2"), ("iptables", "iptables"), ("unshare", "util-linux")):
        if shutil.which(program) is None:
            raise NotPermitted(f"there is no {program} ({package})")


def remove_namespace(namespace: str) -> None:
    """End the processes in one of our namespaces, and remove it with its files."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while (NAMESPACES / namespace).exists():
        found = subprocess.run(["ip", "netns", "pids", namespace], check=False, capture_output=True, text=True)
        pids = [pid for pid in map(int, found.stdout.split()) if not _is_dead(pid)]
        if not pids:
            removed = subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True, text=True)
            # Other runs of these tests may sweep at the same time, and be the first.
            assert not (NAMESPACES / namespace).exists(), f"{namespace} stays: {removed.stderr}"
            break
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        assert time.monotonic() < deadline, f"processes in {namespace} do not end: {pids}"
        time.sleep(POLL_SECONDS)
    shutil.rmtree(CONFIGURED / namespace, ignore_errors=True)
    with suppress(OSError):  # it is another's as well, and not empty, or it never was
        CONFIGURED.rmdir()


def sweep() -> None:
    """Remove what killed runs of these tests left behind."""
    for folder in (NAMESPACES, CONFIGURED):
        found: list[Path] = []
        with suppress(FileNotFoundError):
            found = list(folder.iterdir())
        for path in found:
            made = MADE.fullmatch(path.name)
            if made and not Path(f"/proc/{made[1]}").exists():
                remove_namespace(path.name)


def _enter(namespace: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(namespace, NEW_NETWORK) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _words(problem: subprocess.CalledProcessError) -> str:
    return f"{' '.join(problem.cmd)}: {str(problem.stderr).strip()}"
