"""The worker's program with --http-service, as the fleet starts it: its exit status, its signals, its last words."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpufleet.security.tokens import make_token
from inference.worker import FAILED, READY
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.inference.http_service.test_child import is_alive
from tests.inference.http_service.test_shim import PROGRAM, SECRET
from tests.inference.test_link import FakeScheduler, scheduler

WITHOUT_A_MODELS_NEEDS = """
import sys

for name in ("numpy", "PIL", "simplejpeg", "torch"):
    sys.modules[name] = None

from gpufleet.inference.__main__ import main

sys.exit(main())
"""


class Started:
    """A replica as a process of its own, and the scheduler that it talks to."""

    def __init__(self, process: subprocess.Popen[bytes], fake: FakeScheduler, log: Path) -> None:
        self.process = process
        self.fake = fake
        self.log = log

    async def ready(self) -> None:
        await until("it is ready", lambda: any(each.state == READY for each in self.fake.reports))

    async def status(self) -> int:
        return await asyncio.to_thread(self.process.wait, DEADLINE_SECONDS)


@asynccontextmanager
async def started(
    folder: Path, *program: str, runner: tuple[str, ...] = ("-m", "gpufleet.inference")
) -> AsyncIterator[Started]:
    fake = FakeScheduler()
    (folder / "program.py").write_text(PROGRAM)
    log = folder / "log"
    async with scheduler(fake) as port:
        variables = {"GPUCTL_TOKEN": make_token(), "GPUFLEET_TICKET_SECRET": SECRET.hex(), "GPUFLEET_JOB_ID": "7"}
        flags = ("--http-service", "--name", "chat", "--port", "0", "--port-env", "LISTEN", "--ready", "/health")
        with log.open("wb") as opened:
            process = subprocess.Popen(  # noqa: ASYNC220
                (sys.executable, "-P", *runner, *flags, "--scheduler", f"127.0.0.1:{port}", "--", *program),
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
                env=clean_environment(folder, variables),
                cwd=folder,
            )
        try:
            yield Started(process, fake, log)
        finally:
            process.kill()
            process.wait()


SERVER = (sys.executable, "program.py", "$LISTEN")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_program_and_that_is_no_failure(number: signal.Signals, tmp_path: Path) -> None:
    async with started(tmp_path, *SERVER) as replica:
        await replica.ready()
        replica.process.send_signal(number)
        assert await replica.status() == 0, replica.log.read_text()
    assert "Traceback" not in replica.log.read_text()


async def test_its_status_is_that_of_a_program_that_ends_by_itself_whose_output_is_its_own(tmp_path: Path) -> None:
    async with started(tmp_path, "sh", "-c", "echo said by the program; echo complained >&2; exit 43") as replica:
        assert await replica.status() == 43
        assert (replica.fake.reports[-1].state, replica.fake.reports[-1].message) == (
            FAILED,
            "the program ended with exit code 43",
        )
    said = replica.log.read_text()
    assert "said by the program\n" in said and "complained\n" in said and "Traceback" not in said


async def test_a_program_that_is_not_there_is_told_to_the_scheduler_with_what_to_do(tmp_path: Path) -> None:
    async with started(tmp_path, "no-such-program") as replica:
        assert await replica.status() == 1
        await until("the scheduler hears it", lambda: bool(replica.fake.reports))
        last = replica.fake.reports[-1]
        assert last.state == FAILED
        assert last.message.startswith("there is no program no-such-program in PATH. Install it on the nodes")
        assert (replica.fake.hellos[-1].model, replica.fake.hellos[-1].job_id) == ("chat", 7)


async def test_it_needs_nothing_that_models_need(tmp_path: Path) -> None:
    async with started(tmp_path, *SERVER, runner=("-c", WITHOUT_A_MODELS_NEEDS)) as replica:
        await replica.ready()
        replica.process.terminate()
        assert await replica.status() == 0, replica.log.read_text()


async def test_killed_it_leaves_no_program_behind(tmp_path: Path) -> None:
    async with started(tmp_path, "sh", "-c", "echo $$ > pid.new; mv pid.new pid; exec sleep 1000") as replica:
        await until("the program runs", (tmp_path / "pid").exists)
        pid = int((tmp_path / "pid").read_text())
        assert is_alive(pid) and os.getpgid(pid) == pid
        replica.process.kill()
        await until("the program has ended", lambda: not is_alive(pid))


async def test_flags_that_make_no_sense_are_refused_in_two_lines(tmp_path: Path) -> None:
    async with started(tmp_path) as replica:
        assert await replica.status() == 1
        assert replica.log.read_text().startswith("PROGRAM: is missing\nWrite it behind --")
