"""Launching with a real keeper: what a command gets, what comes back, and that it happens once."""

from __future__ import annotations

import os
import resource
import signal
from typing import Any

import pytest

from gpufleet.jobs.runs import ExitCode, ExitSignal, JobId, RankKey
from node_agent.core.attempt import Limits
from node_agent.core.launch import Launched, Refusal, RefusalReason
from node_agent.core.outcome import AttemptPhase, LaunchFailure, Stream
from node_agent.keeper.events import AttemptStarted
from node_agent.keeper.linux import boottime_us
from node_agent.keeper.spawn import KEY_VARIABLE
from tests.node_agent.keeper.keeping import SECOND_US, Node, exists, is_alive, open_files, read_all


async def test_a_command_runs_and_its_output_and_exit_code_come_back(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, "echo out; echo err >&2; exit 3"))
    started = await agent.event(AttemptStarted, view.key)
    end = await agent.end(view)
    assert (started.pid, started.started_us) == (view.pid, view.started_us)
    assert end.status == ExitCode(code=3)
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
    assert end.status == ExitSignal(signal=signal.SIGSEGV)


async def test_bytes_that_are_no_utf8_and_bursts_of_30_mb_arrive_exactly(node: Node) -> None:
    agent = await node.open()
    text = "import sys\nfor _ in range(30): sys.stdout.buffer.write(bytes(range(256)) * 4096)"
    end, out, _ = await agent.run(node.script(1, text))
    assert end.status == ExitCode(code=0)
    assert out == bytes(range(256)) * 4096 * 30
    assert end.output_ends.stdout == 30 * 1024 * 1024


async def test_the_end_counts_processor_time_and_memory(node: Node) -> None:
    agent = await node.open()
    end, _, _ = await agent.run(node.script(1, "x = b'x' * 50_000_000\nfor _ in range(1_000_000): pass"))
    assert end.cpu_us > 0
    assert end.max_rss_bytes > 50_000_000


async def test_a_command_gets_exactly_the_environment_that_was_given(node: Node) -> None:
    agent = await node.open()
    env = {"A": "1", "EMPTY": "", "LINES": "a\nb", "BYTES": "\udcff"}
    end, out, _ = await agent.run(node.launch(1, "/usr/bin/env", "-0", env=env))
    seen = dict(entry.split(b"=", 1) for entry in out.split(b"\0") if entry)
    assert end.status == ExitCode(code=0)
    assert seen.pop(KEY_VARIABLE.encode()).endswith(b":1.1.0")
    assert seen == {b"A": b"1", b"EMPTY": b"", b"LINES": b"a\nb", b"BYTES": b"\xff"}


async def test_a_command_has_an_empty_stdin_two_pipes_and_no_other_descriptor(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, "echo loaded; while :; do sleep 1000; done"))
    await agent.output(view, len("loaded\n"))
    files = open_files(view.pid)
    assert sorted(files) == ["0", "1", "2"]
    assert files["0"] == "/dev/null"
    assert files["1"].startswith("pipe:")
    assert files["2"].startswith("pipe:")
    assert files["1"] != files["2"]


async def test_a_command_starts_with_default_signals_in_a_session_and_group_of_its_own(node: Node) -> None:
    agent = await node.open()
    _, out, _ = await agent.run(node.launch(1, "/bin/cat", "/proc/self/status", "/proc/self/stat"))
    facts = dict(line.split(":\t", 1) for line in out.decode().splitlines() if ":\t" in line)
    the_c_library_s_own = 0b11 << 31  # signals 32 and 33: no program can set them, so a test may inherit them ignored
    assert int(facts["SigIgn"], 16) & ~the_c_library_s_own == 0
    assert int(facts["SigBlk"], 16) == 0
    stat = out.decode().rsplit(")", 1)[1].split()
    assert facts["Pid"] == stat[2] == stat[3]


async def test_it_runs_in_its_directory_also_when_the_name_has_a_newline(node: Node) -> None:
    place = node.cwd / "a\nb"
    place.mkdir()
    agent = await node.open()
    _, out, _ = await agent.run(node.launch(1, "/bin/pwd", cwd=str(place)))
    assert out.decode() == f"{place}\n"
    _, out, _ = await agent.run(node.launch(2, "/bin/pwd"))
    assert out.decode() == f"{node.cwd}\n"


async def test_a_relative_command_and_a_relative_path_are_looked_up_in_its_directory(node: Node) -> None:
    script = node.cwd / "bin" / "hello"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\necho hello\n")
    script.chmod(0o755)
    agent = await node.open()
    assert (await agent.run(node.launch(1, "bin/hello")))[1] == b"hello\n"
    assert (await agent.run(node.launch(2, "hello", env={"PATH": "/nowhere:bin"})))[1] == b"hello\n"


async def test_a_missing_directory_is_refused_and_the_same_launch_works_once_it_is_there(node: Node) -> None:
    agent = await node.open()
    launch = node.launch(1, "/bin/true", cwd=str(node.cwd / "later"))
    answer = await agent.keepers.launch(launch)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.CWD_MISSING
    assert str(node.cwd / "later") in answer.detail
    assert await agent.keepers.inventory() == ()
    (node.cwd / "later").mkdir()
    assert (await agent.run(launch))[0].status == ExitCode(code=0)


async def test_a_command_that_is_not_there_ends_with_127_and_says_where_it_was_looked_for(node: Node) -> None:
    agent = await node.open()
    end, out, err = await agent.run(node.launch(1, "no-such-command", env={"PATH": "/bin:/usr/bin"}))
    assert (end.status, end.failure) == (ExitCode(code=127), LaunchFailure.COMMAND_NOT_FOUND)
    assert end.detail == "no-such-command: not found in PATH '/bin:/usr/bin'"
    assert (out, err) == (b"", b"")
    end, _, _ = await agent.run(node.launch(2, "./no-such-file"))
    assert (end.status, end.failure) == (ExitCode(code=127), LaunchFailure.COMMAND_NOT_FOUND)


async def test_a_script_whose_interpreter_is_missing_ends_with_127_and_names_it(node: Node) -> None:
    script = node.cwd / "script"
    script.write_text("#!/no/such/python -u\n")
    script.chmod(0o755)
    agent = await node.open()
    end, _, _ = await agent.run(node.launch(1, "./script"))
    assert end.status == ExitCode(code=127)
    assert "'/no/such/python -u'" in end.detail


@pytest.mark.parametrize("command", ["./plain", "plain", "./", "./no-format"])
async def test_a_command_that_cannot_be_executed_ends_with_126(node: Node, command: str) -> None:
    (node.cwd / "plain").write_text("echo never\n")
    (node.cwd / "no-format").write_text("echo never\n")
    (node.cwd / "no-format").chmod(0o755)
    agent = await node.open()
    end, out, _ = await agent.run(node.launch(1, command, env={"PATH": "."}))
    assert (end.status, end.failure, out) == (ExitCode(code=126), LaunchFailure.NOT_EXECUTABLE, b"")


@pytest.mark.parametrize("argv", [["/bin/true", *["x" * 100_000] * 100], ["/bin/true", "x" * 200_000]])
async def test_arguments_that_linux_does_not_take_are_refused_and_nothing_is_left(node: Node, argv: list[str]) -> None:
    agent = await node.open()
    answer = await agent.keepers.launch(node.launch(1, *argv))
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.ARGV_TOO_LONG
    assert await agent.keepers.inventory() == ()
    assert (await agent.run(node.launch(1, "/bin/true")))[0].status == ExitCode(code=0)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"argv": ()}, "argv"),
        ({"argv": ("",)}, "argv"),
        ({"argv": ("/bin/echo", "a\0b")}, "argv"),
        ({"env": {"A=B": "1"}}, "env 'A=B'"),
        ({"env": {"": "1"}}, "env ''"),
        ({"env": {"A": "1\0"}}, "env 'A'"),
        ({"cwd": "work"}, "cwd 'work'"),
        ({"note": "x" * 8193}, "note"),
        ({"limits": Limits(grace_us=-1)}, "limits.grace_us"),
        ({"limits": Limits(time_limit_us=0)}, "limits.time_limit_us"),
        ({"limits": Limits(fence_us=SECOND_US)}, "limits.fence_us"),
        ({"spool_bytes": 1}, "spool_bytes"),
        ({"rlimits": {"CPU": (1, 1)}}, "rlimits 'CPU'"),
        ({"heartbeat_sent_us": 2**60}, "heartbeat_sent_us"),
    ],
)
async def test_a_senseless_launch_is_refused_by_the_name_of_its_field(
    node: Node, changes: dict[str, Any], field: str
) -> None:
    agent = await node.open()
    answer = await agent.keepers.launch(node.launch(1, **{"argv": ("/bin/true",), **changes}))
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.BAD_REQUEST
    assert answer.detail.startswith(field)
    assert await agent.keepers.inventory() == ()


async def test_a_launch_after_its_fence_is_refused(node: Node) -> None:
    agent = await node.open()
    fenced = node.launch(
        1, "/bin/true", limits=Limits(fence_us=30 * SECOND_US), heartbeat_sent_us=boottime_us() - 26 * SECOND_US
    )
    answer = await agent.keepers.launch(fenced)
    assert isinstance(answer, Refusal)
    assert answer.reason is RefusalReason.FENCED


async def test_resource_limits_hold_from_the_first_instruction_and_cannot_be_raised(node: Node) -> None:
    agent = await node.open()
    rlimits = {"NOFILE": (100, 100), "CORE": (0, 0), "AS": (4_000_000_000, 4_000_000_000)}
    _, out, _ = await agent.run(node.shell(1, "ulimit -n; ulimit -Hn; ulimit -Sc; ulimit -v", rlimits=rlimits))
    soft, hard, core, memory = out.decode().split()
    assert (soft, hard, core, memory) == ("100", "100", "0", str(4_000_000_000 // 1024))
    _, out, _ = await agent.run(node.shell(2, "ulimit -n"))
    assert int(out) == resource.getrlimit(resource.RLIMIT_NOFILE)[0], "a plain job keeps the usual limit"


async def test_every_child_has_the_hard_limits_of_its_attempt(node: Node) -> None:
    """The limits come before the command's program: whatever it starts first has them as well."""
    agent = await node.open()
    for number in range(1, 9):
        script = "for _ in 1 2 3 4 5; do (ulimit -Hn) & done; wait"
        _, out, _ = await agent.run(node.shell(number, script, rlimits={"NOFILE": (90, 100)}, nice=19))
        assert out.split() == [b"100"] * 5


async def test_limits_that_leave_no_room_are_told_as_an_end(node: Node) -> None:
    agent = await node.open()
    answer = await agent.keepers.launch(node.launch(1, "./no-such-program", rlimits={"AS": (20_000_000, 20_000_000)}))
    assert isinstance(answer, Launched) and answer.attempt.end is not None
    assert answer.attempt.end.status == ExitCode(code=127)


async def test_a_niceness_holds_from_the_first_instruction_and_for_this_attempt_alone(node: Node) -> None:
    agent = await node.open()
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for number, nice in enumerate((min(own + 2, 19), 19, 0), start=1):
        _, out, _ = await agent.run(node.shell(number, "cut -d' ' -f19 /proc/self/stat", nice=nice))
        assert int(out) == max(own, nice)
    answer = await agent.keepers.launch(node.launch(9, "./no-such-program", nice=19))
    assert isinstance(answer, Launched) and answer.attempt.end is not None, "what cannot be run is told as ever"


async def test_a_limit_above_the_keepers_own_starts_nothing(node: Node) -> None:
    agent = await node.open()
    highest = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    answer = await agent.keepers.launch(node.shell(1, "touch ran", rlimits={"NOFILE": (100, highest + 1)}))
    assert isinstance(answer, Refusal)
    assert (answer.reason, str(highest) in answer.detail) == (RefusalReason.RLIMIT_TOO_HIGH, True)
    assert not (node.cwd / "ran").exists()


async def test_a_repeated_launch_answers_with_what_became_of_it_and_starts_nothing(node: Node) -> None:
    agent = await node.open()
    launch = node.shell(1, "echo once >> runs; read -r line < gate", note="a note")
    os.mkfifo(node.cwd / "gate")
    first = await agent.keepers.launch(launch)
    assert isinstance(first, Launched)
    assert not first.was_known
    again = await agent.keepers.launch(launch)
    assert isinstance(again, Launched)
    assert again.was_known
    assert again.attempt.phase is AttemptPhase.RUNNING
    assert (again.attempt.pid, again.attempt.note) == (first.attempt.pid, "a note")
    (node.cwd / "gate").write_text("go\n")
    end = await agent.end(first.attempt)
    ended = await agent.start(launch)
    assert (ended.phase, ended.end) == (AttemptPhase.ENDED, end)
    await agent.keepers.forget(launch.key)
    assert await agent.keepers.inventory() == ()
    buried = await agent.start(launch)
    assert (buried.phase, buried.end) == (AttemptPhase.FORGOTTEN, end)
    assert (node.cwd / "runs").read_text() == "once\n"


async def test_another_attempt_or_rank_of_the_same_job_is_another_launch(node: Node) -> None:
    agent = await node.open()
    keys = [RankKey(JobId(1), 1, 0), RankKey(JobId(1), 2, 0), RankKey(JobId(1), 1, 1)]
    for key in keys:
        await agent.run(node.launch(1, "/bin/true", key=key))
    assert [view.key for view in await agent.keepers.inventory()] == sorted(keys)


async def test_what_runs_cannot_be_forgotten_and_what_is_unknown_is(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.launch(1, "/bin/sleep", "1000"))
    refusal = await agent.keepers.forget(view.key)
    assert refusal is not None
    assert refusal.reason is RefusalReason.STILL_RUNNING
    assert view.pid is not None
    assert is_alive(view.pid)
    assert await agent.keepers.forget(RankKey(JobId(99), 1, 0)) is None


async def test_forgetting_deletes_the_spool(node: Node) -> None:
    agent = await node.open()
    view = await agent.start(node.shell(1, "echo hello"))
    await agent.end(view)
    assert exists(view.directory)
    await agent.keepers.forget(view.key)
    assert not exists(view.directory)


async def test_an_inventory_of_many_pages_is_complete_and_in_order(node: Node) -> None:
    agent = await node.open()
    note = "é" * 8192
    for job_id in range(1, 131):
        await agent.start(node.launch(job_id, "no-such-command", note=note))
    views = await agent.keepers.inventory()
    assert [view.key.job for view in views] == list(range(1, 131))
    assert {view.note for view in views} == {note}


async def test_three_hundred_short_jobs_end_each_with_their_own_code(node: Node) -> None:
    agent = await node.open()
    views = [await agent.start(node.shell(n, f"echo {n}; exit {n % 200}")) for n in range(1, 301)]
    for n, view in enumerate(views, 1):
        end = await agent.end(view)
        assert end.status == ExitCode(code=n % 200), n
        assert read_all(view, Stream.STDOUT) == b"%d\n" % n
