"""The doctor: every line is ok, or the exact thing to do."""

from __future__ import annotations

import json
import re
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2, sessions_pb2

from cli.doctor import cluster as judge
from cli.doctor import network
from cli.doctor.agent import check_agent, judge_agent
from cli.doctor.cluster import compare_nodes, judge_accounts
from cli.doctor.network import ERROR, TurnedAway, read_error
from cli.doctor.versions import judge_programs
from cli.render.nodes import devices_in_words, nodes_screen
from cli.render.table import Look
from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet import encryption
from gpufleet.fleet.finding import Finding, Verdict
from gpufleet.host.agent_state import LOST, REFUSED, REGISTERED, UNREACHABLE, AgentState
from gpufleet.net.addresses import Address
from gpufleet.net.channel import Target
from tests.cli import cluster
from tests.cli.conftest import Gpuctl, run_here
from tests.cli.fake_scheduler import FakeScheduler, Fault, Piece, ended, job

GB = 10**9


@contextmanager
def free_port() -> Iterator[int]:
    """A port at which nobody listens, and nobody else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def healthy(fake: FakeScheduler) -> None:
    fake.server = scheduler_pb2.GetServerInfoResponse(
        version="0.1.0", user="ada", role="admin", store_kind="sqlite", store_is_healthy=True, output_free_bytes=90 * GB
    )
    fake.nodes = [cluster.node("n1", node_pb2.NODE_STATE_READY, 2, {})]


def test_a_healthy_fleet_is_ok_from_here_to_its_nodes(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy(fake)
    monkeypatch.setattr("cli.doctor.checks.own_version", lambda: "0.1.0")
    done = gpuctl("doctor")
    checks = [line.split()[0] for line in done.text.splitlines()]
    assert done.code == 0
    assert checks == [
        "settings",
        "own",
        "name",
        "port",
        "TLS",
        "token",
        "version",
        "clock",
        "store",
        "disk",
        "node",
        "accounts",
    ]
    assert "→" not in done.text


def test_a_refused_connection_ends_the_walk_with_what_to_start() -> None:
    with free_port() as port:
        done = run_here("doctor", "-o", "jsonl", "--scheduler", f"127.0.0.1:{port}")
    last = json.loads(done.text.splitlines()[-1])
    assert (done.code, last["what"], last["verdict"]) == (1, "port", "FAILED")
    assert "gpuctl up" in last["fix"]


def test_a_token_that_is_refused_is_told_as_such(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    fake.faults["GetServerInfo"].append(GpufleetError(Reason.TOKEN_INVALID))
    done = gpuctl("doctor")
    assert done.code == 1
    assert "token       FAIL  The scheduler does not know this token." in done.text


def test_an_unknown_name_a_refusal_a_silence_and_no_route_have_each_their_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.check_name("localhost").verdict is Verdict.OK
    unknown = network.check_name("no-such-host.invalid")
    assert unknown.verdict is Verdict.FAILED and "getent hosts no-such-host.invalid" in unknown.fix
    assert "--host 0.0.0.0" in network.not_listening_fix(Address("gpu1", 50051))
    fix = network.firewall_fix(Address("gpu1", 50051))
    assert "ufw allow 50051/tcp" in fix and "firewall-cmd --permanent --add-port=50051/tcp" in fix

    def fails(problem: OSError) -> Finding:
        def connect(*_: object) -> None:
            raise problem

        monkeypatch.setattr(socket, "create_connection", connect)
        return network.check_port(Address("gpu1", 50051))

    assert "ufw" in fails(TimeoutError()).fix
    route = fails(OSError(101, "Network is unreachable"))
    assert (route.what, route.fix.split(":")[1].strip().split(".")[0]) == ("route", "ip route get gpu1")
    assert fails(OSError(113, "No route to host")).what == "route"
    assert "nothing listens" in fails(ConnectionRefusedError(111, "refused")).sentence


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for localhost that vouches for itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "1"]
    subprocess.run([*command, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


@contextmanager
def tls_server(certificate: tuple[Path, Path], connections: int) -> Iterator[int]:
    """Takes so many connections, and shakes hands on each."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(connections):
                connection, _ = listener.accept()
                try:
                    with context.wrap_socket(connection, server_side=True) as wrapped:
                        wrapped.recv(1)
                except OSError:
                    connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


def test_tls_is_looked_at_from_both_sides(certificate: tuple[Path, Path], fake: FakeScheduler) -> None:
    with tls_server(certificate, 3) as port:
        address = Address("localhost", port)
        ending = encryption.check_tls(Target(address=address, ca_file=certificate[0]))
        other_name = encryption.check_tls(Target(address=Address("127.0.0.1", port), ca_file=certificate[0]))
        plain = encryption.check_tls(Target(address=address))
    assert ending.verdict is Verdict.WARNING and "TLSv1.3, and the certificate ends in 23h" in ending.sentence
    assert "gpuctl config certificate localhost" in ending.fix
    assert other_name.verdict is Verdict.FAILED and "gpuctl config certificate 127.0.0.1" in other_name.fix
    assert "wants TLS" in plain.sentence and "--ca-file" in plain.fix
    host, port_text = fake.address.split(":")
    without = encryption.check_tls(Target(address=Address(host, int(port_text)), ca_file=certificate[0]))
    assert "does not speak TLS" in without.sentence and "--insecure" in without.fix


def test_a_certificate_is_judged_by_what_is_wrong_with_it_and_by_how_long_it_is_good() -> None:
    address, now = Address("head"), cluster.NOW
    assert encryption.judge_end(address, "TLSv1.3", now + timedelta(days=31), now).verdict is Verdict.OK
    assert encryption.judge_end(address, "TLSv1.3", now + timedelta(days=29), now).verdict is Verdict.WARNING
    assert "clock" in encryption.judge_untrusted(address, 10, "certificate has expired").fix
    assert "clock" in encryption.judge_untrusted(address, 9, "certificate is not yet valid").fix
    assert "--ca-file" in encryption.judge_untrusted(address, 20, "unable to get local issuer certificate").fix


def test_a_port_behind_which_no_scheduler_answers_is_told_from_a_scheduler_that_is_silent(
    fake: FakeScheduler, gpuctl: Gpuctl
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]

        def say_no() -> None:
            while True:
                try:
                    connection, _ = other.accept()
                except OSError:
                    return
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                connection.close()

        thread = threading.Thread(target=say_no)
        thread.start()
        last = run_here("doctor", "-o", "jsonl", "--scheduler", f"127.0.0.1:{port}").text.splitlines()[-1]
        other.shutdown(socket.SHUT_RDWR)
        thread.join()
    found = json.loads(last)
    assert (
        found["what"] == "answer"
        and f"what listens at 127.0.0.1:{port} is no gpufleet scheduler: " in found["sentence"]
    )
    fake.faults["GetServerInfo"].append(Fault.HANG)
    silent = json.loads(gpuctl("doctor", "-o", "jsonl", "--connection-timeout", "1s").text.splitlines()[-1])
    assert silent["sentence"].endswith("takes connections and does not answer in 1 s")
    assert "is the scheduler stopped" in silent["fix"]


def test_versions_clocks_store_and_disk_are_judged() -> None:
    now = cluster.NOW
    server = scheduler_pb2.GetServerInfoResponse(
        version="0.2.0",
        user="ada",
        role="user",
        store_kind="sqlite",
        store_error="disk full",
        output_free_bytes=GB // 2,
    )
    server.server_time.FromDatetime(now + timedelta(seconds=90))
    found = {each.what: each for each in judge.judge_server(server, "0.1.0", now, now, "GPUCTL_TOKEN")}
    assert found["version"].verdict is Verdict.WARNING and found["version"].fix == "pip install gpufleet==0.2.0"
    assert "1m30s ahead of this one" in found["clock"].sentence and "timedatectl" in found["clock"].fix
    assert found["store"].verdict is Verdict.FAILED and "disk full" in found["store"].sentence
    assert found["disk"].verdict is Verdict.FAILED and "500MB" in found["disk"].sentence
    assert judge.judge_disk(2 * GB).verdict is Verdict.WARNING


def test_gateways_and_workers_of_another_version_are_told_in_one_line() -> None:
    server = scheduler_pb2.GetServerInfoResponse(version="0.2.0")
    assert list(judge_programs(server, [])) == []
    server.gateways.add(gateway="edge", gateway_version="0.2.0")
    model = sessions_pb2.Model(name="canvas")
    model.workers.add(worker_start="4f2a9c01d3", job_id=12, worker_version="0.2.0")
    model.workers.add(job_id=13)
    (found,) = judge_programs(server, [model])
    assert found.verdict is Verdict.OK
    assert found.sentence == "1 gateway and 1 worker have the scheduler's version"
    server.gateways.add(address="10.0.0.9")
    (found,) = judge_programs(server, [model])
    assert found.verdict is Verdict.WARNING
    assert found.sentence == "gateway at 10.0.0.9 has version 0.1.0; the scheduler has 0.2.0"
    assert "gateway" in found.fix and "pip install gpufleet==0.2.0" in found.fix and "drain" not in found.fix
    for number in range(7):
        model.workers.add(worker_start=f"{number}f2a9c01d3", worker_version="0.1.5")
    (found,) = judge_programs(server, [model])
    assert found.sentence.endswith("and 3 more programs differ; the scheduler has 0.2.0")
    assert "gpuctl models drain WORKER" in found.fix


def test_with_an_agents_token_models_are_left_out_and_all_else_is_told(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    healthy(fake)
    fake.faults["ListModels"] += [GpufleetError(Reason.PERMISSION_DENIED, "a token of role agent may not call it")]
    done = gpuctl("doctor")
    assert done.code == 0 and fake.asked("ListModels")
    assert "may not call it" not in done.text and "accounts" in done.text


def test_what_jobs_wait_for_since_the_store_was_put_back_is_told() -> None:
    now = cluster.NOW
    server = scheduler_pb2.GetServerInfoResponse(output_free_bytes=50 * GB, store_is_healthy=True)
    server.server_time.FromDatetime(now)
    assert "gap" not in {each.what for each in judge.judge_server(server, "", now, now, "")}
    gap = server.store_gap
    gap.jobs_below = 41
    gap.awaited_nodes.extend(f"n{number}" for number in range(1, 8))
    gap.accept_time.FromDatetime(now - timedelta(minutes=3))
    found = {each.what: each for each in judge.judge_server(server, "", now, now, "")}["gap"]
    assert found.verdict is Verdict.WARNING and "accepted 3m ago: its jobs below 41 wait" in found.sentence
    assert "n1, n2, n3, n4, n5 and 2 more" in found.sentence
    assert "gpuctl nodes forget n1" in found.fix and "gpuctl release JOB" in found.fix
    del gap.awaited_nodes[:]
    gap.wait_until.FromDatetime(now + timedelta(minutes=7))
    assert "wait 7m more for what nodes that joined meanwhile may run" in judge.judge_gap(gap, now).sentence
    assert judge.judge_gap(gap, now + timedelta(minutes=8)).verdict is Verdict.OK
    assert "gpuctl release --restored" in judge.judge_gap(gap, now).fix
    gap.is_released = True
    assert judge.judge_gap(gap, now).verdict is Verdict.OK


def test_jobs_of_which_nodes_told_what_the_store_lacks_are_named() -> None:
    gap = scheduler_pb2.StoreGap(found_job_ids=[7], found_job_count=1)
    (found,) = judge.judge_told(gap)
    assert found.verdict is Verdict.OK and "the store lacks job 7, of which nodes told: gpuctl job 7" in found.sentence
    gap = scheduler_pb2.StoreGap(given_up_job_ids=range(1, 101), given_up_job_count=1_234)
    (twice,) = judge.judge_told(gap)
    assert twice.verdict is Verdict.WARNING and "of jobs 1, 2, 3, 4, 5 and 1,229 more" in twice.sentence
    assert "may be done twice" in twice.sentence and twice.fix == "See why: gpuctl story 1"


def test_nodes_that_were_refused_are_named_with_what_to_do() -> None:
    now = cluster.NOW
    server = scheduler_pb2.GetServerInfoResponse()
    server.server_time.FromDatetime(now)
    for number in range(1, 8):
        each = server.refused_nodes.add(node=f"n{number}", reason="STORE_RESTORED", message="it has heard term 7")
        each.refuse_time.FromDatetime(now - timedelta(seconds=3))
    found = list(judge.judge_refused(server))
    assert [each.verdict for each in found] == [Verdict.FAILED] * 6
    assert found[0].sentence == "node n1 was refused 3s ago: it has heard term 7 (STORE_RESTORED)"
    assert found[-1].sentence == "and 2 more nodes" and all("--accept-restored" in each.fix for each in found)
    node = cluster.node("n1", node_pb2.NODE_STATE_LOST, 2, {})
    node.refusal.CopyFrom(server.refused_nodes[0])
    told = judge.judge_node(node, "0.1.0", now)
    assert told.verdict is Verdict.FAILED and told.sentence == "lost, refused 3s ago: it has heard term 7"
    assert devices_in_words(node).startswith("refused: it has heard term 7; 2 ×")


def test_it_is_said_which_nodes_give_other_uids_than_their_settings_say() -> None:
    plain, moved = (cluster.node(name, node_pb2.NODE_STATE_READY, 1, {}) for name in ("n1", "n2"))
    moved.info.job_accounts.uid_first = 1_900_065_536
    moved.info.job_accounts.uids_note = "another agent has those before"
    (found,) = judge.judge_uids([plain, moved])
    assert found.verdict is Verdict.OK
    assert found.sentence == "on n2 users have uids from 1900065536 on: another agent has those before"
    assert "own uids from 1900065536" in "\n".join(nodes_screen([plain, moved], cluster.NOW, Look(is_wide=True)))


@pytest.mark.parametrize(
    ("said", "shown"),
    [("allowed", "own uids, user namespaces"), ("unfiltered", "own uids, any system call"), ("refused", "own uids  ")],
)
def test_what_jobs_are_not_kept_from_stands_beside_as_whom_they_run(said: str, shown: str) -> None:
    node = cluster.node("n1", node_pb2.NODE_STATE_READY, 1, {})
    node.info.job_accounts.user_namespaces = said
    assert shown in "\n".join(nodes_screen([node], cluster.NOW, Look(is_wide=True)))


@pytest.mark.parametrize("seconds", [-3600, 0, 12, 13, 3600])
def test_a_slow_call_says_nothing_of_the_clocks(seconds: int) -> None:
    """The scheduler may have answered at once, on a way that was slow to be found."""
    asked, answered = cluster.NOW, cluster.NOW + timedelta(seconds=12)
    server = scheduler_pb2.GetServerInfoResponse()
    server.server_time.FromDatetime(asked + timedelta(seconds=seconds))
    found = judge.judge_clock(server, asked, answered)
    assert (found.verdict, found.sentence) == (Verdict.OK, "not compared: the scheduler took 12s to answer")
    server.clock_stepped = True
    assert judge.judge_clock(server, asked, answered).verdict is Verdict.WARNING


def test_the_clocks_are_compared_by_a_call_on_a_connection_that_is_there(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    gpuctl("doctor")
    assert len(fake.asked("GetServerInfo")) == 2


def test_a_slow_look_up_is_told_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert network.check_name("127.0.0.1").verdict is Verdict.OK
    monkeypatch.setattr(network, "LOOK_UP_SECONDS_MAX", 0.0)
    slow = network.check_name("localhost")
    assert slow.verdict is Verdict.WARNING
    assert re.search(r"localhost is .*; the look-up took \d+\.\d s", slow.sentence), slow
    assert "/etc/resolv.conf" in slow.fix and "/etc/hosts" in slow.fix


def test_each_trouble_of_a_node_has_its_fix() -> None:
    node = cluster.node("n1", node_pb2.NODE_STATE_READY, 2, {})
    assert judge.judge_node(node, "0.1.0", cluster.NOW).verdict is Verdict.OK
    skewed = judge.judge_node(node, "0.2.0", cluster.NOW)
    assert skewed.verdict is Verdict.WARNING and "pip install gpufleet==0.2.0" in skewed.fix
    node.devices[1].device.is_healthy = False
    node.devices[1].device.unhealthy_reason = "XID 79"
    sick = judge.judge_node(node, "0.1.0", cluster.NOW)
    assert "GPU 1 is unhealthy: XID 79" in sick.sentence and "gpuctl resume n1" in sick.fix
    lost = judge.judge_node(cluster.node("n2", node_pb2.NODE_STATE_LOST, 0, {}), "0.1.0", cluster.NOW)
    assert lost.verdict is Verdict.FAILED and "gpuctl nodes forget n2" in lost.fix
    bare = cluster.node("n3", node_pb2.NODE_STATE_READY, 0, {})
    bare.info.devices_note = "libnvidia-ml.so.1 is missing"
    assert "libnvidia-ml" in judge.judge_node(bare, "0.1.0", cluster.NOW).sentence
    odd = cluster.node("n6", node_pb2.NODE_STATE_READY, 1, {})
    odd.info.devices_note, odd.info.devices_fix = "the driver and its library differ", "reboot after a driver update"
    assert judge.judge_node(odd, "0.1.0", cluster.NOW).fix == "On it: reboot after a driver update"
    odd.devices[0].device.is_virtual = True
    assert judge.judge_node(odd, "0.1.0", cluster.NOW).verdict is Verdict.OK, "no driver is wanted for these"
    assert [each.verdict for each in judge.judge_nodes([], "0.1.0", cluster.NOW)] == [Verdict.FAILED]
    full = cluster.node("n4", node_pb2.NODE_STATE_READY, 1, {})
    full.spool_free_bytes = GB // 2
    assert judge.judge_node(full, "0.1.0", cluster.NOW).sentence == "500MB are free where its jobs' output waits"
    narrow = cluster.node("n5", node_pb2.NODE_STATE_READY, 1, {})
    narrow.info.open_files_max = 256
    tight = judge.judge_node(narrow, "0.1.0", cluster.NOW)
    assert tight.verdict is Verdict.WARNING and "ulimit -n 1024" in tight.fix


def test_the_scheduler_must_be_able_to_open_files_for_all_its_nodes() -> None:
    server = scheduler_pb2.GetServerInfoResponse(open_files_max=1024, node_count=100)
    assert judge.judge_open_files(server).verdict is Verdict.OK
    server.node_count = 1000
    tight = judge.judge_open_files(server)
    assert tight.verdict is Verdict.WARNING and "LimitNOFILE=4512" in tight.fix


def test_nodes_are_compared_and_the_odd_one_is_named() -> None:
    def node(name: str, **info: Any) -> node_pb2.Node:
        made = cluster.node(name, node_pb2.NODE_STATE_READY, 1, {})
        told: dict[str, Any] = {
            "python_version": "3.12.4",
            "torch_version": "2.10.0",
            "cuda_runtime_version": "13.0.96",
        } | info
        made.info.MergeFrom(node_pb2.NodeInfo(**told))
        return made

    same = list(compare_nodes([node("n1"), node("n2")]))
    assert [(each.what, each.verdict) for each in same] == [
        (what, Verdict.OK) for what in ("gpufleet", "Python", "torch", "CUDA", "driver")
    ]
    assert same[2].sentence == "2.10.0 on all 2 nodes"
    others = [node("n1"), node("n2"), node("n3", torch_version="2.9.1", driver_version="535.1", cuda_version="12.2")]
    found = {each.what: each for each in compare_nodes(others)}
    assert found["torch"].verdict is Verdict.WARNING
    assert found["torch"].sentence == "n3 has 2.9.1; 2 nodes have 2.10.0"
    assert found["torch"].fix == "On n3: pip install torch==2.10.0"
    assert found["driver"].sentence == "n3 has 535.1/12.2; 2 nodes have 570.86"
    assert found["Python"].verdict is Verdict.OK
    # One against one: the newer is what the other should have; none at all is always odd.
    two = {each.what: each for each in compare_nodes([node("n1", torch_version="2.9.1"), node("n2")])}
    assert two["torch"].sentence == "n1 has 2.9.1; 1 node has 2.10.0"
    bare = node("n2")
    bare.info.torch_version = ""
    none = {each.what: each for each in compare_nodes([node("n1"), bare])}
    assert none["torch"].sentence == "n2 has none; 1 node has 2.10.0"
    cpu_only = {each.what: each for each in compare_nodes([node("n1", cuda_runtime_version="")])}
    assert cpu_only["CUDA"] == Finding("CUDA", Verdict.OK, "on no node")
    # A driver is of no concern to a node without a real GPU, and a lost node says nothing.
    plain = cluster.node("n4", node_pb2.NODE_STATE_READY, 0, {})
    plain.info.MergeFrom(node("n1").info)
    plain.info.driver_version = ""
    gone = node("n5", torch_version="1.0")
    gone.state = node_pb2.NODE_STATE_LOST
    assert all(each.verdict is Verdict.OK for each in compare_nodes([node("n1"), plain, gone]))
    assert list(compare_nodes([])) == []


def test_this_machines_agent_is_judged_by_its_own_words() -> None:
    def state(name: str, **fields: Any) -> AgentState:
        return AgentState(node="n1", scheduler="head:50051", state=name, **fields)

    taken = state(REFUSED, reason="NODE_ID_TAKEN", message="node 'n1' is held", next_step="choose another --node-id")
    refused = judge_agent(taken, runs=True)
    assert (refused.verdict, refused.fix) == (Verdict.FAILED, "choose another --node-id")
    assert refused.sentence == "head:50051 refuses this machine as node n1: node 'n1' is held (NODE_ID_TAKEN)"
    assert "agent.token" in judge_agent(state(REFUSED, reason="TOKEN_INVALID", message="no"), runs=True).fix
    assert judge_agent(state(REGISTERED), runs=True).verdict is Verdict.OK
    away = judge_agent(state(UNREACHABLE, message="nothing"), runs=True)
    assert (away.verdict, away.fix) == (Verdict.FAILED, "See why with: gpuctl doctor --scheduler head:50051")
    assert judge_agent(state(LOST, message="broken"), runs=True).verdict is Verdict.WARNING
    still = judge_agent(state(REGISTERED), runs=False)
    assert (still.verdict, still.fix) == (Verdict.WARNING, "Start it with: gpuctl agent --scheduler head:50051")


def test_an_agents_folder_that_is_named_must_be_one(tmp_path: Path) -> None:
    assert check_agent(tmp_path, is_named=False) is None
    named = check_agent(tmp_path, is_named=True)
    assert named is not None and named.verdict is Verdict.FAILED


def test_the_kernels_words_tell_a_firewall_from_a_gap() -> None:
    def told(origin: int, kind: int, code: int, by: bytes) -> TurnedAway | None:
        return read_error(ERROR.pack(113, origin, kind, code, 0, 0, 0) + by)

    four = b"\2\0\0\0" + bytes([10, 77, 0, 1]) + bytes(8)
    six = b"\x0a\0\0\0\0\0\0\0" + bytes(15) + b"\1" + bytes(4)
    assert told(2, 3, 13, four) == TurnedAway("10.77.0.1", is_firewall=True)
    assert told(2, 3, 10, four) == TurnedAway("10.77.0.1", is_firewall=True)
    assert told(2, 3, 1, four) == TurnedAway("10.77.0.1", is_firewall=False)
    assert told(3, 1, 1, six) == TurnedAway("::1", is_firewall=True)
    assert told(3, 1, 0, six) == TurnedAway("::1", is_firewall=False)
    assert told(1, 0, 0, four) is None, "this machine's own kernel"
    assert read_error(b"short") is None


def test_the_self_test_runs_on_every_ready_node_and_its_verdict_is_shown(fake: FakeScheduler, gpuctl: Gpuctl) -> None:
    healthy(fake)
    fake.nodes.append(cluster.node("n2", node_pb2.NODE_STATE_READY, 0, {}))
    fake.nodes.append(cluster.node("n3", node_pb2.NODE_STATE_LOST, 1, {}))
    fake.jobs = {1: ended(1), 2: ended(2, code=1)}
    fake.output = {1: [Piece(b"phase 1 ok\nPASSED in 2.1s\n")], 2: [Piece(b"matmul: wrong result\n")]}
    done = gpuctl("doctor", "--run")
    assert done.code == 1
    assert "test n1     ok    PASSED in 2.1s" in done.text
    assert "test n2     FAIL  job 2 failed with exit code 1 (EXITED): matmul: wrong result" in done.text
    assert "→ See all of it: gpuctl logs 2" in done.text
    specs = [request.specs[0] for request in fake.asked("Submit")]
    assert [(list(spec.nodelist), len(spec.devices)) for spec in specs] == [(["n1"], 1), (["n2"], 0)]
    assert all(spec.argv[1:] == ["-P", "-m", "gpufleet.selftest"] for spec in specs)


def test_a_node_that_is_too_busy_is_left_untested_and_its_test_is_taken_back(
    fake: FakeScheduler, gpuctl: Gpuctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy(fake)
    fake.jobs = {1: job(1, job_pb2.JOB_STATE_QUEUED, wait_reason=job_pb2.WaitReason(sentence="no GPU is free"))}
    monkeypatch.setattr("cli.doctor.selftest.START_S_MAX", 0.0)
    done = gpuctl("doctor", "--run")
    assert "test n1     warn  not tested: no GPU is free" in done.text
    assert list(fake.asked("Cancel")[0].jobs.job_ids) == [1]


def test_it_is_said_as_whom_jobs_run_and_what_a_shared_account_means() -> None:
    def node(name: str, **told: Any) -> node_pb2.Node:
        made = cluster.node(name, node_pb2.NODE_STATE_READY, 1, {})
        made.info.job_accounts.CopyFrom(node_pb2.JobAccounts(**told))
        return made

    shared = {"runs_as": node_pb2.RUNS_AS_SHARED, "account": "lab"}
    found = list(
        judge_accounts(
            [
                node(
                    "n1",
                    runs_as=node_pb2.RUNS_AS_RANGE,
                    account="root",
                    ends_all_by="pid namespace",
                    limits=["memory"],
                    limits_note="not within their cpus: no group",
                ),
                node("n2", runs_as=node_pb2.RUNS_AS_OWNER, owner="ada", account="ada"),
                node("n3", **shared),
                node("n4", **shared),
                node("n5", **shared, is_from_before=True),
                node("n6"),
            ]
        )
    )
    assert [each.verdict for each in found] == [Verdict.OK] * 2 + [Verdict.WARNING] * 3
    assert found[0].sentence.startswith("on n1 each user's jobs run as a uid of their own")
    assert found[0].sentence.endswith(
        "; each within its memory; not within their cpus: no group; nothing outlives its job, by pid namespace"
    )
    assert found[1].sentence == "on n2 jobs of ada alone run, as ada"
    assert found[2].sentence.startswith("on n3, n4 jobs of all users run as lab. Each of them can read, change and end")
    assert "--shared-account" not in found[2].fix, "it is meant"
    assert all("--shared-account" in each.fix and "--owner" in each.fix for each in found[3:])
