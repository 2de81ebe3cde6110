"""The program as a child: what it finds, how it ends, and that nothing of it is left. Real processes."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpufleet.errors import GpufleetError, Reason
from inference.http_service import child as child_module
from inference.http_service.child import Child, Exit, check_program, environment_of, exit_of
from tests.inference.serving import WAIT_S_MAX, until

FILES = 300


class Watched:
    """A child, and how it ended."""

    def __init__(self, *argv: str, environment: dict[str, str] | None = None) -> None:
        self.ended: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self.child = Child(argv, environment or dict(os.environ), FILES, self.ended.set_result)

    @property
    def pid(self) -> int:
        return self.child._process.pid

    async def end(self) -> Exit:
        async with asyncio.timeout(WAIT_S_MAX):
            return await self.ended


@asynccontextmanager
async def running(*argv: str, environment: dict[str, str] | None = None) -> AsyncIterator[Watched]:
    watched = Watched(*argv, environment=environment)
    try:
        yield watched
    finally:
        watched.child.kill()
        await watched.end()


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_the_programs_environment_has_its_port_and_the_jobs_token_and_not_what_speaks_for_the_worker() -> None:
    given = {"GPUFLEET_TICKET_SECRET": "a", "GPUCTL_TOKEN": "b", "GPUFLEET_JOB_TOKEN": "c", "HOME": "/", "PORT": "1"}
    assert environment_of("PORT", 17, given) == {"GPUFLEET_JOB_TOKEN": "c", "HOME": "/", "PORT": "17"}
    assert environment_of("LISTEN", 17, given)["LISTEN"] == "17"


FACTS = """
import json, os, resource, signal, sys
json.dump({
    "group": os.getpgrp() == os.getpid(), "parent": os.getppid(), "x": os.environ.get("X"), "argv": sys.argv[2:],
    "files": resource.getrlimit(resource.RLIMIT_NOFILE), "fds": sorted(os.listdir("/proc/self/fd")),
    "ignored": [line.split()[1] for line in open("/proc/self/status") if line.startswith("SigIgn")],
}, open(sys.argv[1], "w"))
"""


async def test_the_program_is_the_child_itself_in_a_group_of_its_own_and_finds_nothing_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "facts.json"
    script = tmp_path / "facts.py"
    script.write_text(FACTS)
    words = ("two words", "$HOME", "-c", "", "ä")
    async with running(sys.executable, str(script), str(file), *words, environment={"X": "1"}) as watched:
        assert await watched.end() == Exit(0, "the program ended with exit code 0")
    facts = json.loads(file.read_text())
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert facts | {"fds": [], "ignored": []} == {
        "group": True,
        "parent": os.getpid(),
        "x": "1",
        "argv": list(words),
        "files": [FILES, hard],
        "fds": [],
        "ignored": [],
    }
    # Its three, the listing itself, and the file that it writes to.
    assert len(facts["fds"]) <= 5
    # A Python ignores SIGPIPE and SIGXFSZ by itself; a shell shows what it was given.
    shell = ("sh", "-c", f"grep SigIgn /proc/self/status > {file}")
    async with running(*shell) as watched:
        assert (await watched.end()).status == 0
    ignored = int(file.read_text().split()[1], 16)
    assert not ignored >> (signal.SIGPIPE - 1) & 1 and not ignored >> (signal.SIGXFSZ - 1) & 1


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (0, Exit(0, "the program ended with exit code 0")),
        (7, Exit(7, "the program ended with exit code 7")),
        (-9, Exit(137, "the program was ended by SIGKILL")),
        (-40, Exit(168, "the program was ended by signal 40")),
    ],
)
def test_an_end_has_the_status_that_a_shell_gives_it_and_a_sentence(code: int, found: Exit) -> None:
    assert exit_of(code) == found


@pytest.mark.parametrize("system", ["linux", "darwin"])
async def test_how_it_ended_is_told(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    for code, status in (("import sys; sys.exit(5)", 5), ("import os; os.kill(os.getpid(), 9)", 137)):
        async with running(*python(code)) as watched:
            assert (await watched.end()).status == status


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [("no program\n", 0o755, "Exec format error"), ("#!/no/such/interpreter\n", 0o755, "No such file or directory")],
)
async def test_what_cannot_be_run_says_why(content: str, mode: int, said: str, tmp_path: Path) -> None:
    file = tmp_path / "program"
    file.write_text(content)
    file.chmod(mode)
    async with running(str(file)) as watched:
        assert await watched.end() == Exit(127, f"the program cannot be run: {file}: {said}")


async def test_it_is_asked_to_end_and_then_ended() -> None:
    async with running("sleep", "1000") as watched:
        watched.child.terminate()
        assert await watched.end() == Exit(143, "the program was ended by SIGTERM")
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    async with running(*python(stubborn)) as watched:
        watched.child.terminate()
        watched.child.kill()
        assert (await watched.end()).status in (137, 143)  # SIGTERM may come before it is ignored
        watched.child.kill()  # nobody else's group


FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen(["sleep", "1000"])
grandchild = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; while :; do sleep 1000; done"], stdout=subprocess.PIPE)
grandchild.stdout.readline()
open(sys.argv[1] + ".new", "w").write(f"{child.pid} {grandchild.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(0 if len(sys.argv) > 2 else 1000)
"""


@pytest.mark.parametrize("ends_by_itself", [True, False])
async def test_what_it_leaves_in_its_group_is_killed(ends_by_itself: bool, tmp_path: Path) -> None:
    file = tmp_path / "pids"
    async with running(*python(FAMILY), str(file), *(["go"] if ends_by_itself else [])) as watched:
        await until(file.exists)
        pids = [int(word) for word in file.read_text().split()]
        if not ends_by_itself:
            watched.child.terminate()
        assert (await watched.end()).status == (0 if ends_by_itself else 143)
    await until(lambda: not any(is_alive(pid) for pid in pids))


async def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    parent = f"""
import asyncio, os
from inference.http_service.child import Child

async def main():
    child = Child(["sh", "-c", "echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000"], os.environ, 300, print)
    await asyncio.sleep(1000)

asyncio.run(main())
"""
    process = subprocess.Popen(  # noqa: ASYNC220
        python(parent), cwd=Path(child_module.__file__).parents[2], env={**os.environ, "PYTHONPATH": "gen:."}
    )
    try:
        await until(file.exists)
        pid = int(file.read_text())
        assert is_alive(pid)
    finally:
        process.kill()
        process.wait()
    await until(lambda: not is_alive(pid))


def test_a_program_that_is_not_there_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("#!/bin/sh\n")
    cases = {
        "no-such-program": "there is no program no-such-program in PATH",
        f"{tmp_path}/missing": f"there is no program {tmp_path}/missing",
        f"{tmp_path}/there": f"{tmp_path}/there is not executable",
        str(tmp_path): f"there is no program {tmp_path}",
    }
    for name, said in cases.items():
        with pytest.raises(GpufleetError, match=said) as refused:
            check_program(name)
        assert refused.value.reason is Reason.PROGRAM_FAILED and refused.value.next_step
    (tmp_path / "there").chmod(0o755)
    check_program(f"{tmp_path}/there")
    check_program("sh")
