"""What happens to output when there is no room for it: the job waits, and every byte arrives in the end."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpufleet.jobs.runs import ExitCode, JobId, NodeCause, RankKey, StopCause
from node_agent.core.launch import RefusalReason
from node_agent.core.outcome import AttemptView, FullReason, Offsets, Stream
from node_agent.keeper.client import OutputEnds
from node_agent.keeper.events import AttemptEnded, SpoolChanged
from node_agent.keeper.processes import look_at
from node_agent.spool import SpoolGap, SpoolReader
from tests.node_agent.keeper.keeping import DEADLINE_S, Agent, Node, until

BOUND_BYTES = 64 * 1024
TMPFS_BYTES = 2_000_000
MNT_DETACH = 2

WRITER = "import os\nfor i in range({count}): os.write({fd}, b'%07d\\n' % i)"


def lines(count: int) -> bytes:
    return b"".join(b"%07d\n" % i for i in range(count))


async def take_all(agent: Agent, view: AttemptView) -> tuple[bytes, bytes]:
    """Be the scheduler: read what is new, say that it is synced, until the end."""
    reader = SpoolReader(view.directory)
    taken = {stream: bytearray() for stream in Stream}
    while True:
        have = Offsets(*(len(taken[stream]) for stream in Stream))
        answer = await asyncio.wait_for(agent.keepers.wait_for_output(view.key, have), DEADLINE_S)
        assert isinstance(answer, OutputEnds), answer
        for stream in Stream:
            while len(taken[stream]) < answer.ends.of(stream):
                taken[stream] += reader.read(stream, len(taken[stream]), 10_000).data
        have = Offsets(*(len(taken[stream]) for stream in Stream))
        assert await agent.keepers.output_synced(view.key, have) is None
        if answer.is_final and answer.ends == have:
            return bytes(taken[Stream.STDOUT]), bytes(taken[Stream.STDERR])


@pytest.fixture
async def tiny_node(node: Node, tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose state is on a disk of two megabytes, where this account may mount one."""
    place = tmp_path / "tiny"
    place.mkdir()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, b"size=%d" % TMPFS_BYTES) != 0:
        pytest.skip(f"no tmpfs can be mounted here: {os.strerror(ctypes.get_errno())}")
    tiny = Node(place / "state", node.cwd)
    try:
        yield tiny
        await tiny.close()
    finally:
        libc.umount2(os.fsencode(place), MNT_DETACH)


def is_blocked_in_write(pid: int | None) -> bool:
    """Say whether a process sleeps in the kernel because a pipe is full."""
    process = look_at(pid or 0)
    return process is not None and process.state == "S" and "pipe" in Path(f"/proc/{pid}/wchan").read_text()


async def test_a_full_spool_blocks_the_job_and_it_goes_on_when_its_output_is_synced(node: Node) -> None:
    agent = await node.open()
    count = 200_000
    view = await agent.start(node.script(1, WRITER.format(count=count, fd=1), spool_bytes=BOUND_BYTES))
    assert (await agent.event(SpoolChanged)).full is FullReason.BOUND
    now = await agent.view(view.key)
    assert now.full is FullReason.BOUND
    assert now.output_ends.stdout <= BOUND_BYTES
    await until(lambda: is_blocked_in_write(view.pid), "the job's wait")
    out, err = await take_all(agent, view)
    assert out == lines(count)
    assert err == b""
    assert (await agent.event(SpoolChanged)).full is None
    assert (await agent.end(view)).status == ExitCode(code=0)


async def test_both_streams_share_the_bound_and_neither_loses_a_byte(node: Node) -> None:
    agent = await node.open()
    text = "import os\nfor i in range(50_000):\n  os.write(1, b'%07d\\n' % i)\n  os.write(2, b'%07d\\n' % i)"
    view = await agent.start(node.script(1, text, spool_bytes=BOUND_BYTES))
    assert (await agent.event(SpoolChanged)).full is FullReason.BOUND
    ends = (await agent.view(view.key)).output_ends
    assert ends.stdout + ends.stderr <= BOUND_BYTES
    assert await take_all(agent, view) == (lines(50_000), lines(50_000))


async def test_a_job_that_exits_while_its_spool_is_full_has_not_ended_until_its_output_is_stored(node: Node) -> None:
    """Its last bytes wait in the pipe; the drain must not drop them, however long the scheduler takes."""
    agent = await node.open()
    view = await agent.start(node.script(1, WRITER.format(count=30_000, fd=1), spool_bytes=BOUND_BYTES))
    assert (await agent.event(SpoolChanged)).full is FullReason.BOUND
    await until(lambda: look_at(view.pid or 0) is None, "the exit")
    more_than_a_drain = asyncio.get_running_loop().time() + 2.5
    await until(lambda: asyncio.get_running_loop().time() > more_than_a_drain)
    assert (await agent.view(view.key)).end is None
    out, _ = await take_all(agent, view)
    assert out == lines(30_000)
    end = await agent.end(view)
    assert (end.status, end.streams_cut, end.output_ends.stdout) == (ExitCode(code=0), (), len(out))


async def test_a_job_that_waits_for_room_can_be_killed(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.script(1, WRITER.format(count=10_000_000, fd=1), spool_bytes=BOUND_BYTES))
    await agent.event(SpoolChanged)
    await agent.keepers.kill(view.key, StopCause.CANCELLED)
    out, _ = await take_all(agent, view)
    end = await agent.end(view)
    assert end.stop_cause is StopCause.CANCELLED
    assert lines(len(out) // 8 + 1).startswith(out)


async def test_a_leaving_keeper_does_not_wait_for_room_and_says_what_it_cut(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.script(1, WRITER.format(count=10_000_000, fd=1), spool_bytes=BOUND_BYTES))
    await agent.event(SpoolChanged)
    assert await agent.keepers.shutdown(kill=True, grace_us=0) is None
    end = (await (await node.open()).view(view.key)).end
    assert end is not None
    assert (end.stop_cause, end.streams_cut) == (NodeCause.SHUTDOWN, (Stream.STDOUT,))
    assert end.output_ends.stdout == BOUND_BYTES


async def test_only_what_is_synced_is_deleted_and_what_is_deleted_is_a_gap(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.script(1, WRITER.format(count=8_000, fd=1), spool_bytes=BOUND_BYTES * 2))
    await agent.end(view)
    assert await agent.keepers.output_synced(view.key, Offsets(40_000, 0)) is None
    starts = (await agent.view(view.key)).output_starts
    assert 0 < starts.stdout <= 40_000
    reader = SpoolReader(view.directory)
    assert reader.read(Stream.STDOUT, 40_000, 8).data == lines(8_000)[40_000:40_008]
    with pytest.raises(SpoolGap, match="stdout at 0: the spool holds 32768 to 64000"):
        reader.read(Stream.STDOUT, 0, 1)
    assert await agent.keepers.output_synced(view.key, Offsets(10, 0)) is None, "an older offset changes nothing"
    assert (await agent.view(view.key)).output_starts == starts


async def test_a_full_disk_blocks_the_job_and_it_goes_on_by_itself_when_there_is_room(
    tiny_node: Node,
) -> None:
    node = tiny_node
    agent = await node.open()
    ballast = node.state_dir.parent / "ballast"
    ballast.write_bytes(bytes(TMPFS_BYTES // 2))
    count = 230_000
    view = await agent.start(node.script(1, WRITER.format(count=count, fd=1)))
    assert (await agent.event(SpoolChanged)).full is FullReason.DISK_FULL
    await until(lambda: is_blocked_in_write(view.pid), "the job's wait")
    ballast.unlink()
    assert (await agent.event(SpoolChanged)).full is None
    out, _ = await take_all(agent, view)
    assert out == lines(count)
    assert (await agent.end(view)).status == ExitCode(code=0)


async def test_on_a_full_disk_the_synced_output_of_one_attempt_makes_room_for_another(
    tiny_node: Node,
) -> None:
    node = tiny_node
    agent = await node.open()
    first = await agent.start(node.script(1, WRITER.format(count=180_000, fd=2)))
    await agent.end(first)
    second = await agent.start(node.script(2, WRITER.format(count=180_000, fd=1)))
    assert (await agent.event(SpoolChanged, second.key)).full is FullReason.DISK_FULL
    assert (await take_all(agent, first))[1] == lines(180_000)
    await agent.keepers.forget(first.key)
    assert (await take_all(agent, second))[0] == lines(180_000)
    assert (await agent.end(second)).status == ExitCode(code=0)


async def test_on_a_full_disk_a_launch_is_refused_and_ends_are_still_reported(tiny_node: Node) -> None:
    node = tiny_node
    agent = await node.open()
    running = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    ballast = node.state_dir.parent / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(bytes(4096))
    answer = await agent.keepers.launch(node.launch(2, "/bin/true"))
    assert getattr(answer, "reason", None) is RefusalReason.SPOOL_UNAVAILABLE
    await agent.keepers.kill(running.key, StopCause.CANCELLED)
    end = (await agent.event(AttemptEnded)).end
    assert end.stop_cause is StopCause.CANCELLED
    ballast.unlink()
    assert (await agent.run(node.launch(2, "/bin/true")))[0].status == ExitCode(code=0)
    record = Path(running.directory) / "record"
    await until(lambda: b'"end"' in record.read_bytes(), "the end in the record")


async def test_output_of_an_unknown_attempt_cannot_be_waited_for_and_an_older_waiter_is_answered(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    older = asyncio.create_task(agent.keepers.wait_for_output(view.key, Offsets()))
    await asyncio.sleep(0)
    newer = asyncio.create_task(agent.keepers.wait_for_output(view.key, Offsets()))
    assert await older == OutputEnds(Offsets(), is_final=False)
    assert not newer.done()
    await agent.keepers.signal(view.key, signal.SIGKILL)
    assert await newer == OutputEnds(Offsets(), is_final=True)
    assert await agent.keepers.wait_for_output(view.key, Offsets()) == OutputEnds(Offsets(), is_final=True)
    refusal = await agent.keepers.output_synced(RankKey(JobId(9), 9, 0), Offsets())
    assert refusal is not None
    assert refusal.reason is RefusalReason.UNKNOWN_ATTEMPT
