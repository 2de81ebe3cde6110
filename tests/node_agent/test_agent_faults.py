"""What holds when keepers die, the scheduler is away, or there is no room."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
from google.protobuf.duration_pb2 import Duration
from gpufleet.v1 import node_agent_pb2 as pb

from tests.node_agent.agent_process import AgentProcess
from tests.node_agent.fake_scheduler import FakeScheduler, proto_key

NUMBERS = "import time\nfor i in range(100_000):\n    print(i, flush=True)\n    time.sleep(0.002)"
PATH = {"PATH": os.environ["PATH"]}


def seconds(count: float) -> Duration:
    span = Duration()
    span.FromMilliseconds(round(count * 1000))
    return span


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("is_agent_there", [True, False])
async def test_when_the_keeper_dies_its_jobs_are_killed_and_what_was_spooled_is_stored(
    scheduler: FakeScheduler, agent: AgentProcess, is_agent_there: bool
) -> None:
    key = scheduler.launch(1, [sys.executable, "-c", NUMBERS])
    await scheduler.wait_for_output(key, 500)
    pid = scheduler.started[key].pid
    if not is_agent_there:
        await agent.kill()
    (keeper,) = agent.keeper_pids()
    os.kill(keeper, signal.SIGKILL)
    if not is_agent_there:
        await scheduler.wait_for(lambda: not is_running(keeper), "the keeper's death")
        await agent.start()
    await scheduler.wait_for(lambda: key in scheduler.exited, "the unknown end")
    assert not is_running(pid), "an end is reported only after every process is dead"
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the rest of its output")
    exited = scheduler.exited[key]
    assert exited.reason == "EXIT_UNKNOWN"
    assert not exited.HasField("exit")
    assert not exited.output_is_complete
    lines = scheduler.stdout(key).splitlines()
    assert len(lines) > 50
    assert [int(line) for line in lines[:-1]] == list(range(len(lines) - 1))
    ends = {end.end_offset for end in exited.output_ends}
    assert len(scheduler.stdout(key)) in ends
    following = scheduler.launch(1, ["/bin/echo", "again"], attempt=2)
    await scheduler.wait_for(lambda: scheduler.is_finished(following), "the next attempt")
    assert scheduler.stdout(following) == b"again\n"


KEEPER_PID = "cut -d ' ' -f 4 /proc/$PPID/stat"
"""A command prints the parent of its supervisor. (Its name has no spaces, so that the fields can be counted.)"""


def installed_as(version: str, folder: Path) -> str:
    """A folder to be found before all others, in which gpufleet is said to be installed in this version."""
    facts = folder / f"gpufleet-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: gpufleet\nVersion: {version}\n")
    return str(folder)


async def test_an_upgraded_agent_leaves_a_job_to_its_old_keeper_which_leaves_with_it(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "gate")
    script = f"{KEEPER_PID}; read -r line < gate; echo after; exit 6"
    key = scheduler.launch(1, ["/bin/sh", "-c", script], cwd=tmp_path)
    await scheduler.wait_for_output(key, 2)
    (old,) = agent.keeper_pids()
    await agent.terminate()
    agent.environment["PYTHONPATH"] = installed_as("99.0", tmp_path)
    await agent.start()
    other = scheduler.launch(2, ["/bin/sh", "-c", KEEPER_PID])
    await scheduler.wait_for(lambda: scheduler.is_finished(other), "a job of the new keeper")
    assert scheduler.registrations[-1].info.agent_version == "99.0"
    new = int(scheduler.stdout(other))
    assert sorted(agent.keeper_pids()) == sorted([old, new])
    assert key not in scheduler.exited
    # Another restart of the new version starts no third one.
    await agent.kill()
    await agent.start()
    (tmp_path / "gate").write_text("go\n")
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end of the first job")
    assert scheduler.stdout(key) == b"%d\nafter\n" % old
    assert scheduler.exited[key].exit.code == 6
    await scheduler.wait_for(lambda: agent.keeper_pids() == [new], "the leaving of the old keeper")


async def test_a_node_that_lost_its_scheduler_ends_what_may_be_replaced_and_nothing_else(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    fenced = scheduler.launch(1, ["/bin/sleep", "300"], fence=seconds(30), grace=seconds(20))
    free = scheduler.launch(2, ["/bin/sleep", "300"], grace=seconds(20))
    await scheduler.wait_for(lambda: {fenced, free} <= scheduler.started.keys(), "both starts")
    # With the agent dead the keeper holds the fence alone: it ends 5 s early, and half of it is grace.
    await agent.kill()
    pid = scheduler.started[fenced].pid
    await scheduler.wait_for(lambda: not is_running(pid), "the fence")
    assert is_running(scheduler.started[free].pid)
    await agent.start()
    await scheduler.wait_for(lambda: scheduler.is_finished(fenced), "the end")
    assert scheduler.exited[fenced].stop_cause == pb.STOP_CAUSE_FENCED
    assert free not in scheduler.exited
    scheduler.command(stop=pb.Stop(key=proto_key(free), cause=pb.STOP_CAUSE_CANCELLED, grace=seconds(0)))
    await scheduler.wait_for(lambda: scheduler.is_finished(free), "the end of the other")


async def test_nothing_is_run_twice_or_left_out_while_agents_die_and_streams_break(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    scheduler.duplicates = True
    command = ["sh", "-c", "echo started >> ran-$GPUFLEET_JOB_ID; sleep 0.1; echo done"]
    keys = []
    for turn in range(5):
        for number in range(12):
            keys.append(scheduler.launch(12 * turn + number + 1, command, cwd=tmp_path, env=PATH))
        some = keys[-3]
        if turn % 2:
            await scheduler.wait_for(lambda: some in scheduler.started, "some to start")  # noqa: B023
            scheduler.drop_streams()
        else:
            await agent.kill()
            await agent.start()
        streams = len(scheduler.streams)
        await scheduler.wait_for(
            lambda: len(scheduler.streams) > streams or scheduler.streams[-1].received,  # noqa: B023
            "a new stream",
        )
    await scheduler.wait_for(lambda: all(scheduler.is_finished(key) for key in keys), "every end")
    assert [(tmp_path / f"ran-{key[0]}").read_text() for key in keys] == ["started\n"] * len(keys)
    assert {scheduler.stdout(key) for key in keys} == {b"done\n"}


@pytest.fixture
async def small_spool(scheduler: FakeScheduler, tmp_path: Path) -> AsyncIterator[AgentProcess]:
    settings = tmp_path / "agent.toml"
    settings.write_text("[spool]\nattempt_bytes_max = '1MB'\n")
    flags = ("--virtual-gpus", "1", "--config", str(settings))
    async with AgentProcess(scheduler, tmp_path, *flags) as agent:
        await scheduler.wait_connected()
        yield agent


async def test_a_full_spool_holds_the_job_up_and_says_so_until_there_is_room(
    scheduler: FakeScheduler, small_spool: AgentProcess
) -> None:
    scheduler.syncs.clear()
    code = "import sys\nfor i in range(300_000): print(i)"
    key = scheduler.launch(1, [sys.executable, "-c", code])
    await scheduler.wait_for(lambda: scheduler.spool_states, "the report of a full spool")
    assert scheduler.spool_states[0].is_full
    assert key not in scheduler.exited
    scheduler.syncs.set()
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
    assert scheduler.stdout(key) == b"".join(b"%d\n" % i for i in range(300_000))
    assert not scheduler.spool_states[-1].is_full


async def test_stopping_the_keeper_refuses_while_something_runs_unless_told_to_kill(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    key = scheduler.launch(1, ["/bin/sleep", "300"])
    await scheduler.wait_for(lambda: key in scheduler.started, "the start")
    assert await agent.terminate() == 0
    assert is_running(scheduler.started[key].pid), "stopping the agent leaves jobs alone"
    code, said = await agent.run("stop-keeper", "--data", str(agent.data))
    assert code == 1
    assert "1 attempts run" in said and "--kill" in said
    code, said = await agent.run("stop-keeper", "--data", str(agent.data), "--kill")
    assert (code, said) == (0, "")
    assert not is_running(scheduler.started[key].pid)
    assert agent.keeper_pids() == []
    await agent.start()
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end, told by the next agent")
    assert scheduler.exited[key].reason == "SHUTDOWN"
