"""Commands that are let into a job's container: what they have, how they end, and that nothing of them is left."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from gpufleet.errors import GpufleetError, Reason
from tests.containers.engine import EngineOfTests
from tests.e2e.client import Client
from tests.e2e.containers.test_running import CANCELLED, RUNNING, containers_of, has_written, in_container
from tests.e2e.fleet import Fleet
from tests.e2e.inside.execution import Execution
from tests.e2e.inside.test_ssh import GPUCTL, Laptop
from tests.e2e.processes import until

pytestmark = pytest.mark.nightly

MB = 1024 * 1024
LIVES = ("/bin/sh", "-c", "echo ready; while true; do sleep 0.05; done")
STUBBORN = "trap '' HUP TERM INT; echo begun; while :; do sleep 0.1; done; : stubborn"
OWN = 'id -u; id -g; grep -hE "^(CapEff|CapBnd|NoNewPrivs|Seccomp)" /proc/self/status; cat /proc/self/cgroup; pwd; env'


@pytest.fixture
async def job(person: Client) -> AsyncIterator[int]:
    """A job that runs in a container."""
    job_id = await person.submit(*LIVES, **in_container())
    await has_written(person, job_id, b"ready")
    yield job_id
    await person.cancel(job_id)
    await person.wait(job_id, CANCELLED)


def first_of(engine: EngineOfTests, job: int) -> int:
    (container,) = containers_of(engine, job)
    first: int = engine.ask("GET", f"/v1.41/containers/{container}/json")["State"]["Pid"]
    return first


def with_words(first: int, words: bytes) -> list[int]:
    """The processes of a container whose command lines have these words."""
    space = Path(f"/proc/{first}/ns/pid")
    own = str(space.readlink()) if space.is_symlink() else ""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            with contextlib.suppress(OSError):
                if words in (process / "cmdline").read_bytes() and str((process / "ns/pid").readlink()) == own:
                    found.append(int(process.name))
    return found


async def test_it_has_what_the_job_has_and_three_descriptors_of_its_own(person: Client, job: int) -> None:
    script = 'cat; pwd; echo "$GPUFLEET_JOB_ID $FROM_IMAGE"; echo wrong >&2; exit 7'
    async with Execution(person, job, "sh", "-c", script, has_input=True) as execution:
        await execution.send(b"hello\n")
        await execution.until_shows(b"hello\n")
        await execution.send(is_end=True)
        assert await execution.end() == job_pb2.ExitStatus(code=7)
    assert execution.stdout.decode() == f"hello\n/work\n{job} yes\n"
    assert execution.stderr == b"wrong\n"
    async with Execution(person, job, "cat") as execution:
        assert await execution.end() == job_pb2.ExitStatus(code=0), "what has no input reads an end"
    assert (await person.job(job)).state == RUNNING


async def test_its_account_capabilities_control_group_and_variables_are_the_jobs(person: Client) -> None:
    job = await person.submit("sh", "-c", f"({OWN}) ; echo ready; while true; do sleep 0.05; done", **in_container())
    await has_written(person, job, b"ready")
    jobs_own = (await person.stdout(job, follow=False)).decode().removesuffix("ready\n")
    engines_own = ("HOSTNAME=", "container=")
    async with Execution(person, job, "sh", "-c", OWN) as execution:
        assert await execution.end() == job_pb2.ExitStatus(code=0), execution.stderr
    has, had = (
        sorted(line for line in said.splitlines() if not line.startswith(engines_own))
        for said in (execution.stdout.decode(), jobs_own)
    )
    assert has == had
    assert "CapEff:\t0000000000000000" in has
    await person.cancel(job)


async def test_what_the_image_lacks_exits_as_in_a_shell_and_says_why(person: Client, job: int) -> None:
    for name, code in (("nothing-like-this", 127), ("/bin/nothing-like-this", 127), ("/etc/not-a-program", 126)):
        async with Execution(person, job, name) as execution:
            assert await execution.end() == job_pb2.ExitStatus(code=code)
        assert "the image" in execution.problem
        assert (execution.stdout, execution.stderr) == (b"", b"")
        async with Execution(person, job, name, has_terminal=True) as execution:
            assert (await execution.end() or job_pb2.ExitStatus()).code in (126, 127)
        assert "the image" in execution.problem
    async with Execution(person, job, "sh", "-c", "echo executable file; exit 126") as execution:
        assert await execution.end() == job_pb2.ExitStatus(code=126)
    assert (execution.stdout, execution.problem) == (b"executable file\n", "")


async def test_a_terminal_is_resized_and_its_keys_interrupt(person: Client, job: int) -> None:
    traps = "trap 'stty size' WINCH; trap 'echo interrupted; exit 3' INT"
    script = f"stty size; echo $TERM; {traps}; echo ready; while :; do sleep 0.1; done"
    size = job_pb2.TerminalSize(columns=100, rows=30)
    async with Execution(
        person, job, "sh", "-c", script, has_terminal=True, terminal_type="vt100", size=size
    ) as execution:
        await execution.until_shows(b"ready")
        assert b"vt100" in execution.stdout
        await execution.send(size=job_pb2.TerminalSize(columns=132, rows=43))
        await execution.until_shows(b"43 132")
        await execution.send(b"\x03")
        assert await execution.end() == job_pb2.ExitStatus(code=3)
    assert b"interrupted" in execution.stdout
    async with Execution(person, job, "cat", has_terminal=True) as execution:
        await execution.send(is_end=True)
        assert await execution.end() == job_pb2.ExitStatus(code=0), "an end is Ctrl-D to a terminal"


async def test_no_keys_of_the_engines_own_leave_a_terminal(person: Client, job: int) -> None:
    async with Execution(person, job, "sh", "-c", "stty raw -echo; echo ready; cat", has_terminal=True) as execution:
        await execution.until_shows(b"ready")
        await execution.send(b"\x10")
        await execution.until_shows(b"\x10")
        await execution.send(b"\x11still")
        await execution.until_shows(b"\x11still")


async def test_a_signal_reaches_its_group_and_nobody_elses(person: Client, job: int) -> None:
    async with Execution(person, job, "sh", "-c", "sleep 1000 & echo ready; wait") as execution:
        await execution.until_shows(b"ready")
        await execution.send(signal=signal.SIGTERM)
        assert await execution.end() == job_pb2.ExitStatus(code=128 + signal.SIGTERM)
    assert (await person.job(job)).state == RUNNING


async def test_what_it_leaves_in_its_group_ends_with_it(person: Client, job: int, engine: EngineOfTests) -> None:
    script = "sleep 4711 & read line; echo over"
    async with Execution(person, job, "sh", "-c", script, has_input=True) as execution:
        await execution.send(b"go\n")
        assert await execution.end() == job_pb2.ExitStatus(code=0), "it is not waited for"
    assert execution.stdout == b"over\n"
    first = first_of(engine, job)
    await until("what it left is gone", lambda: not with_words(first, b"4711"))


async def test_much_comes_whole_both_ways(person: Client, job: int) -> None:
    data = b"".join(b"%d\n" % number for number in range(1_000_000))
    async with Execution(person, job, "cat", has_input=True) as execution:
        for at in range(0, len(data), MB // 4):
            await execution.send(data[at : at + MB // 4])
            while len(execution.stdout) + MB < execution.sent_bytes:
                assert await execution.hear()
        await execution.send(is_end=True)
        assert await execution.end() == job_pb2.ExitStatus(code=0)
    assert execution.stdout == data


async def test_it_is_hung_up_upon_when_its_caller_goes_and_killed_where_it_stays(
    person: Client, job: int, engine: EngineOfTests
) -> None:
    first = first_of(engine, job)
    async with Execution(
        person, job, "sh", "-c", "trap 'echo hung up > /tmp/said; exit' HUP; echo begun; while :; do sleep 0.1; done"
    ) as mannered:
        await mannered.until_shows(b"begun")
    async with Execution(person, job, "sh", "-c", STUBBORN) as stubborn:
        await stubborn.until_shows(b"begun")
    await until("it was told", lambda: Path(f"/proc/{first}/root/tmp/said").exists())
    await until("the stubborn one was killed", lambda: not with_words(first, b"stubborn"))
    assert (await person.job(job)).state == RUNNING


async def test_it_ends_with_its_job_and_with_the_agent_and_the_job_goes_on(
    fleet: Fleet, engine: EngineOfTests, admin: Client
) -> None:
    agent = await fleet.add_node("n1", environment=engine.environment)
    job = await admin.submit(*LIVES, **in_container())
    await has_written(admin, job, b"ready")
    first = first_of(engine, job)
    async with Execution(admin, job, "sh", "-c", STUBBORN) as execution:
        await execution.until_shows(b"begun")
        agent.kill()
        assert await execution.end() is None
    await until("it has ended", lambda: not with_words(first, b"stubborn"))
    agent.spawn()
    await fleet.node_is_ready("n1")
    assert (await admin.job(job)).state == RUNNING
    async with Execution(admin, job, "sh", "-c", STUBBORN) as execution:
        await execution.until_shows(b"begun")
        await admin.cancel(job)
        # Whoever is first: the keeper, which kills what stands for it on the node, or the end of the container.
        killed = job_pb2.ExitStatus(signal=signal.SIGKILL), job_pb2.ExitStatus(code=128 + signal.SIGKILL)
        assert await execution.end() in killed
    await admin.wait(job, CANCELLED)
    with pytest.raises(GpufleetError) as refused:
        async with Execution(admin, job, "true"):
            pass
    assert refused.value.reason is Reason.JOB_FINISHED


async def test_one_that_is_asked_for_while_the_container_is_starting_waits_for_it(person: Client) -> None:
    job = await person.submit(*LIVES, **in_container())
    await person.wait(job, RUNNING)
    async with Execution(person, job, "echo", "here") as execution:
        assert await execution.end() == job_pb2.ExitStatus(code=0), execution.problem
    assert execution.stdout == b"here\n"
    await person.cancel(job)


async def test_gpuctl_exec_enters_it_and_says_which_program_its_image_lacks(
    person: Client, job: int, container_fleet: Fleet, tmp_path: Path
) -> None:
    laptop = Laptop(container_fleet, tmp_path)
    assert await laptop.types(*GPUCTL, "exec", str(job), "--", "sh", "-c", "echo here; exit 3") == (3, "here\n")
    assert (await laptop.types(*GPUCTL, "exec", str(job), "--", "nothing-like-this"))[0] == 127
    assert "the image has no such program" in laptop.said
