"""Programs die at the worst moment: what was acknowledged is kept, and nothing runs twice."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Code
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until
from tests.e2e.submitting import RUNS, Submitter, each_ran_once, kill_while_submitting

RUNNING, SUCCEEDED, FAILED = job_pb2.JOB_STATE_RUNNING, job_pb2.JOB_STATE_SUCCEEDED, job_pb2.JOB_STATE_FAILED

SUBMITS = 1_000
MUCH_BYTES = 20_000_000
"""More than the pieces in which a node deletes its spool."""

PRINT_NUMBERED = """
import sys, time
for number in range(int(sys.argv[1])):
    print("line", number)
    if number % 50 == 0:
        time.sleep(0.005)
"""

# Attempt 1 leaves a child that ignores every polite signal; each later attempt looks whether anything of it lives.
LOOK_FOR_THE_LAST_ATTEMPT = """
import os, pathlib, signal, sys, time
attempt = int(os.environ["GPUFLEET_ATTEMPT"])
for file in pathlib.Path(".").glob("pid.*"):
    pid = int(file.read_text() or 0)
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        continue
    if state not in "ZX":
        pathlib.Path("two at once").write_text(f"{file.name} lives in attempt {attempt}")
if attempt > 1:
    print("the last")
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
who = "child" if os.fork() == 0 else "leader"
pathlib.Path(f"pid.{who}").write_text(str(os.getpid()))
number = 0
while True:
    if who == "leader":
        print("line", number, flush=True)
    number += 1
    time.sleep(0.002)
"""


# As above, until it is told to end; then it says how many lines these were.
PRINT_UNTIL_TOLD = """
import pathlib, time
number = 0
while not pathlib.Path("go on").exists():
    for number in range(number, number + 50):
        print("line", number)
    number += 1
    time.sleep(0.005)
pathlib.Path("count").write_text(str(number))
"""


def lines(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(count))


async def test_a_scheduler_killed_with_a_thousand_submits_in_flight_loses_and_doubles_nothing(
    fleet: Fleet, admin: Client
) -> None:
    await fleet.add_node("n1", "--cpus", "16")
    submitter = Submitter(admin, RUNS)
    await kill_while_submitting(fleet, admin, submitter, SUBMITS, kills=2)
    assert submitter.tries > SUBMITS, "no submit was in flight at a kill"
    await each_ran_once(admin, fleet, submitter, SUBMITS)


async def test_an_agent_killed_while_jobs_print_loses_and_doubles_no_line(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", "--cpus", "4")
    counts = [30_000, 20_000, 10_000]
    ids = [await admin.submit(sys.executable, "-c", PRINT_NUMBERED, str(count)) for count in counts]
    followers = [asyncio.create_task(admin.stdout(job_id)) for job_id in ids]
    for kill in range(3):
        threshold = kill * 20_000

        async def has_printed(threshold: int = threshold) -> bool:
            return len((await admin.output(ids[0], follow=False)).get((1, 0, 1), b"")) > threshold

        await until("the first job has printed more", has_printed)
        agent.kill()
        agent.spawn()
    for job_id, count, follower in zip(ids, counts, followers, strict=True):
        job = await admin.wait(job_id)
        assert (job.state, job.attempt_count, job.output_is_complete) == (SUCCEEDED, 1, True)
        assert await follower == lines(count)
        assert await admin.stdout(job_id) == lines(count)


async def test_jobs_that_end_while_the_agent_is_dead_are_reported_by_the_next(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", "--cpus", "4")
    script = "echo begun; until test -e 'go on'; do sleep 0.01; done; echo done; exit 7"
    job_id = await admin.submit("sh", "-c", script)
    await admin.wait(job_id, RUNNING)
    (keeper,) = agent.keeper_pids()
    agent.kill()
    (fleet.work / "go on").touch()
    await until("the job's processes are gone", lambda: not any(map(children_of, children_of(keeper))))
    agent.spawn()
    job = await admin.wait(job_id)
    assert (job.exit.code, job.attempt_count, job.output_is_complete) == (7, 1, True)
    assert await admin.stdout(job_id) == b"begun\ndone\n"


def children_of(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.parametrize("with_agent", [False, True], ids=["alone", "with the agent"])
async def test_a_killed_keeper_leaves_a_clean_prefix_and_the_next_attempt_waits_for_every_process(
    fleet: Fleet, admin: Client, with_agent: bool
) -> None:
    agent = await fleet.add_node("n1", "--cpus", "4")
    job_id = await admin.submit(sys.executable, "-c", LOOK_FOR_THE_LAST_ATTEMPT)

    async def has_printed() -> bool:
        return len((await admin.output(job_id, follow=False)).get((1, 0, 1), b"")) > 500

    await until("it has printed something", has_printed)
    await until("both processes run", lambda: len(list(fleet.work.glob("pid.*"))) == 2)
    (keeper,) = agent.keeper_pids()
    if with_agent:
        agent.kill()
    os.kill(keeper, signal.SIGKILL)
    if with_agent:
        agent.spawn()
    job = await admin.wait(job_id)
    assert not (fleet.work / "two at once").exists(), (fleet.work / "two at once").read_text()
    assert (job.state, job.attempt_count) == (SUCCEEDED, 2)
    first, second = job.attempts
    assert (first.exit_reason, first.output_is_complete) == ("EXIT_UNKNOWN", False)
    assert second.output_is_complete
    streams = await admin.output(job_id)
    kept = streams[1, 0, job_pb2.STREAM_STDOUT]
    assert len(kept) > 500
    assert lines(kept.count(b"\n") + 1).startswith(kept), "not a clean prefix"
    ends = {end.stream: end.end_offset for end in first.output_ends}
    assert ends[job_pb2.STREAM_STDOUT] == len(kept)
    assert streams[2, 0, job_pb2.STREAM_STDOUT] == b"the last\n"
    assert any("EXIT_UNKNOWN" in line or "nobody saw" in line for line in await admin.story(job_id))


async def test_a_job_that_must_not_be_requeued_ends_with_its_keeper(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", "--cpus", "4")
    job_id = await admin.submit("sh", "-c", "echo begun; exec sleep 600", no_requeue=True)

    async def has_printed() -> bool:
        return bool(await admin.output(job_id, follow=False))

    await until("it has begun", has_printed)
    os.kill(agent.keeper_pids()[0], signal.SIGKILL)
    job = await admin.wait(job_id)
    assert (job.state, job.exit_reason, job.attempt_count) == (FAILED, "EXIT_UNKNOWN", 1)
    assert not job.output_is_complete
    assert await admin.stdout(job_id) == b"begun\n"
    assert (await admin.run("true")).state == SUCCEEDED, "the node takes work again"


async def test_a_node_that_is_cut_off_ends_its_job_before_another_node_begins_it(tmp_path: Path) -> None:
    environment = {
        "GPUCTL_SCHEDULER_NODES_HEARTBEAT": "200ms",
        "GPUCTL_SCHEDULER_NODES_LEASE": "10s",
        "GPUCTL_SCHEDULER_NODES_REQUEUE_FENCE": "30s",
    }
    async with Fleet(tmp_path / "fleet", environment=environment) as fleet, fleet.client() as admin:
        first = await fleet.add_node("n1", "--cpus", "4")
        job_id = await admin.submit(sys.executable, "-c", LOOK_FOR_THE_LAST_ATTEMPT, grace=0.5)
        await until("both processes run", lambda: len(list(fleet.work.glob("pid.*"))) == 2)
        await fleet.add_node("n2", "--cpus", "4")
        first.signal(signal.SIGSTOP)
        job = await admin.wait(job_id)
        assert not (fleet.work / "two at once").exists(), (fleet.work / "two at once").read_text()
        assert (job.state, job.attempt_count) == (SUCCEEDED, 2)
        assert [attempt.ranks[0].node for attempt in job.attempts] == ["n1", "n2"]
        assert job.attempts[0].exit_reason == "NODE_LOST"
        assert not job.attempts[0].output_is_complete
        first.signal(signal.SIGCONT)
        await fleet.node_is_ready("n1")
        assert (await admin.run("true", nodelist=["n1"])).state == SUCCEEDED
        assert await admin.job(job_id) == job, "a terminal job never changes"


async def test_a_cancel_reaches_a_node_that_was_away(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", "--cpus", "4")
    job_id = await admin.submit("sleep", "600", grace=0.2)
    await admin.wait(job_id, RUNNING)
    agent.kill()

    async def is_away() -> bool:
        return not (await admin.node("n1")).is_connected

    await until("the node is away", is_away)
    (change,) = await admin.cancel(job_id)
    assert change.changed and "n1" in change.message and "--abandon" in change.message
    agent.spawn()
    assert (await admin.wait(job_id)).state == job_pb2.JOB_STATE_CANCELLED


async def test_an_abandoned_job_ends_at_once_and_its_devices_wait_for_the_node(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", "--virtual-gpus", "1", "--cpus", "4")
    job_id = await admin.submit(sys.executable, "-c", LOOK_FOR_THE_LAST_ATTEMPT, gpus=1)
    await until("both processes run", lambda: len(list(fleet.work.glob("pid.*"))) == 2)
    agent.kill()
    await admin.cancel(job_id, abandon=True)
    job = await admin.job(job_id)
    assert (job.state, job.output_is_complete) == (job_pb2.JOB_STATE_CANCELLED, False)
    next_id = await admin.submit("sh", "-c", 'for f in pid.*; do kill -0 "$(cat $f)" && echo $f lives; done', gpus=1)
    assert (await admin.job(next_id)).state == job_pb2.JOB_STATE_QUEUED
    agent.spawn()
    await admin.wait(next_id)
    assert await admin.stdout(next_id) == b""


async def test_output_that_the_scheduler_lost_after_its_node_deleted_it_holds_nobody_up(
    fleet: Fleet, admin: Client
) -> None:
    """As when its disk was replaced: what is gone is said to be gone, the job ends, and others are as before."""
    await fleet.add_node("n1", "--cpus", "4")
    os.mkfifo(fleet.work / "gate")
    script = f"head -c {MUCH_BYTES} /dev/zero; read -r line < gate; echo the end; exit 7"
    job_id = await admin.submit("sh", "-c", script)
    spool = fleet.agents["n1"].data

    def much_is_deleted() -> bool:
        names = [path.name for path in spool.glob(f"keeper/attempts/{job_id}.1.0.*/stdout.*")]
        return bool(names) and min(names) != f"stdout.{0:020d}"

    await until("much of it is stored and deleted on its node", much_is_deleted)
    fleet.scheduler.kill()
    shutil.rmtree(fleet.scheduler.data / "output")
    await fleet.scheduler.start()
    (fleet.work / "gate").write_text("go\n")
    job = await admin.wait(job_id)
    assert (job.state, job.exit.code, job.output_is_complete) == (FAILED, 7, False)
    other = await admin.run("echo", "as before")
    assert (other.state, other.output_is_complete) == (SUCCEEDED, True)
    assert await admin.stdout(other.id) == b"as before\n"


async def test_a_forgotten_node_gives_its_job_to_another(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", "--cpus", "4")
    job_id = await admin.submit("sh", "-c", "echo began; test $GPUFLEET_ATTEMPT = 2 || exec sleep 600")
    await admin.wait(job_id, RUNNING)

    async def is_stored() -> bool:
        return await admin.stdout(job_id, follow=False) == b"began\n"

    await until("its output is stored", is_stored)
    connected: Any = scheduler_pb2.ForgetNodeRequest(node="n1")
    with pytest.raises(grpc.aio.AioRpcError, match="connected"):
        await admin.stub.ForgetNode(connected)
    agent.kill()

    async def is_away() -> bool:
        return not (await admin.node("n1")).is_connected

    await until("the node is away", is_away)
    answer = await admin.stub.ForgetNode(connected)
    assert (list(answer.requeued_job_ids), list(answer.ended_job_ids)) == ([job_id], [])
    await fleet.add_node("n2", "--cpus", "4")
    job = await admin.wait(job_id)
    assert [attempt.exit_reason for attempt in job.attempts] == ["NODE_LOST", "EXITED"]
    lost = job.attempts[0]
    assert not lost.output_is_complete
    assert [(end.stream, end.end_offset) for end in lost.output_ends] == [(job_pb2.STREAM_STDOUT, len("began\n"))]


async def test_followers_and_waiters_survive_a_killed_scheduler_at_their_offsets(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1", "--cpus", "4")
    job_id = await admin.submit(sys.executable, "-c", PRINT_UNTIL_TOLD)
    have = bytearray()
    losses = 0
    while True:
        position = scheduler_pb2.StreamPosition(attempt=1, rank=0, stream=job_pb2.STREAM_STDOUT, offset=len(have))
        request = scheduler_pb2.StreamOutputRequest(job_id=job_id, follow=True, positions=[position])
        try:
            async for message in admin.stub.StreamOutput(request):
                if message.data:
                    assert message.offset == len(have)
                    have += message.data
                if message.is_end:
                    break
                if losses < 2 and len(have) > 30_000 * (losses + 1):
                    fleet.scheduler.kill()
                    await fleet.scheduler.start()
                    losses += 1
                elif losses == 2:
                    (fleet.work / "go on").touch()
            else:
                continue
            break
        except grpc.aio.AioRpcError as problem:
            assert from_rpc_error(problem).code is Code.UNAVAILABLE
    assert losses == 2
    assert bytes(have) == lines(int((fleet.work / "count").read_text()))
    assert (await admin.job(job_id)).attempt_count == 1
