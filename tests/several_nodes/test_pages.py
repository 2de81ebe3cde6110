"""Every command of docs/several-machines.md and docs/network.md is typed here as it stands, on machines so named."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cli.doctor.network import firewall_fix
from gpufleet.host.agent_state import REGISTERED, read_agent_state
from gpufleet.net.addresses import Address
from tests.e2e.processes import until
from tests.several_nodes.network import Machine, Network

pytestmark = pytest.mark.nightly

DOCS = Path(__file__).parents[2] / "docs"
SEVERAL_MACHINES, NETWORK = "several-machines.md", "network.md"
TYPED = re.compile(r"(\w+)\$ (.+)")
PROGRAM = re.compile(r"gpuctl (scheduler|agent)\b")
STATE = Path(".local/state/gpufleet")

ENCRYPTED = [
    (SEVERAL_MACHINES, "Two machines, with encryption"),
    (SEVERAL_MACHINES, "People"),
    (SEVERAL_MACHINES, "Nodes that speak for themselves alone"),
    (SEVERAL_MACHINES, "Workers and gateways with credentials"),
    (SEVERAL_MACHINES, "A job over several machines"),
    (SEVERAL_MACHINES, "When something is in the way"),
    (SEVERAL_MACHINES, "When a machine or its link fails"),
    (NETWORK, "Who dials whom"),
    (NETWORK, "Certificates of clients"),
]
TRUSTED = [(SEVERAL_MACHINES, "On a network that you trust"), (NETWORK, "Several addresses")]

# In place of ssh: the folders of all machines are on this one.
COPY = """#!/bin/sh
for each in "$@"; do to=$each; done
for each in "$@"; do
    [ "$each" = "$to" ] || cp --preserve=mode "$each" "$HOMES/${to%:}/" || exit 1
done
"""


@dataclass(frozen=True, slots=True)
class Typed:
    """A command with the machine where it is typed, and where it stands."""

    page: str
    section: str
    machine: str
    command: str


def commands() -> list[Typed]:
    """Every command of both pages."""
    found: list[Typed] = []
    for page in (SEVERAL_MACHINES, NETWORK):
        section, is_shell = "", False
        for line in (DOCS / page).read_text().splitlines():
            if line.startswith("```"):
                is_shell = line == "```sh"
            elif line.startswith("## "):
                section = line[3:]
            elif is_shell:
                typed = TYPED.fullmatch(line)
                assert typed, f"{page}: nothing says where this is typed: {line}"
                found.append(Typed(page, section, typed[1], typed[2]))
    return found


@dataclass(slots=True)
class Office:
    """The machines of the pages, each with a home folder, and the programs that run on them."""

    network: Network
    homes: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    programs: dict[tuple[str, str], subprocess.Popen[bytes]] = field(default_factory=dict)

    def environment(self, name: str) -> Mapping[str, str]:
        """What an account of that machine has after it logged in, and nothing of this process's own settings."""
        path = f"{self.homes / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if name.startswith(("LANG", "LC_", "GPUFLEET_TEST"))}
        return {**kept, "HOME": str(self.homes / name), "PATH": path, "HOMES": str(self.homes)}

    def open(self) -> None:
        """Make machines and homes."""
        for name in ("head", "gpu2", "laptop"):
            self.machines[name] = self.network.machine(name)
            (self.homes / name).mkdir(parents=True)
        copy = self.homes / "bin" / "scp"
        copy.parent.mkdir()
        copy.write_text(COPY)
        copy.chmod(0o755)

    async def type(self, typed: Typed) -> str:
        """What the command prints; a program is started and left running. A command that fails fails the test."""
        process = self._start(typed)
        if program := PROGRAM.match(typed.command):
            self.programs[typed.machine, program[1]] = process
            await self._is_up(typed, program[1], process)
            return ""
        await until(f"{typed.command} is done", lambda: process.poll() is not None)
        said = self._log(typed).read_text()
        assert process.returncode == 0, f"{typed}: {process.returncode}\n{said}"
        return said

    def _start(self, typed: Typed) -> subprocess.Popen[bytes]:
        if program := PROGRAM.match(typed.command):
            self._stop(self.programs.pop((typed.machine, program[1]), None))
        command = f"exec {typed.command}" if program else typed.command
        with self._log(typed).open("wb") as log:
            return subprocess.Popen(
                [*self.machines[typed.machine].inside, "sh", "-c", command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environment(typed.machine),
                cwd=self.homes / typed.machine,
            )

    def _log(self, typed: Typed) -> Path:
        program = PROGRAM.match(typed.command)
        return self.homes / f"{typed.machine}-{program[1] if program else 'command'}.log"

    async def _is_up(self, typed: Typed, program: str, process: subprocess.Popen[bytes]) -> None:
        folder = self.homes / typed.machine / STATE / program

        def is_up() -> bool:
            assert process.poll() is None, self._log(typed).read_text()
            if program == "scheduler":
                return (folder / "listening").exists()
            state = read_agent_state(folder)
            return state is not None and (state.pid, state.state) == (process.pid, REGISTERED)

        await until(f"the {program} on {typed.machine} is up", is_up)

    def _stop(self, process: subprocess.Popen[bytes] | None) -> None:
        if process is not None:
            process.terminate()
            process.wait()

    def close(self) -> None:
        """Stop the programs; keepers and jobs end with their machines."""
        for process in self.programs.values():
            self._stop(process)


@pytest.fixture
def office(network: Network, tmp_path: Path) -> Iterator[Office]:
    """The machines of the pages."""
    made = Office(network, tmp_path / "homes")
    made.open()
    yield made
    made.close()


async def type_sections(office: Office, sections: list[tuple[str, str]]) -> dict[str, str]:
    """Type every command of these sections, in their order; what each printed."""
    typed = [each for where in sections for each in commands() if (each.page, each.section) == where]
    return {f"{each.machine}$ {each.command}": await office.type(each) for each in typed}


def unpacked(bundle: Path) -> dict[str, str]:
    """The texts of a bundle, by name."""
    with tarfile.open(bundle) as archive:
        read = {entry.name.removeprefix("gpufleet-bundle/"): archive.extractfile(entry) for entry in archive}
        return {name: file.read().decode() for name, file in read.items() if file is not None}


def test_every_section_with_commands_is_typed_by_a_test() -> None:
    assert {(each.page, each.section) for each in commands()} == {*ENCRYPTED, *TRUSTED}


async def test_the_pages_lead_from_nothing_to_two_machines_and_people_with_encryption(office: Office) -> None:
    said = await type_sections(office, ENCRYPTED)
    assert "gpu2" in said["head$ gpuctl nodes"]
    assert said["head$ gpuctl run --nodelist gpu2 --cwd / -- hostname"].splitlines()[-1] == "gpu2"
    assert {"head", "gpu2"} <= set(said["head$ gpuctl run --nodes 2 --cwd / -- hostname"].split())
    assert said["laptop$ gpuctl run --cwd / -- echo hello"].splitlines()[-1] == "hello"
    assert "certificate is good" in said["laptop$ gpuctl doctor"] and "ada (user)" in said["laptop$ gpuctl doctor"]
    on_the_node = said["gpu2$ gpuctl doctor --scheduler head:50051 --token-file agent.token --ca-file ca.pem"]
    assert "this machine is node gpu2 of head:50051" in on_the_node
    assert "on all 2 nodes" in said["head$ gpuctl doctor --nodes"]
    packed = unpacked(office.homes / "head" / "bundle.tar.gz")
    assert "serving" in packed["logs/scheduler.log"] and "registered" in packed["logs/agent-gpu2.log"]
    secret = [file for file in office.homes.rglob("*") if file.suffix in (".token", ".key")]
    tokens = {f"{name}.token" for name in ("admin", "agent", "gateway", "ada", "join", "credential")}
    assert {*tokens, "server.key", "ca.key", "worker.key"} == {file.name for file in secret}
    everything = "\n".join(packed.values())
    lines = [line for file in secret for line in file.read_text().splitlines() if not line.startswith("---")]
    assert not [line for line in lines if line in everything]


async def test_the_pages_lead_to_two_machines_on_a_network_that_is_trusted(office: Office) -> None:
    said = await type_sections(office, TRUSTED)
    assert "gpu2" in said["head$ gpuctl nodes"]


def test_the_page_and_the_doctor_name_the_same_lines_for_firewalls_and_the_one_for_iptables_works(
    network: Network,
) -> None:
    lines = dict(re.findall(r"^\| (ufw|firewalld|iptables) \| `([^`]+)` \|$", (DOCS / NETWORK).read_text(), re.M))
    fix = firewall_fix(Address("head"))
    assert sorted(lines) == ["firewalld", "iptables", "ufw"] and all(line in fix for line in lines.values())
    head, laptop = network.machine("head"), network.machine("laptop")
    with head.sockets():
        listener = socket.create_server((head.address, 50051))
    with listener:
        head.iptables("-P", "INPUT", "DROP")
        assert not laptop.reaches((head.address, 50051))
        head.iptables(*lines["iptables"].removeprefix("sudo iptables ").split())
        assert laptop.reaches((head.address, 50051))
