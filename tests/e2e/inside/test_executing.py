"""Commands in the world of running jobs through real processes: what they have, how they end, and who may."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from node_agent.keeper.entering.commands import COMMANDS_MAX, GRACE_S
from scheduler.api.inside.executing import ARGV_BYTES_MAX, COMMAND_CHARS_TOLD
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.execution import Execution
from tests.e2e.processes import until

RUNNING = job_pb2.JOB_STATE_RUNNING
RANGE = {"GPUCTL_AGENT_ISOLATION_USERS": "range"}
MB = 1024 * 1024
FLOOD_BYTES = 256 * MB
GROWN_BYTES_MAX = 48 * MB
"""What a program may grow by while a flood passes it, or waits before it: some times what its buffers may hold."""

MANNERED = "exec 2> /dev/null; trap 'echo hung up > said; exit' HUP; echo $$; while :; do sleep 0.1; done"
STUBBORN = "trap '' HUP TERM INT; echo $$; while :; do sleep 0.1; done"


@pytest.fixture
async def job(person: Client) -> AsyncIterator[int]:
    """A job that runs."""
    job_id = await person.submit("/bin/sleep", "1000")
    await person.wait(job_id, RUNNING)
    yield job_id
    await person.cancel(job_id)
    await person.wait(job_id)


async def test_a_command_has_the_folder_and_the_environment_of_its_job_and_three_descriptors_of_its_own(
    person: Client, job: int
) -> None:
    script = 'cat; pwd; echo "$GPUFLEET_JOB_ID"; echo wrong >&2; exit 7'
    async with Execution(person, job, "/bin/sh", "-c", script, has_input=True) as execution:
        await execution.send(b"hello\n")
        await execution.until_shows(b"hello\n")
        await execution.send(is_end=True)
        assert await execution.end() == job_pb2.ExitStatus(code=7)
    assert execution.stdout.decode() == f"hello\n{person.cwd}\n{job}\n"
    assert execution.stderr == b"wrong\n"
    async with Execution(person, job, "cat") as execution:
        assert await execution.end() == job_pb2.ExitStatus(code=0), "what has no input reads an end"
    async with Execution(person, job, "/bin/sh", "-c", "kill -USR1 $$") as execution:
        assert await execution.end() == job_pb2.ExitStatus(signal=signal.SIGUSR1)
    assert (await person.job(job)).state == RUNNING


async def test_what_cannot_be_run_exits_as_in_a_shell_and_says_why(person: Client, job: int) -> None:
    for name, code, why in (("nothing-like-this", 127, "not found in PATH"), ("/etc/passwd", 126, "denied")):
        async with Execution(person, job, name) as execution:
            assert await execution.end() == job_pb2.ExitStatus(code=code)
        assert why in execution.problem


async def test_a_terminal_is_resized_and_its_keys_interrupt(person: Client, job: int) -> None:
    traps = "trap 'stty size' WINCH; trap 'echo interrupted; exit 3' INT"
    script = f"tty; stty size; {traps}; echo ready; while :; do sleep 0.1; done"
    size = job_pb2.TerminalSize(columns=100, rows=30)
    async with Execution(person, job, "/bin/sh", "-c", script, has_terminal=True, size=size) as execution:
        await execution.until_shows(b"ready")
        assert b"/dev/pts/" in execution.stdout
        assert b"30 100" in execution.stdout
        await execution.send(size=job_pb2.TerminalSize(columns=132, rows=43))
        await execution.until_shows(b"43 132")
        await execution.send(b"\x03")
        assert await execution.end() == job_pb2.ExitStatus(code=3)
    assert b"interrupted" in execution.stdout
    async with Execution(person, job, "cat", has_terminal=True, terminal_type="vt100") as execution:
        await execution.send(is_end=True)
        assert await execution.end() == job_pb2.ExitStatus(code=0), "an end is Ctrl-D to a terminal"
    async with Execution(
        person, job, "/bin/sh", "-c", "echo $TERM", has_terminal=True, terminal_type="vt100"
    ) as execution:
        await execution.end()
    assert execution.stdout == b"vt100\r\n"


async def test_a_signal_reaches_its_group_and_nobody_elses(person: Client, job: int) -> None:
    async with Execution(person, job, "/bin/sh", "-c", "sleep 1000 & echo ready; wait") as execution:
        await execution.until_shows(b"ready")
        await execution.send(signal=signal.SIGTERM)
        assert await execution.end() == job_pb2.ExitStatus(signal=signal.SIGTERM)
    assert (await person.job(job)).state == RUNNING


async def test_a_flood_both_ways_arrives_whole_and_memory_stays_flat(
    person: Client, job: int, shared_fleet: Fleet
) -> None:
    programs = [
        psutil.Process(shared_fleet.scheduler.pid),
        psutil.Process(next(iter(shared_fleet.agents.values())).pid),
    ]
    async with Execution(person, job, "cat", has_input=True) as warm:
        await warm.send(bytes(MB // 4), is_end=True)
        await warm.end()
    before = [each.memory_info().rss for each in programs]
    async with Execution(person, job, "cat", has_input=True) as execution:
        sending = asyncio.create_task(_flood(execution))
        count = 0
        while await execution.hear() and execution.exit is None:
            count += len(execution.stdout)
            execution.stdout = b""
        await sending
    assert count == FLOOD_BYTES
    grown = [each.memory_info().rss - was for each, was in zip(programs, before, strict=True)]
    assert max(grown) < GROWN_BYTES_MAX, grown


async def test_one_that_reads_nothing_stops_itself_alone_and_leaves_at_once(person: Client, job: int) -> None:
    async with Execution(person, job, "/bin/sh", "-c", "echo $$; exec sleep 1000", has_input=True) as stalled:
        await stalled.until_shows(b"\n")
        sending = asyncio.create_task(_flood(stalled))
        await until("it is not taken any more", lambda: _stands_still(stalled))
        async with Execution(person, job, "echo", "still") as execution:
            await execution.end()
        assert execution.stdout == b"still\n"
        assert stalled.sent_bytes < 32 * MB, "what waits on the way is bounded"
        sending.cancel()
    await until("it has ended", lambda: not psutil.pid_exists(int(stalled.stdout)))


async def test_it_is_hung_up_upon_when_its_caller_goes_and_killed_where_it_stays(
    person: Client, job: int, shared_fleet: Fleet
) -> None:
    async with Execution(person, job, "/bin/sh", "-c", MANNERED) as mannered:
        await mannered.until_shows(b"\n")
    async with Execution(person, job, "/bin/sh", "-c", STUBBORN) as stubborn:
        await stubborn.until_shows(b"\n")
    await until("it has ended", lambda: not psutil.pid_exists(int(mannered.stdout)))
    assert (person.cwd / "said").read_text() == "hung up\n"
    began = asyncio.get_running_loop().time()
    await until("it was killed", lambda: not psutil.pid_exists(int(stubborn.stdout)))
    assert asyncio.get_running_loop().time() - began < 2 * GRACE_S + 5
    assert (await person.job(job)).state == RUNNING


async def test_it_ends_with_its_job_and_with_the_agent_or_the_scheduler_and_the_job_goes_on(
    fleet: Fleet, admin: Client
) -> None:
    agent = await fleet.add_node("n1")
    job = await admin.submit("/bin/sleep", "1000")
    await admin.wait(job, RUNNING)
    for program in (agent, fleet.scheduler):
        async with Execution(admin, job, "/bin/sh", "-c", STUBBORN) as execution:
            await execution.until_shows(b"\n")
            program.kill()
            assert await execution.end() is None
        await until("it has ended", lambda pid=int(execution.stdout): not psutil.pid_exists(pid))
        if program is agent:
            agent.spawn()
        else:
            await fleet.scheduler.start()
        await fleet.node_is_ready("n1")
        assert (await admin.job(job)).state == RUNNING
    async with Execution(admin, job, "/bin/sh", "-c", STUBBORN) as execution:
        await execution.until_shows(b"\n")
        await admin.cancel(job)
        assert await execution.end() == job_pb2.ExitStatus(signal=signal.SIGKILL)
    assert not psutil.pid_exists(int(execution.stdout))
    await admin.wait(job)


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent that is root runs jobs as other accounts")
async def test_in_an_isolated_job_it_is_the_jobs_user_and_sees_what_the_job_sees(fleet: Fleet, admin: Client) -> None:
    agent = await fleet.add_node("n1", environment=RANGE)
    job = await admin.submit("/bin/sh", "-c", "echo mine > $HOME/mine; sleep 1000", cwd="/")
    await admin.wait(job, RUNNING)
    script = (
        'id -u; id -g; cat $HOME/mine; cat /proc/1/comm; grep -h "^CapEff\\|^NoNewPrivs" /proc/self/status;'
        f"ls -A {agent.data}; cat {fleet.scheduler.data}/admin.token; cat /proc/self/cgroup; echo own > /dev/stdout"
    )
    async with Execution(admin, job, "/bin/sh", "-c", script) as execution:
        await execution.end()
    lines = execution.stdout.decode().splitlines()
    assert lines[:6] == [
        *("1900000000", "1900000000", "mine", "supervisor"),
        *("CapEff:\t0000000000000000", "NoNewPrivs:\t1"),
    ]
    assert lines[-1] == "own"
    assert b"admin.token" in execution.stderr, "nobody's token is read"
    async with Execution(admin, job, "/bin/sh", "-c", "tty; echo to it > $(tty)", has_terminal=True) as execution:
        assert await execution.end() == job_pb2.ExitStatus(code=0)
    assert b"to it" in execution.stdout
    async with Execution(admin, job, "/bin/sh", "-c", "setsid sleep 1000 & echo $!") as execution:
        await execution.end()
    outside = [each.pid for each in psutil.process_iter(["cmdline", "uids"]) if _is_left(each)]
    assert outside, "what a command leaves lives as long as the job"
    async with Execution(admin, job, "/bin/sh", "-c", STUBBORN) as execution:
        await execution.until_shows(b"\n")
        await admin.cancel(job)
        assert (await execution.end() or job_pb2.ExitStatus()).signal == signal.SIGKILL
        assert execution.problem == "it was ended with its job"
    await admin.wait(job)
    assert not any(map(psutil.pid_exists, outside))


async def test_only_the_owner_and_admins_run_commands_in_a_job(person: Client, job: int, shared_fleet: Fleet) -> None:
    answer = await person.stub.CreateToken(
        scheduler_pb2.CreateTokenRequest(role=scheduler_pb2.ROLE_USER, user="somebody-else")
    )
    async with shared_fleet.client(answer.secret) as other:
        with pytest.raises(GpufleetError) as refused:
            async with Execution(other, job, "true"):
                pass
    assert refused.value.reason is Reason.NOT_YOUR_JOB
    assert not [line for line in await person.story(job) if "somebody-else" in line]


async def test_it_stands_in_the_story_before_it_runs_and_a_long_one_is_cut(person: Client, job: int) -> None:
    async with Execution(person, job, "echo", "two words", "x" * COMMAND_CHARS_TOLD) as execution:
        ran = [line for line in await person.story(job) if " ran " in line]
        await execution.end()
    async with Execution(person, job, "echo", "a\nb\x1b[2J") as execution:
        await execution.end()
    assert ran[0].startswith("root ran echo 'two words' xxx")
    assert ran[0].endswith(f"x… in attempt {job}/1.")
    assert not any(each in line for line in await person.story(job) for each in "\n\x1b")


async def test_what_is_no_command_is_refused_by_field(person: Client, job: int) -> None:
    for argv, fields, field in (
        ((), {}, "start.argv"),
        (("a\0b",), {}, "start.argv"),
        (("x" * (ARGV_BYTES_MAX + 1),), {}, "start.argv"),
        (("true",), {"rank": 1}, "start.rank"),
        (("true",), {"terminal_type": "\x1b"}, "start.terminal_type"),
        (("true",), {"size": job_pb2.TerminalSize(columns=0, rows=24)}, "start.size.columns"),
    ):
        with pytest.raises(GpufleetError) as refused:
            async with Execution(person, job, *argv, **fields):
                pass
        assert refused.value.reason is Reason.INVALID_ARGUMENT
        assert field in str(refused.value)
    async with Execution(person, job, "cat", has_input=True) as execution:
        await execution.send(signal=1000)
        assert await execution.end() is None
        assert "signal" in str(await execution.refusal())
    assert not [line for line in await person.story(job) if " ran true" in line]


async def test_a_job_that_does_not_run_is_not_entered(person: Client) -> None:
    job = await person.submit("true")
    await person.wait(job)
    with pytest.raises(GpufleetError) as refused:
        async with Execution(person, job, "true"):
            pass
    assert refused.value.reason is Reason.JOB_FINISHED


async def test_so_many_run_at_once_and_one_more_is_told_so(person: Client, job: int) -> None:
    async def hold(until_told: asyncio.Event) -> None:
        async with Execution(person, job, "cat", has_input=True):
            held.release()
            await until_told.wait()

    held, told = asyncio.Semaphore(0), asyncio.Event()
    async with asyncio.TaskGroup() as holding:
        for _ in range(COMMANDS_MAX):
            holding.create_task(hold(told))
        for _ in range(COMMANDS_MAX):
            await held.acquire()
        with pytest.raises(GpufleetError) as refused:
            async with Execution(person, job, "true"):
                pass
        assert refused.value.reason is Reason.TOO_MANY_STREAMS
        told.set()
    await until("there is room again", lambda: _runs(person, job))


async def _runs(person: Client, job: int) -> bool:
    try:
        async with Execution(person, job, "true") as execution:
            return await execution.end() == job_pb2.ExitStatus(code=0)
    except GpufleetError:
        return False


async def _flood(execution: Execution) -> None:
    piece = bytes(MB // 4)
    for _ in range(FLOOD_BYTES // len(piece)):
        await execution.send(piece)
    await execution.send(is_end=True)


async def _stands_still(execution: Execution) -> bool:
    before = execution.sent_bytes
    await asyncio.sleep(0.3)
    return before > 0 and execution.sent_bytes == before


def _is_left(process: Any) -> bool:
    return bool(process.info["cmdline"] == ["sleep", "1000"] and process.info["uids"].real == 1900000000)
