"""What an attempt keeps for the next one (`--keep`), with real programs: a training resumes wherever it is placed."""

from __future__ import annotations

import shlex
import shutil
import sys
from itertools import pairwise
from pathlib import Path

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

GPUCTL = shlex.join([sys.executable, "-P", "-m", "gpufleet.cli"])
STEPS_OF_ATTEMPT, ATTEMPTS = 10, 4
TRAINS = f"""
mkdir -p ckpt; step=$(cat ckpt/step 2>/dev/null || echo 0); echo $step >>ckpt/starts
enough=$(($(wc -l <ckpt/starts) * {STEPS_OF_ATTEMPT}))
while [ $step -lt $enough ]; do
    step=$((step + 1)); echo $step >ckpt/new; mv ckpt/new ckpt/step
done
[ $step -lt {STEPS_OF_ATTEMPT * ATTEMPTS} ] && sleep 600
echo done at $step after $(cat ckpt/starts)
"""


async def test_a_training_goes_on_through_time_limits_on_two_nodes_gangs_by_rank_and_checkpoints_outlive_an_agent(
    fleet: Fleet, admin: Client
) -> None:
    for name in ("n1", "n2"):
        await fleet.add_node(name)
    await trains_through_three_limits(admin)
    await each_rank_of_a_gang_finds_its_own(admin)
    await a_checkpoint_outlives_its_agent_and_its_folder(fleet, admin)


async def trains_through_three_limits(admin: Client) -> None:
    job = await admin.submit(
        "/bin/sh", "-c", TRAINS, cwd="", keep=["ckpt/**"], seconds=2, grace=0.2, requeue_on_timeout=True
    )
    nodes: list[str] = []

    async def has_ended() -> bool:
        """The node of each attempt is closed to the next one."""
        found = await admin.job(job)
        for attempt in found.attempts[len(nodes) :]:
            nodes.append(attempt.ranks[0].node)
            await close_all_but(admin, "n2" if nodes[-1] == "n1" else "n1")
        return found.state == job_pb2.JOB_STATE_SUCCEEDED

    await until("the training is done", has_ended)
    await close_all_but(admin, "n1", "n2")
    said = (await admin.stdout(job)).decode().split()
    assert said[:3] == ["done", "at", str(STEPS_OF_ATTEMPT * ATTEMPTS)]
    assert [int(step) for step in said[4:]] == [STEPS_OF_ATTEMPT * number for number in range(ATTEMPTS)]
    assert len(nodes) == ATTEMPTS and all(one != other for one, other in pairwise(nodes)), nodes
    assert not (await admin.job(job)).kept, "what it kept went with its end"


async def close_all_but(admin: Client, *names: str) -> None:
    for name in ("n1", "n2"):
        await admin.stub.UpdateNode(scheduler_pb2.UpdateNodeRequest(node=name, is_draining=name not in names))


async def each_rank_of_a_gang_finds_its_own(admin: Client) -> None:
    script = "[ -e ckpt/rank ] && exec cat ckpt/rank; mkdir ckpt; echo $NODE_RANK >ckpt/rank; sleep 0.5; exit 1"
    job = await admin.submit("/bin/sh", "-c", script, cwd="", keep=["ckpt/**"], gpus=4, node_count=2, retries=1)
    ended = await admin.wait(job)
    assert (ended.state, ended.retries_used) == (job_pb2.JOB_STATE_SUCCEEDED, 1), await admin.story(job)
    said = await admin.output(job)
    assert [said[2, rank, job_pb2.STREAM_STDOUT] for rank in (0, 1)] == [b"0\n", b"1\n"]


async def a_checkpoint_outlives_its_agent_and_its_folder(fleet: Fleet, admin: Client) -> None:
    trains = f"""
        [ -e ckpt/step ] && exec cat ckpt/step
        mkdir ckpt; echo 7 >ckpt/step; {GPUCTL} keep && echo 8 >ckpt/step; sleep 600
    """
    job = await admin.submit("/bin/sh", "-c", trains, cwd="", keep=["ckpt/**"], nodelist=["n1"])

    async def is_stored() -> bool:
        return "FilesKept" in await admin.kinds(job)

    await until("the checkpoint is stored", is_stored)
    kept = (await admin.job(job)).kept
    assert [(each.rank, each.attempt, each.file_count, each.size_bytes) for each in kept] == [(0, 1, 1, 2)]
    agent = fleet.agents["n1"]
    agent.kill()
    await agent.end_keeper()
    shutil.rmtree(agent.data / "files/attempts")
    agent.spawn()
    ended = await admin.wait(job)
    assert (ended.state, ended.attempt_count) == (job_pb2.JOB_STATE_SUCCEEDED, 2)
    assert await admin.stdout(job) == b"7\n"


async def test_each_item_of_an_array_that_is_retried_finds_its_own_and_leaves_it_as_results_too(
    shared_fleet: Fleet, person: Client
) -> None:
    script = "[ -e out/item ] && exec cat out/item; mkdir out; echo $GPUFLEET_ARRAY_INDEX >out/item; exit 1"
    fields = {"keep": ["out/**"], "results": ["out/**"], "retries": 1}
    array = await person.submit("/bin/sh", "-c", script, cwd="", array=job_pb2.ArraySpec(indices="3-4"), **fields)
    for number in (1, 2):
        item = array + number
        ended = await person.wait(item)
        assert (ended.state, ended.attempt_count) == (job_pb2.JOB_STATE_SUCCEEDED, 2), await person.story(item)
        assert await person.stdout(item) == f"{number + 2}\n".encode()


async def test_a_copy_that_a_newer_one_replaces_is_dropped_and_a_file_of_both_stays(
    shared_fleet: Fleet, person: Client
) -> None:
    script = f"""
        mkdir ckpt; head -c 400000 /dev/urandom >ckpt/fixed; sha256sum <ckpt/fixed
        for each in 1 2; do
            head -c 400000 /dev/urandom >ckpt/moves; sha256sum <ckpt/moves; {GPUCTL} keep
        done
        sleep 600
    """
    job = await person.submit("/bin/sh", "-c", script, cwd="", keep=["ckpt/**"])

    async def said() -> list[str]:
        return [line.split()[0] for line in (await person.stdout(job, follow=False)).decode().splitlines()]

    async def are_stored() -> bool:
        return (await person.kinds(job)).count("FilesKept") == 2

    await until("two checkpoints are stored", are_stored)
    fixed, first, second = await said()
    files = shared_fleet.scheduler.data / "blobs" / (await person.job(job)).user
    await until("the first copy is dropped", lambda: are_there(files, fixed, first, second) == [True, False, True])
    await person.cancel(job)
    await person.wait(job)
    await until("the last copy is dropped", lambda: not any(are_there(files, fixed, second)))


def are_there(files: Path, *digests: str) -> list[bool]:
    return [(files / each).exists() for each in digests]


async def test_a_job_that_keeps_nothing_is_told_so(shared_fleet: Fleet, person: Client) -> None:
    job = await person.submit("/bin/sh", "-c", f"{GPUCTL} keep 2>&1")
    ended = await person.wait(job)
    assert ended.state == job_pb2.JOB_STATE_FAILED
    assert b"keeps nothing for its next attempt" in await person.stdout(job)
