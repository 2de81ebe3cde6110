"""What is typed to an attempt, with a real keeper: pipes, terminals, sizes, signals, and agents that come and go."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.jobs.runs import ExitCode, ExitSignal, InputMode, JobId, RankKey, StopCause
from node_agent.core.launch import Refusal, RefusalReason
from node_agent.core.outcome import AttemptView, Offsets, Stream
from node_agent.core.typed import INPUT_BYTES_MAX, InputPiece, InputQueue, Typed
from node_agent.keeper.client import OutputEnds
from tests.node_agent.keeper.keeping import DEADLINE_S, Agent, Node, is_alive, open_files, read_all, until

ME = "me"


class Typist:
    """One session that types to one attempt."""

    def __init__(self, agent: Agent, key: RankKey, writer: str = ME) -> None:
        self.agent, self.key, self.writer = agent, key, writer
        self.offset = 0

    async def begin(self) -> bool:
        answer = await self.agent.keepers.begin_input(self.key, self.writer)
        assert not isinstance(answer, Refusal), answer
        self.offset = answer[0].offset
        return answer[1]

    async def type(self, data: bytes, *, is_end: bool = False) -> Typed:
        answer = await self.agent.keepers.type(self.key, self.writer, InputPiece(self.offset, data, is_end))
        assert isinstance(answer, Typed), answer
        self.offset = answer.offset
        return answer


async def shows(agent: Agent, view: AttemptView, text: bytes) -> bytes:
    """Wait until the output holds a text, and answer all of it."""
    have = Offsets()
    while text not in (shown := read_all(view, Stream.STDOUT)):
        answer = await asyncio.wait_for(agent.keepers.wait_for_output(view.key, have), DEADLINE_S)
        assert isinstance(answer, OutputEnds), answer
        assert not answer.is_final or text in read_all(view, Stream.STDOUT), read_all(view, Stream.STDOUT)
        have = answer.ends
    return shown


async def test_what_is_typed_to_a_pipe_arrives_in_order_and_its_end_too(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/cat", input=InputMode.PIPE))
    typist = Typist(agent, view.key)
    assert not await typist.begin()
    await typist.type(b"one\n")
    await shows(agent, view, b"one\n")
    assert await typist.type(b"two", is_end=True) == Typed(7, has_ended=True)
    assert (await agent.end(view)).status == ExitCode(code=0)
    assert read_all(view, Stream.STDOUT) == b"one\ntwo"


async def test_a_process_that_does_not_read_makes_the_typist_wait_and_nothing_is_lost(node: Node) -> None:
    agent = await node.open()
    text = "import sys, time, os\nwhile not os.path.exists('go'): time.sleep(0.01)\nsys.stdout.write(sys.stdin.read())"
    view = await agent.start(node.script(1, text, input=InputMode.PIPE))
    typist = Typist(agent, view.key)
    await typist.begin()
    sent = bytes(range(97, 123)) * 1000
    waiting: asyncio.Task[Typed] | None = None
    for _ in range(40):
        waiting = asyncio.create_task(typist.type(sent))
        await asyncio.wait({waiting}, timeout=0.2)
        if not waiting.done():
            break
    assert waiting is not None and not waiting.done(), "a queue without a bound"
    taken = typist.offset
    (node.cwd / "go").touch()
    assert (await asyncio.wait_for(waiting, DEADLINE_S)).offset == taken + len(sent)
    await typist.type(b"", is_end=True)
    assert (await agent.end(view)).status == ExitCode(code=0)
    out = read_all(view, Stream.STDOUT)
    assert out == sent * (len(out) // len(sent))
    assert len(out) == typist.offset


async def test_a_terminal_echoes_and_is_all_three_descriptors(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/cat", input=InputMode.TERMINAL))
    typist = Typist(agent, view.key)
    await typist.begin()
    await typist.type(b"hello\n")
    assert await shows(agent, view, b"hello\r\nhello\r\n") == b"hello\r\nhello\r\n"
    # Not before: while it is being loaded, a program has its libraries open.
    files = open_files(view.pid)
    assert sorted(files) == ["0", "1", "2"]
    assert len(set(files.values())) == 1
    assert files["0"].startswith("/dev/pts/")
    await typist.type(b"\x04")
    assert (await agent.end(view)).status == ExitCode(code=0)
    assert read_all(view, Stream.STDERR) == b""


async def test_the_size_of_a_terminal_is_what_was_said_last_and_its_program_is_told(node: Node) -> None:
    agent = await node.open()
    text = (
        "import os, signal, sys\n"
        "show = lambda *_: print(tuple(os.get_terminal_size()), flush=True)\n"
        "signal.signal(signal.SIGWINCH, show)\nshow()\nwhile True: signal.pause()"
    )
    view = await agent.start(node.script(1, text, input=InputMode.TERMINAL))
    await shows(agent, view, b"(80, 24)\r\n")
    assert await agent.keepers.resize(view.key, 101, 33) is None
    await shows(agent, view, b"(101, 33)\r\n")
    assert await agent.keepers.resize(view.key, 101, 33) is None
    await shows(agent, view, b"(101, 33)\r\n(101, 33)\r\n")


async def test_ctrl_c_ends_what_runs_in_the_foreground_and_not_the_shell(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/bash", "--norc", "-i", input=InputMode.TERMINAL))
    typist = Typist(agent, view.key)
    await typist.begin()
    await typist.type(b"echo $((40+2)); sleep 1000\n")
    await shows(agent, view, b"42\r\n")
    # Until sleep runs in the foreground, the key would end nothing.
    await until(lambda: any("sleep" in name for name in names_below(view.pid)), "sleep")
    await typist.type(b"\x03")
    await shows(agent, view, b"^C\r\n")
    await typist.type(b"echo code $?\n")
    await shows(agent, view, b"code 130\r\n")
    await typist.type(b"exit 7\n")
    assert (await agent.end(view)).status == ExitCode(code=7)


def names_below(pid: int | None) -> list[str]:
    names = []
    for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        with contextlib.suppress(OSError):
            names.append(Path(f"/proc/{each}/cmdline").read_text())
    return names


async def test_a_stop_reaches_the_foreground_of_a_shell_and_leaves_nothing(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/bash", "--norc", "-i", input=InputMode.TERMINAL))
    typist = Typist(agent, view.key)
    await typist.begin()
    await typist.type(b"trap '' HUP; (trap 'echo told to stop; exit' TERM; echo waits; while :; do sleep 0.05; done)\n")
    await shows(agent, view, b"\r\nwaits\r\n")
    await agent.keepers.stop(view.key, StopCause.CANCELLED, 5_000_000)
    await shows(agent, view, b"told to stop\r\n")
    assert (await agent.end(view)).status == ExitSignal(signal=9)  # an interactive shell ignores SIGTERM


async def test_everything_that_was_shown_before_the_end_is_kept(node: Node) -> None:
    agent = await node.open()
    text = "import sys\nfor n in range(60_000): print(n)\nprint('the last line', end='')"
    end, out, _ = await agent.run(node.script(1, text, input=InputMode.TERMINAL))
    assert end.status == ExitCode(code=0)
    assert out == b"".join(b"%d\r\n" % n for n in range(60_000)) + b"the last line"
    assert end.streams_cut == ()


async def test_a_full_spool_makes_a_terminal_wait_too(node: Node) -> None:
    agent = await node.open()
    launch = node.script(1, "for n in range(20_000): print(n)", input=InputMode.TERMINAL, spool_bytes=64 * 1024)
    view = await agent.start(launch)
    got = b""
    while True:
        answer = await asyncio.wait_for(agent.keepers.wait_for_output(view.key, Offsets(len(got), 0)), DEADLINE_S)
        assert isinstance(answer, OutputEnds)
        got += read_all(view, Stream.STDOUT, len(got))
        await agent.keepers.output_synced(view.key, Offsets(len(got), 0))
        if answer.is_final:
            break
    assert got == b"".join(b"%d\r\n" % n for n in range(20_000))


async def test_an_agent_that_comes_back_finds_the_terminal_and_where_the_input_stands(node: Node) -> None:
    first = await node.open()
    view = await first.start(node.launch(1, "/bin/cat", input=InputMode.TERMINAL))
    typist = Typist(first, view.key)
    await typist.begin()
    await typist.type(b"before\n")
    await shows(first, view, b"before\r\nbefore\r\n")
    await first.keepers.close()
    second = await node.open()
    assert is_alive(view.pid or 0)
    again = Typist(second, view.key)
    assert await again.begin(), "nobody else has typed"
    assert again.offset == typist.offset
    again.offset = 0
    await again.type(b"before\nafter\n")  # what was taken before is not typed twice
    shown = await shows(second, view, b"after\r\nafter\r\n")
    assert shown.count(b"before") == 2
    await again.type(b"\x04")
    await second.end(view)


async def test_a_keeper_that_is_killed_takes_its_terminals_and_all_that_runs_on_them_along(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/bash", "--norc", "-i", input=InputMode.TERMINAL))
    typist = Typist(agent, view.key)
    await typist.begin()
    await typist.type(b"trap '' HUP; nohup sleep 1000 >/dev/null 2>&1 & echo started\n")
    await shows(agent, view, b"\r\nstarted\r\n")
    os.kill(agent.keeper_pid, signal.SIGKILL)
    died = await agent.death()
    assert [each.key for each in died.attempts] == [view.key]
    assert not node.left_over()
    assert b"started" in read_all(view, Stream.STDOUT), "what was spooled can be read"


async def test_who_types_now_is_the_only_one_who_does(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/cat", input=InputMode.PIPE))
    mine, yours = Typist(agent, view.key), Typist(agent, view.key, "you")
    await mine.begin()
    await mine.type(b"mine\n")
    assert not await yours.begin()
    assert yours.offset == 5
    refused = await agent.keepers.type(view.key, ME, InputPiece(5, b"late"))
    assert isinstance(refused, Refusal)
    assert refused.reason is RefusalReason.NOT_THE_WRITER
    await yours.type(b"yours\n")
    assert not await mine.begin(), "somebody else has typed since"
    await mine.type(b"", is_end=True)
    await agent.end(view)
    assert read_all(view, Stream.STDOUT) == b"mine\nyours\n"


async def test_a_process_that_closes_its_input_takes_no_more_and_lives_on(node: Node) -> None:
    agent = await node.open()
    text = "import os, time\nos.close(0)\nprint('closed', flush=True)\ntime.sleep(1000)"
    view = await agent.start(node.script(1, text, input=InputMode.PIPE))
    typist = Typist(agent, view.key)
    await typist.begin()
    await shows(agent, view, b"closed\n")
    await typist.type(b"into the void")
    assert (await typist.type(b"again")).has_ended
    assert is_alive(view.pid or 0)


@pytest.mark.parametrize("mode", [None, InputMode.PIPE])
async def test_what_cannot_be_typed_to_is_refused(node: Node, mode: InputMode) -> None:
    agent = await node.open()
    nobody = await agent.keepers.begin_input(RankKey(JobId(9), 1, 0), ME)
    assert isinstance(nobody, Refusal)
    assert nobody.reason is RefusalReason.UNKNOWN_ATTEMPT
    view = await agent.start(node.launch(1, "/bin/true", input=mode))
    await agent.end(view)
    ended = await agent.keepers.begin_input(view.key, ME)
    assert isinstance(ended, Refusal)
    assert ended.reason is RefusalReason.NOT_RUNNING
    view = await agent.start(node.launch(2, "/bin/sleep", "1000"))
    refused = await agent.keepers.begin_input(view.key, ME)
    assert isinstance(refused, Refusal)
    assert refused.reason is RefusalReason.NO_INPUT


async def test_a_job_with_an_input_holds_no_descriptor_once_it_has_ended(node: Node) -> None:
    agent = await node.open()
    await agent.run(node.launch(9, "/bin/true"))
    before = len(open_files(agent.keeper_pid))  # with those of the supervisors that wait for more
    for number, mode in enumerate((InputMode.PIPE, InputMode.TERMINAL), start=1):
        await agent.run(node.launch(number, "/bin/true", input=mode))
    (node.cwd / "plain").write_text("no program")
    await agent.run(node.launch(3, "./plain", input=InputMode.TERMINAL))
    await until(lambda: len(open_files(agent.keeper_pid)) == before, "as few descriptors as before")


async def test_the_answer_to_an_agent_that_is_gone_is_not_given_to_the_next_one(node: Node) -> None:
    first = await node.open()
    view = await first.start(
        node.launch(1, sys.executable, "-c", "import time; time.sleep(1000)", input=InputMode.PIPE)
    )
    typist = Typist(first, view.key)
    await typist.begin()
    while True:
        waiting = asyncio.create_task(typist.type(b"x" * 30_000))
        await asyncio.wait({waiting}, timeout=0.3)
        if not waiting.done():
            break
    await first.keepers.close()
    await asyncio.gather(waiting, return_exceptions=True)
    second = await node.open()
    for _ in range(50):  # one of these has the number of the request that was never answered
        answer = await second.keepers.begin_input(view.key, ME)
        assert not isinstance(answer, Refusal)


pieces = st.lists(st.tuples(st.integers(0, 40), st.binary(max_size=20), st.booleans(), st.integers(0, 30)), max_size=30)


@given(st.binary(min_size=40, max_size=60), pieces)
def test_whatever_comes_twice_or_too_early_the_queue_holds_each_byte_once_and_in_order(
    typed: bytes, sent: list[tuple[int, bytes, bool, int]]
) -> None:
    queue = InputQueue()
    out = b""
    for offset, noise, is_end, count in sent:
        data = typed[offset : offset + len(noise)]
        ended_before = queue.is_ending
        before = queue.offset
        queue.take(InputPiece(offset, data, is_end))
        assert queue.offset >= before
        assert queue.offset == before or not ended_before
        out += bytes(queue.waiting[:count])
        queue.written(count)
    assert out + bytes(queue.waiting) == typed[: queue.offset]


def test_the_queue_takes_no_more_than_its_bound() -> None:
    queue = InputQueue()
    data = os.urandom(INPUT_BYTES_MAX + 10)
    assert not queue.take(InputPiece(0, data, is_end=True))
    assert (queue.offset, queue.room_bytes, queue.is_ending) == (INPUT_BYTES_MAX, 0, False)
    queue.written(100)
    assert queue.take(InputPiece(0, data, is_end=True))
    assert (queue.offset, queue.is_ending) == (len(data), True)


def test_an_end_that_is_older_than_what_was_taken_ends_nothing() -> None:
    queue = InputQueue()
    queue.take(InputPiece(0, b"abc"))
    assert queue.take(InputPiece(1, b"", is_end=True))
    assert not queue.is_ending
