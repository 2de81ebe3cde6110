"""Launching with a real keeper: what a command gets, what comes back, and that it happens once."""

from __future__ import annotations

import signal

from node_agent.core.outcome import ExitedWith, KilledBy, Stream
from node_agent.keeper.events import AttemptStarted
from tests.node_agent.keeping import Node, read_all


async def test_a_command_runs_and_its_output_and_exit_code_come_back(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, "echo out; echo err >&2; exit 3"))
    started = await agent.event(AttemptStarted, view.key)
    end = await agent.end(view)
    assert (started.pid, started.started_us) == (view.pid, view.started_us)
    assert end.status == ExitedWith(3)
    assert (end.stop_cause, end.streams_cut, end.processes_left) == (None, (), 0)
    assert (end.output_ends.stdout, end.output_ends.stderr) == (4, 4)
    assert read_all(view, Stream.STDOUT) == b"out\n"
    assert read_all(view, Stream.STDERR) == b"err\n"
    assert end.started_us is not None
    assert end.ended_us is not None
    assert end.ended_us >= end.started_us


async def test_a_signal_that_ends_the_leader_is_told_apart_from_an_exit_code(node: Node) -> None:
    agent = await node.open()
    end, _, _ = await agent.run(node.shell(1, "kill -SEGV $$"))
    assert end.status == KilledBy(signal.SIGSEGV)


async def test_bytes_that_are_no_utf8_and_bursts_of_30_mb_arrive_exactly(node: Node) -> None:
    agent = await node.open()
    text = "import sys,os\nb=bytes(range(256))*4096\nfor _ in range(30): os.write(1,b) and None\n"
    end, out, _ = await agent.run(node.script(1, text.replace("os.write(1,b)", "sys.stdout.buffer.write(b)")))
    assert end.status == ExitedWith(0)
    assert out == bytes(range(256)) * 4096 * 30
    assert end.output_ends.stdout == 30 * 1024 * 1024
