"""Ranks of gangs with a real agent and a real keeper: prepared, started once, taken back, forgotten."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpufleet.v1 import node_agent_pb2 as pb

from tests.node_agent.agent_process import AgentProcess
from tests.node_agent.fake_scheduler import FakeScheduler, Key, bodies, proto_key
from tests.node_agent.test_ports import can_be_bound

# Rank 0 listens where it was told to, as a program would that has never heard of SO_REUSEADDR; the other one dials it.
MEET = """
import os, socket, time
rank, address = os.environ["GPUFLEET_NODE_RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == "0":
    server = socket.socket()
    server.bind(address)
    server.listen()
    other, _ = server.accept()
else:
    while True:
        try:
            other = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
other.sendall(f"rank {rank}".encode())
names = ("GPUFLEET_NNODES", "GPUFLEET_GPUS_PER_NODE", "NODE_RANK", "NNODES")
print(other.recv(100).decode(), *(os.environ[name] for name in names))
"""


def gang_of_two(job: int) -> tuple[Key, Key]:
    return (job, 1, 0), (job, 1, 1)


def launch_of(key: Key, argv: list[str], **fields: Any) -> pb.Launch:
    fields.setdefault("cwd", "/")
    return pb.Launch(key=proto_key(key), argv=argv, node_count=2, is_gang=True, **fields)


async def prepare(scheduler: FakeScheduler, key: Key, argv: list[str], **fields: Any) -> int:
    """Prepare a rank and answer rank 0's port."""
    scheduler.known.add(key)
    scheduler.ready.pop(key, None)
    scheduler.command(prepare=pb.Prepare(launch=launch_of(key, argv, **fields)))
    await scheduler.wait_for(lambda: key in scheduler.ready, f"{key} to be ready")
    return scheduler.ready[key].master_port


def start(scheduler: FakeScheduler, key: Key, port: int) -> None:
    scheduler.command(start=pb.Start(key=proto_key(key), master_address="127.0.0.1", master_port=port))


async def refusal(scheduler: FakeScheduler, key: Key) -> str:
    """The reason of the next refusal of this rank."""
    await scheduler.wait_for(lambda: key in scheduler.refused, f"a refusal of {key}")
    return scheduler.refused.pop(key).reason


async def test_two_ranks_are_prepared_and_meet_at_the_port_that_was_held_for_the_first(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    ranks = gang_of_two(1)
    argv = [sys.executable, "-c", f"open('ran', 'a').write('x')\n{MEET}"]
    devices = (["VIRTUAL-n1-0"], ["VIRTUAL-n1-1"])
    ports = [
        await prepare(scheduler, key, argv, device_uuids=uuids, cwd=str(tmp_path))
        for key, uuids in zip(ranks, devices, strict=True)
    ]
    port = ports[0]
    assert ports == [port, 0] and not can_be_bound(port)
    assert await prepare(scheduler, ranks[0], argv, cwd=str(tmp_path)) == port, "asked again, it is the same"
    assert not (tmp_path / "ran").exists()
    for key in (*ranks, *ranks):
        start(scheduler, key, port)
    await scheduler.wait_for(lambda: all(scheduler.is_finished(key) for key in ranks), "both ends")
    assert [scheduler.stdout(key).decode() for key in ranks] == ["rank 1 2 1 0 2\n", "rank 0 2 1 1 2\n"]
    assert (tmp_path / "ran").read_text() == "xx"
    # Forgotten by now: only the keeper's tombstone knows that it ran.
    scheduler.ready.clear()
    count = len(scheduler.messages)
    scheduler.command(prepare=pb.Prepare(launch=launch_of(ranks[0], argv, cwd=str(tmp_path))))
    await scheduler.wait_for(lambda: "attempt_exited" in bodies(scheduler.messages[count:]), "the end, told once more")
    start(scheduler, ranks[0], port)
    assert await refusal(scheduler, ranks[0]) == "NOT_PREPARED"
    assert not scheduler.ready
    assert (tmp_path / "ran").read_text() == "xx"


async def test_an_aborted_rank_is_not_started_and_leaves_nothing(
    scheduler: FakeScheduler, agent: AgentProcess, tmp_path: Path
) -> None:
    scheduler.forgets = False
    key, _ = gang_of_two(1)
    port = await prepare(scheduler, key, ["touch", "ran"], cwd=str(tmp_path))
    scheduler.command(abort=pb.Abort(key=proto_key(key)))
    assert await refusal(scheduler, key) == "ABORTED"
    assert can_be_bound(port)
    start(scheduler, key, port)
    assert await refusal(scheduler, key) == "ABORTED"
    scheduler.command(forget=pb.Forget(key=proto_key(key)))
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.inventories) == 2, "another inventory")
    assert not scheduler.inventories[-1].entries
    assert not (tmp_path / "ran").exists()


async def test_what_the_launch_would_meet_is_met_by_the_prepare(scheduler: FakeScheduler, agent: AgentProcess) -> None:
    wrong: list[tuple[str, list[str], dict[str, Any]]] = [
        ("CWD_MISSING", ["true"], {"cwd": "/no/such/folder"}),
        ("COMMAND_NOT_FOUND", ["no-such-command"], {}),
        ("NOT_EXECUTABLE", ["/etc/passwd"], {}),
        ("INVALID_LAUNCH", [], {}),
        ("DEVICE_UNHEALTHY", ["true"], {"device_uuids": ["GPU-of-nobody"]}),
    ]
    for job, (reason, argv, fields) in enumerate(wrong, 1):
        key, _ = gang_of_two(job)
        scheduler.command(prepare=pb.Prepare(launch=launch_of(key, argv, **fields)))
        assert await refusal(scheduler, key) == reason
    key, _ = gang_of_two(9)
    scheduler.send_raw(scheduler.term, 0, prepare=pb.Prepare(launch=launch_of(key, ["true"])))
    assert await refusal(scheduler, key) == "COMMAND_TOO_OLD"
    assert not scheduler.ready


async def test_an_agent_that_is_killed_forgets_what_it_prepared_and_prepares_it_again(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    key, other = gang_of_two(1)
    for each in (key, other):
        await prepare(scheduler, each, ["true"])
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.inventories) == 2, "another inventory")
    assert [entry.phase for entry in scheduler.inventories[-1].entries] == 2 * [pb.ATTEMPT_PHASE_STARTING]
    await agent.kill()
    await agent.start()
    await scheduler.wait_for(lambda: len(scheduler.inventories) == 3, "the inventory of the next agent")
    assert not scheduler.inventories[-1].entries
    start(scheduler, other, 61_000)
    assert await refusal(scheduler, other) == "NOT_PREPARED"
    port = await prepare(scheduler, key, ["true"])
    start(scheduler, key, port)
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")


async def test_a_scheduler_of_an_older_term_prepares_and_starts_nothing(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    scheduler.term = 5
    key, late = gang_of_two(1)
    port = await prepare(scheduler, key, ["true"])
    for command in (
        {"prepare": pb.Prepare(launch=launch_of(late, ["true"]))},
        {"start": pb.Start(key=proto_key(key), master_address="127.0.0.1", master_port=port)},
    ):
        streams = len(scheduler.streams)
        scheduler.send_raw(4, scheduler.messages[-1].sequence, **command)
        await scheduler.wait_for(lambda count=streams: len(scheduler.streams) > count, "a new stream")  # type: ignore[misc]
        await scheduler.wait_for(lambda: scheduler.streams[-1].received, "its inventory")
    assert late not in scheduler.ready and key not in scheduler.started
    start(scheduler, key, port)
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")


async def test_a_prepared_rank_is_kept_over_a_break_of_its_stream(
    scheduler: FakeScheduler, agent: AgentProcess
) -> None:
    """The scheduler that comes back finds it there, and need not prepare it again."""
    key, _ = gang_of_two(1)
    port = await prepare(scheduler, key, ["true"])
    scheduler.drop_streams()
    await scheduler.wait_for(lambda: len(scheduler.inventories) == 2, "another inventory")
    start(scheduler, key, port)
    await scheduler.wait_for(lambda: scheduler.is_finished(key), "the end")
