"""Agents on machines of their own: they dial in, run jobs, and lose their network."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, node_pb2

from tests.e2e.client import Client
from tests.e2e.processes import until
from tests.several_nodes.fleet import SpreadFleet
from tests.several_nodes.network import Network

RUNNING, SUCCEEDED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED
SUSPECT, LOST, READY = node_pb2.NODE_STATE_SUSPECT, node_pb2.NODE_STATE_LOST, node_pb2.NODE_STATE_READY

WHERE_AM_I = "ip -o -4 address show dev eth0 | awk '{ print $4 }'"
"""A script that prints the address of the machine that it runs on."""

# Tells the file of its attempt who it is, then prints numbered lines until the file `stop` is there.
COUNT_UNTIL_STOPPED = """
import os, pathlib, time
me = f"{os.environ['GPUFLEET_JOB_ID']}.{os.environ['GPUFLEET_ATTEMPT']}"
pathlib.Path("." + me).write_text(str(os.getpid()))
pathlib.Path("." + me).rename("pid." + me)
number = 0
while not pathlib.Path("stop").exists():
    print("line", number, flush=True)
    number += 1
    time.sleep(0.01)
print("lines", number)
"""


async def pid_of(fleet: SpreadFleet, job: int, attempt: int) -> int:
    """The process of the attempt, as it tells itself."""
    file = fleet.work / f"pid.{job}.{attempt}"
    await until(f"attempt {attempt} of job {job} runs", file.exists)
    return int(file.read_text())


async def in_state(admin: Client, node: str, state: node_pb2.NodeState.ValueType) -> None:
    """Return once the node is in this state."""

    async def has_come() -> bool:
        return bool((await admin.node(node)).state == state)

    await until(f"{node} is {node_pb2.NodeState.Name(state)}", has_come)


def whole(output: bytes) -> int:
    """How many lines were printed; a line that is missing, doubled or changed fails."""
    *lines, last = output.decode().splitlines()
    assert lines == [f"line {number}" for number in range(len(lines))]
    assert last == f"lines {len(lines)}"
    return len(lines)


async def test_jobs_run_on_machines_of_their_own_and_are_followed_from_a_fourth(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    machines = [network.machine("node1"), network.machine("node2")]
    person = network.machine("client")
    person.environment = fleet.as_admin()
    for machine in machines:
        await fleet.add_node_on(machine)
    for machine in machines:
        await in_state(admin, machine.name, READY)
        node = await admin.node(machine.name)
        assert (node.info.hostname, node.address) == (machine.name, machine.address)
        script = f"{WHERE_AM_I}; seq 20000"
        done = await person.gpuctl("run", "--gpus", "1", "--nodelist", machine.name, "--", script, home=fleet.work)
        where, *numbers = done.out.splitlines()
        assert (done.code, where) == (0, f"{machine.address}/24"), done.err
        assert numbers == [str(number) for number in range(1, 20_001)]


@pytest.mark.nightly
async def test_agents_behind_a_router_that_hides_them_need_to_dial_out_only(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    router = network.router()
    hidden = [network.hidden("hidden1", router), network.hidden("hidden2", router)]
    person = network.machine("client")
    person.environment = fleet.as_admin()
    for machine in hidden:
        await fleet.add_node_on(machine)
        assert (await admin.node(machine.name)).address == router.address, "its own address is not hidden"
    with hidden[0].sockets():
        listener = socket.create_server((hidden[0].address, 0))
    with listener:
        assert hidden[1].reaches(listener.getsockname()), "the neighbour cannot reach it either"
        assert not network.machines["head"].reaches(listener.getsockname()), "the test's router hides nothing"
    for machine in hidden:
        spec = ("run", "--gpus", "1", "--nodelist", machine.name, "--")
        done = await person.gpuctl(*spec, WHERE_AM_I, home=fleet.work)
        assert (done.code, done.out) == (0, f"{machine.address}/24\n"), done.err
    # A command finds its way in, too: down the stream that the agent has opened.
    job = await admin.submit(sys.executable, "-c", COUNT_UNTIL_STOPPED, nodelist=["hidden1"])
    pid = await pid_of(fleet, job, 1)
    assert pid in hidden[0].pids()
    done = await person.gpuctl("cancel", str(job), home=fleet.work)
    assert done.code == 0, done.err
    assert (await admin.wait(job)).state == job_pb2.JOB_STATE_CANCELLED
    assert pid not in hidden[0].pids()


@pytest.mark.nightly
async def test_a_node_that_is_cut_off_is_suspected_and_lost_and_nothing_on_it_ever_runs_twice(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    cut_off, other = network.machine("node1"), network.machine("node2")
    await fleet.add_node_on(cut_off)
    script = (sys.executable, "-c", COUNT_UNTIL_STOPPED)
    movable = await admin.submit(*script, gpus=1, grace=5)
    staying = await admin.submit(*script, gpus=1, no_requeue=True)
    movable_pid, staying_pid = await pid_of(fleet, movable, 1), await pid_of(fleet, staying, 1)
    assert {movable_pid, staying_pid} <= cut_off.pids()
    await fleet.add_node_on(other)

    network.cut(cut_off)
    await in_state(admin, "node1", SUSPECT)
    assert (await admin.job(movable)).attempts[-1].number == 1
    await in_state(admin, "node1", LOST)
    # Lost is not dead: until the fence has passed both copies may live, so neither has a second.
    assert {movable_pid, staying_pid} <= cut_off.pids()
    assert [(await admin.job(job)).attempt_count for job in (movable, staying)] == [1, 1]

    second_pid = await pid_of(fleet, movable, 2)
    assert second_pid in other.pids()
    assert movable_pid not in cut_off.pids(), "the second copy began while the first one lived"
    assert staying_pid in cut_off.pids(), "a job that must not be requeued was ended for want of a scheduler"

    network.heal(cut_off)
    await in_state(admin, "node1", READY)
    assert movable_pid not in cut_off.pids()
    assert staying_pid in cut_off.pids() and second_pid in other.pids()
    (fleet.work / "stop").touch()
    for job, attempts in ((movable, 2), (staying, 1)):
        ended = await admin.wait(job)
        assert (ended.state, ended.attempt_count, ended.output_is_complete) == (SUCCEEDED, attempts, True)
        whole(await admin.stdout(job))
    assert (await admin.job(movable)).attempts[0].exit_reason in ("FENCED", "NODE_LOST")
    assert not (fleet.work / f"pid.{staying}.2").exists()


@pytest.mark.nightly
async def test_a_follower_gets_every_line_of_a_job_whose_link_fails_again_and_again(
    network: Network, fleet: SpreadFleet, admin: Client
) -> None:
    machine = network.machine("node1")
    person = network.machine("client")
    person.environment = fleet.as_admin()
    await fleet.add_node_on(machine)
    job = await admin.submit(sys.executable, "-c", COUNT_UNTIL_STOPPED, gpus=1, no_requeue=True)
    following = asyncio.create_task(person.gpuctl("logs", "-f", str(job), home=fleet.work))
    await pid_of(fleet, job, 1)
    for each in (machine, person, machine):
        network.cut(each)
        if each is machine:
            await in_state(admin, "node1", SUSPECT)
        network.heal(each)
        await in_state(admin, "node1", READY)
    (fleet.work / "stop").touch()
    assert (await admin.wait(job)).state == SUCCEEDED
    followed = await following
    assert followed.code == 0, followed.err
    assert whole(followed.out.encode()) == whole(await admin.stdout(job))


async def test_everything_made_for_a_network_is_removed_even_with_programs_still_running(
    network: Network, tmp_path: Path
) -> None:
    machine = network.router()
    ready = tmp_path / "ready"
    script = f"trap '' TERM; touch {shlex.quote(str(ready))}; sleep 1000"
    process = await asyncio.create_subprocess_exec(*machine.inside, "sh", "-c", script)
    await until("it runs", ready.exists)
    assert process.pid in machine.pids()
    network.remove()
    assert await process.wait() == -9
    for folder in (Path("/run/netns"), Path("/etc/netns")):
        left = [path.name for path in folder.glob(f"gf{os.getpid()}-*")]
        assert not left
