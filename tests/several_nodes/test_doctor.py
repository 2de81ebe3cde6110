"""The doctor where the trouble is real: nothing listens, packets are dropped, routes are missing, agents refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from gpufleet.security.tokens import make_token, write_token_file
from tests.e2e.client import Client
from tests.e2e.processes import AgentProcess, SchedulerProcess, until
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Done, Machine, Network

pytestmark = pytest.mark.nightly

PORT = 50051

SPEAKS_VERSION_99 = """
import sys
import gpufleet.node_agent.agent
from gpufleet.node_agent.__main__ import main
gpufleet.node_agent.agent.PROTOCOL_VERSION = 99
sys.exit(main())
"""
"""An agent of a later version of the contract."""


@pytest.fixture
def person(network: Network) -> Machine:
    """A machine from which somebody asks."""
    return network.machine("client")


@pytest.fixture
def head_listens(head: Machine) -> Iterator[None]:
    """Something takes connections on the head's port: the kernel does, so that no program is needed."""
    with head.sockets():
        listener = socket.create_server((head.address, PORT))
    with listener:
        yield


def findings(done: Done) -> dict[str, dict[str, Any]]:
    """What was found, by what was looked at."""
    return {found["what"]: found for found in map(json.loads, done.out.splitlines())}


async def last_of(machine: Machine, scheduler: str, home: Path) -> dict[str, Any]:
    """The finding at which the doctor stopped; it says that something is wrong, and what to do."""
    done = await machine.gpuctl("doctor", "-o", "jsonl", "--insecure", "--scheduler", scheduler, home=home)
    assert done.code == 1, done.err
    last: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    assert last["verdict"] == "FAILED" and last["fix"]
    return last


async def test_a_machine_where_nothing_listens_refuses(head: Machine, person: Machine, tmp_path: Path) -> None:
    last = await last_of(person, "head", tmp_path)
    assert (last["what"], last["sentence"]) == ("port", "nothing listens at head:50051")
    assert "On head: is it running?" in last["fix"]
    assert "gpuctl scheduler --host 0.0.0.0 --port 50051" in last["fix"]


async def test_a_scheduler_that_listens_on_loopback_only_is_told_which_host_to_listen_on(
    head: Machine, person: Machine, tmp_path: Path
) -> None:
    scheduler = SchedulerProcess(tmp_path / "scheduler")
    scheduler.inside = head.inside
    await scheduler.start()
    try:
        port = scheduler.address.rpartition(":")[2]
        there = await last_of(person, f"head:{port}", tmp_path)
        assert "By default it listens on loopback only" in there["fix"] and f"--port {port}" in there["fix"]
        # Asked on its own machine, the doctor sees it.
        here = await last_of(head, f"head:{port}", tmp_path)
        assert here["sentence"] == (
            f"nothing listens at head:{port}: the scheduler here listens on loopback only, at 127.0.0.1:{port}"
        )
        assert here["fix"] == (
            f"Start it with --host {head.address}, or --host 0.0.0.0 for every network, and TLS files or --insecure"
        )
    finally:
        await scheduler.stop()


async def test_a_scheduler_that_listens_elsewhere_is_named(head: Machine, head_listens: None, tmp_path: Path) -> None:
    last = await last_of(head, "127.0.0.1", tmp_path)
    assert last["sentence"] == f"nothing listens at 127.0.0.1:50051, but at {head.address}:50051"
    assert last["fix"] == f"Name that one: --scheduler {head.address}:50051"


async def test_a_firewall_that_drops_is_told_from_one_that_rejects(
    head: Machine, head_listens: None, person: Machine, tmp_path: Path
) -> None:
    rule = ("-p", "tcp", "--dport", str(PORT), "-j")
    head.iptables("-A", "INPUT", *rule, "DROP")
    dropped = await last_of(person, "head", tmp_path)
    assert (dropped["what"], dropped["sentence"]) == ("port", "head:50051 does not answer within 5 s")
    head.iptables("-F")
    # What firewalld does by default: the kernel calls it "No route to host".
    head.iptables("-A", "INPUT", "-j", "REJECT", "--reject-with", "icmp-admin-prohibited")
    rejected = await last_of(person, "head", tmp_path)
    assert (rejected["what"], rejected["sentence"]) == (
        "port",
        f"a firewall rejects head:50051: so says {head.address}",
    )
    for found in (dropped, rejected):
        assert "On head: sudo ufw allow 50051/tcp" in found["fix"]
        assert "sudo firewall-cmd --permanent --add-port=50051/tcp && sudo firewall-cmd --reload" in found["fix"]
        assert "sudo iptables -I INPUT -p tcp --dport 50051 -j ACCEPT" in found["fix"]
    # The last of these lines is one that mends it here.
    head.iptables("-I", "INPUT", "-p", "tcp", "--dport", str(PORT), "-j", "ACCEPT")
    assert person.reaches((head.address, PORT))


async def test_a_missing_route_is_told_from_a_machine_that_is_off(
    network: Network, head: Machine, person: Machine, tmp_path: Path
) -> None:
    nowhere = await last_of(person, "192.0.2.1", tmp_path)
    assert nowhere["what"] == "route"
    assert nowhere["sentence"] == "this machine has no route to 192.0.2.1: Network is unreachable"
    assert nowhere["fix"].startswith("See the way with: ip route get 192.0.2.1.")
    network.cut(head)
    off = await last_of(person, "head", tmp_path)
    assert (off["what"], off["sentence"]) == ("route", "head does not answer: No route to host")
    router = network.router()
    person.ip("route", "add", "192.0.2.0/24", "via", router.address)
    beyond = await last_of(person, "192.0.2.1", tmp_path)
    assert beyond["what"] == "route"
    assert beyond["sentence"] == f"there is no route to 192.0.2.1: so says the router {router.address}"


async def test_an_unknown_name_is_told_from_a_name_server_that_is_away(
    network: Network, person: Machine, tmp_path: Path
) -> None:
    unknown = await last_of(person, "haed", tmp_path)
    assert (unknown["what"], unknown["sentence"]) == ("name", '"haed" is not known here: Name or service not known')
    assert "getent hosts haed" in unknown["fix"]
    network.configure(person, "nsswitch.conf", "hosts: files dns\n")
    network.configure(person, "resolv.conf", "nameserver 192.0.2.53\noptions timeout:1 attempts:1\n")
    away = await last_of(person, "haed", tmp_path)
    assert away["what"] == "name" and away["sentence"].startswith('no name server says what "haed" is')
    assert "/etc/resolv.conf" in away["fix"]


async def agents_finding(agent: AgentProcess, machine: Machine, fleet: SpreadFleet) -> dict[str, Any]:
    """What the doctor on the agent's machine says of the agent, once it was refused."""
    agent.must_run()
    await until("the agent has noted how it stands", (agent.data / "link.json").exists)
    named = ("--agent-data", str(agent.data))
    done = await machine.gpuctl("doctor", "-o", "jsonl", *named, home=fleet.work, **fleet.as_admin())
    agent.must_run()
    return findings(done)["agent"]


async def test_an_agent_that_is_refused_says_why_on_its_own_machine(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    machine, twin, old = network.machine("node1"), network.machine("node2"), network.machine("node3")
    # A token that nobody knows; put right, the agent goes on by itself.
    agent = fleet.agent(machine, "--virtual-gpus", "1")
    wrong = fleet.folder / "wrong.token"
    write_token_file(wrong, make_token())
    agent.spawn("--token-file", str(wrong))
    refused = await agents_finding(agent, machine, fleet)
    assert refused["verdict"] == "FAILED"
    assert refused["sentence"].startswith(f"{fleet.scheduler.address} refuses this machine as node node1: ")
    assert refused["sentence"].endswith("(TOKEN_INVALID)") and "agent.token" in refused["fix"]
    write_token_file(wrong, fleet.scheduler.token("agent"))
    await fleet.node_is_ready("node1")
    taken = await agents_finding(agent, machine, fleet)
    assert (taken["verdict"], taken["sentence"]) == (
        "OK",
        f"this machine is node node1 of {fleet.scheduler.address}",
    )
    # A second machine with the same name.
    second = fleet.agent(twin, name="node1")
    second.spawn()
    held = await agents_finding(second, twin, fleet)
    assert held["verdict"] == "FAILED" and held["sentence"].endswith("(NODE_ID_TAKEN)")
    assert "node1, 10.77.0." in held["sentence"] and "--node-id" in held["fix"]
    # An agent of another version of the contract.
    third = fleet.agent(old)
    later = fleet.folder / "node_agent"
    later.write_text(SPEAKS_VERSION_99)
    third.program = ("-P", str(later))
    third.spawn()
    unsupported = await agents_finding(third, old, fleet)
    assert unsupported["verdict"] == "FAILED" and unsupported["sentence"].endswith("(AGENT_VERSION_UNSUPPORTED)")
    assert unsupported["fix"]
    # And one that was stopped.
    await agent.stop()
    done = await machine.gpuctl(
        "doctor", "-o", "jsonl", "--agent-data", str(agent.data), home=fleet.work, **fleet.as_admin()
    )
    assert findings(done)["agent"]["fix"] == f"Start it with: gpuctl agent --scheduler {fleet.scheduler.address}"


async def test_a_healthy_fleet_is_ok_from_a_third_machine_and_the_node_with_another_torch_is_named(
    network: Network, fleet: SpreadFleet, person: Machine
) -> None:
    person.environment = fleet.as_admin()
    await fleet.add_node_on(network.machine("node1"))
    # An installation of torch as the other node's agent sees it: its metadata, found before the real one.
    installed = fleet.folder / "site" / "torch-0.0.1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 0.0.1\n")
    second = network.machine("node2")
    older = {"PYTHONPATH": str(installed.parent)}
    await fleet.add_node_on(second, environment=older)
    done = await person.gpuctl("doctor", "--nodes", "-o", "jsonl", home=fleet.work)
    found = findings(done)
    assert done.code == 0, done.out
    assert {name: each["verdict"] for name, each in found.items() if each["verdict"] == "FAILED"} == {}
    for what in ("name", "port", "TLS", "token", "clock", "files", "node node1", "node node2", "Python", "CUDA"):
        assert found[what]["verdict"] == "OK", found[what]
    assert found["Python"]["sentence"].endswith("on all 2 nodes")
    assert found["torch"]["verdict"] == "WARNING"
    assert found["torch"]["sentence"] == f"node2 has 0.0.1; 1 node has {version('torch')}"
    assert found["torch"]["fix"] == f"On node2: pip install torch=={version('torch')}"
