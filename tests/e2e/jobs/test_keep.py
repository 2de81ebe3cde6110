"""What an attempt keeps for the next one (`--keep`), with real programs: a training resumes wherever it is placed."""

from __future__ import annotations

import shlex
import shutil
import sys
from itertools import pairwise

from gpufleet.v1 import job_pb2, scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

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


async def test_a_training_through_three_time_limits_on_two_nodes_ends_with_the_right_count(
    fleet: Fleet, admin: Client
) -> None:
    for name in ("n1", "n2"):
        await fleet.add_node(name)
    job = await admin.submit(
        "/bin/sh", "-c", TRAINS, cwd="", keep=["ckpt/**"], seconds=2, grace=0.2, requeue_on_timeout=True
    )
    nodes: list[str] = []

    async def has_ended() -> bool:
        """The node of each attempt is closed to the next one."""
        found = await admin.job(job)
        for attempt in found.attempts[len(nodes) :]:
            nodes.append(attempt.ranks[0].node)
            for name in ("n1", "n2"):
                request = scheduler_pb2.UpdateNodeRequest(node=name, is_draining=name == nodes[-1])
                await admin.stub.UpdateNode(request)
        return found.state == job_pb2.JOB_STATE_SUCCEEDED

    await until("the training is done", has_ended)
    said = (await admin.stdout(job)).decode().split()
    starts = [int(step) for step in said[4:]]
    assert said[:3] == ["done", "at", str(STEPS_OF_ATTEMPT * ATTEMPTS)]
    assert starts == [STEPS_OF_ATTEMPT * number for number in range(ATTEMPTS)]
    assert len(nodes) == ATTEMPTS and all(one != other for one, other in pairwise(nodes)), nodes
    assert not (await admin.job(job)).kept, "what it kept went with its end"


async def test_a_checkpoint_that_a_job_stores_itself_outlives_its_agent_its_keeper_and_its_folder(
    fleet: Fleet, admin: Client
) -> None:
    agent = await fleet.add_node("n1")
    gpuctl = f"{shlex.quote(sys.executable)} -P -m gpufleet.cli"
    trains = f"""
        [ -e ckpt/step ] && exec cat ckpt/step
        mkdir ckpt; echo 7 >ckpt/step; {gpuctl} keep && echo 8 >ckpt/step; sleep 600
    """
    job = await admin.submit("/bin/sh", "-c", trains, cwd="", keep=["ckpt/**"])

    async def is_stored() -> bool:
        return "FilesKept" in await admin.kinds(job)

    await until("the checkpoint is stored", is_stored)
    kept = (await admin.job(job)).kept
    assert [(each.rank, each.attempt, each.file_count, each.size_bytes) for each in kept] == [(0, 1, 1, 2)]
    agent.kill()
    await agent.end_keeper()
    shutil.rmtree(agent.data / "files/attempts")
    agent.spawn()
    ended = await admin.wait(job)
    assert (ended.state, ended.attempt_count) == (job_pb2.JOB_STATE_SUCCEEDED, 2)
    assert await admin.stdout(job) == b"7\n"
