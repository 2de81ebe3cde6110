"""Jobs over several nodes, each with a network of its own: they meet, fail together, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, node_pb2

from tests.e2e.client import Client
from tests.e2e.processes import until
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Network, system
from tests.several_nodes.test_nodes import in_state

pytestmark = pytest.mark.nightly

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "two_nodes.py"
FAILED, RUNNING, SUCCEEDED = job_pb2.JOB_STATE_FAILED, job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED
SUSPECT, LOST, READY = node_pb2.NODE_STATE_SUSPECT, node_pb2.NODE_STATE_LOST, node_pb2.NODE_STATE_READY
STDOUT = job_pb2.STREAM_STDOUT

# Tells the file of its rank who it is and where it met the others, goes on until the file `stop` is there, and notes
# when it is told to stop.
MEMBER = """
import os, pathlib, signal, sys, time
rank = ".".join(os.environ["GPUFLEET_" + name] for name in ("JOB_ID", "ATTEMPT", "NODE_RANK"))
def told(*_):
    pathlib.Path("told." + rank).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, told)
pathlib.Path("." + rank).write_text(f"{os.getpid()} {os.environ['MASTER_ADDR']}")
pathlib.Path("." + rank).rename("rank." + rank)
while not pathlib.Path("stop").exists():
    time.sleep(0.01)
print("rank", os.environ["NODE_RANK"])
"""


async def ranks_of(fleet: SpreadFleet, job: int, attempt: int) -> tuple[list[int], set[str]]:
    """The pids of both ranks as they tell them, and what they say is the address of the first."""
    files = [fleet.work / f"rank.{job}.{attempt}.{rank}" for rank in (0, 1)]
    await until(f"both ranks of attempt {attempt} of job {job} run", lambda: all(file.exists() for file in files))
    told = [file.read_text().split() for file in files]
    return [int(pid) for pid, _ in told], {address for _, address in told}


def nodes_of(job: job_pb2.Job) -> list[str]:
    """The nodes of the newest attempt, by rank."""
    return [placed.node for placed in sorted(job.attempts[-1].ranks, key=lambda placed: placed.rank)]


async def gang(admin: Client, script: str, **fields: object) -> int:
    """Submit a job that takes both GPUs of two nodes."""
    return await admin.submit(sys.executable, "-c", script, gpus=4, node_count=2, **fields)


async def test_two_nodes_train_one_network_over_the_address_that_the_scheduler_sees(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    machines = {name: network.machine(name) for name in ("node1", "node2")}
    person = network.machine("client")
    person.environment = fleet.as_admin()
    for machine in machines.values():
        await fleet.add_node_on(machine)
    # The two machines are one: two sets of threads would only be in each other's way.
    words = ("run", "--nodes", "2", "--gpus-per-node", "1", "--env", "OMP_NUM_THREADS=1", "--")
    done = await person.gpuctl(*words, sys.executable, str(EXAMPLE), home=fleet.work)
    assert done.code == 0, done.err
    job = await admin.job(1)
    streams = await admin.output(job.id)
    said = {rank: data.decode() for (_, rank, stream), data in streams.items() if stream == STDOUT}
    master = machines[nodes_of(job)[0]].address
    for rank in (0, 1):
        assert f"node {rank} of 2 met the others at {master}:" in said[rank]
        assert f"node {rank}: done" in said[rank] and "the same network on all 2 nodes" in said[rank]


async def test_a_gang_that_is_refused_or_fails_on_one_node_ends_on_both_and_leaves_nothing(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    machines = {name: network.machine(name) for name in ("node1", "node2")}
    agents = [await fleet.add_node_on(machine) for machine in machines.values()]
    # On one node there is no such folder: something else is mounted over the folder above it, for its programs alone.
    share = fleet.work / "share"
    (share / "project").mkdir(parents=True)
    system("nsenter", "--target", str(agents[1].pid), "--mount", "mount", "-t", "tmpfs", "none", str(share))
    refused = await admin.wait(await gang(admin, "open('ran', 'w')", cwd=str(share / "project")))
    assert (refused.state, refused.exit_reason) == (FAILED, "CWD_MISSING"), refused
    assert not (share / "project" / "ran").exists()
    await until("the other node has let it go", lambda: "was not started: ABORTED" in agents[0].log_text())

    # Everything is free again: this one takes all GPUs of both.
    failing = await gang(admin, MEMBER, grace=5)
    pids, _ = await ranks_of(fleet, failing, 1)
    where = nodes_of(await admin.wait(failing, RUNNING))
    assert [pid in machines[node].pids() for pid, node in zip(pids, where, strict=True)] == [True, True]
    os.kill(pids[1], signal.SIGKILL)
    failed = await admin.wait(failing)
    assert (failed.state, failed.exit_reason, failed.exit.signal) == (FAILED, "SIGNALLED", signal.SIGKILL), failed
    stopped, killed = failed.attempts[-1].ranks
    assert (killed.exit.signal, killed.exit_reason, killed.stop_cause) == (signal.SIGKILL, "SIGNALLED", ""), failed
    assert (stopped.stop_cause, stopped.HasField("exit")) == ("GANG", True), failed
    assert (fleet.work / f"told.{failing}.1.0").exists(), "it was not given its grace"
    assert not set(pids) & (machines["node1"].pids() | machines["node2"].pids())


async def test_a_gang_whose_node_is_cut_off_runs_elsewhere_after_the_fence_and_never_twice(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    machines = {name: network.machine(name) for name in ("node1", "node2", "node3")}
    for name in ("node1", "node2"):
        await fleet.add_node_on(machines[name])
    job = await gang(admin, MEMBER, grace=5)
    first, addresses = await ranks_of(fleet, job, 1)
    stays, lost = nodes_of(await admin.wait(job, RUNNING))
    assert addresses == {machines[stays].address}
    await fleet.add_node_on(machines["node3"])

    network.cut(machines[lost])
    await in_state(admin, lost, SUSPECT)
    await in_state(admin, lost, LOST)
    assert first[1] in machines[lost].pids(), "lost is not dead"
    assert not (fleet.work / f"rank.{job}.2.0").exists()

    second, addresses = await ranks_of(fleet, job, 2)
    everywhere = set[int]().union(*(machine.pids() for machine in machines.values()))
    assert not set(first) & everywhere, "the second began while the first one lived"
    assert sorted(nodes_of(await admin.wait(job, RUNNING))) == sorted([stays, "node3"])
    assert set(second) <= machines[stays].pids() | machines["node3"].pids()
    assert (fleet.work / f"told.{job}.1.0").exists(), "the rank that was heard was not given its grace"

    network.heal(machines[lost])
    await in_state(admin, lost, READY)
    assert first[1] not in machines[lost].pids()
    assert set(second) <= machines[stays].pids() | machines["node3"].pids()
    (fleet.work / "stop").touch()
    ended = await admin.wait(job)
    assert (ended.state, ended.attempt_count, ended.output_is_complete) == (SUCCEEDED, 2, True)
    streams = await admin.output(job)
    assert {rank: data for (_, rank, stream), data in streams.items() if stream == STDOUT} == {
        0: b"rank 0\n",
        1: b"rank 1\n",
    }
