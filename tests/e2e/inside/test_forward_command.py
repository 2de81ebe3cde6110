"""`gpuctl forward` and `run --forward` as people type them, while what lies between is killed and started again."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

import gpufleet
from gpufleet.errors import Reason
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.inside.caller import until_listens
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.ports import kept_port

SERVER = str(Path(__file__).with_name("server.py"))


class Typed:
    """A command that runs; `lines` are what it has said on stderr so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while data := await self.process.stderr.read(4096):
            self.said += data.decode()

    async def says(self, pattern: str) -> re.Match[str]:
        """What it says like this, waited for."""
        await until(f"it says {pattern!r}", lambda: re.search(pattern, self.said) or self._reader.done())
        found = re.search(pattern, self.said)
        assert found is not None, self.said
        return found

    async def code(self) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            code = await self.process.wait()
            await self._reader
        return code


@asynccontextmanager
async def typed(fleet: Fleet, *words: str, environment: Mapping[str, str] | None = None) -> AsyncIterator[Typed]:
    """`gpuctl WORDS` as the fleet's admin; killed where it has not ended with the block."""
    named = {"GPUCTL_SCHEDULER": fleet.scheduler.address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
    named |= environment or {}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", *words),
        env=clean_environment(fleet.folder, named),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        cwd=fleet.work,
    )
    command = Typed(process)
    try:
        yield command
    finally:
        if process.returncode is None:
            process.kill()
        await command.code()


async def _echoed(port: int) -> bytes:
    """What the job's echo answers by a port here; empty where the connection led nowhere."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(b"echo\nhello\n")
            writer.write_eof()
            async with asyncio.timeout(DEADLINE_SECONDS):
                return await reader.read()
        finally:
            writer.close()
    except OSError:
        return b""


async def test_a_port_here_stays_whatever_goes_away_and_ends_with_the_job(fleet: Fleet, admin: Client) -> None:
    await fleet.add_node("n1")
    job_id = await admin.submit(sys.executable, SERVER)
    port = await until_listens(admin, job_id)
    async with typed(fleet, "forward", str(job_id), f"{port}:0", "1:0") as forward:
        local = int((await forward.says(rf"127\.0\.0\.1:(\d+) leads to port {port} of job {job_id}"))[1])
        assert await _echoed(local) == b"hello\nbye"
        nobody = int((await forward.says(r"127\.0\.0\.1:(\d+) leads to port 1 of job"))[1])
        assert await _echoed(nobody) == b""
        await forward.says("port 1: no process of the job listens on port 1")
        async with typed(fleet, "forward", str(job_id), f"{port}:{local}") as second:
            assert await second.code() == 4
            assert f"port {local} of this machine cannot be had" in second.said
        for harm in ("scheduler", "agent"):
            reader, writer = await asyncio.open_connection("127.0.0.1", local)
            writer.write(b"echo\nstill\n")
            assert await reader.readline() == b"still\n"
            program = fleet.scheduler if harm == "scheduler" else fleet.agents["n1"]
            program.kill()
            with suppress(ConnectionResetError):
                assert await reader.read() == b"", f"the {harm} is away: this connection has ended"
            writer.close()
            if harm == "scheduler":
                await fleet.scheduler.start()
            else:
                fleet.agents["n1"].spawn()
            await fleet.node_is_ready("n1")
            await until(f"new connections work behind the {harm}", lambda: _is_echoed(local))
        assert (await admin.job(job_id)).state == job_pb2.JOB_STATE_RUNNING
        await admin.cancel(job_id)
        assert await forward.code() == 0
        assert "Traceback" not in forward.said, forward.said


async def test_run_forwards_ports_as_long_as_it_runs(shared_fleet: Fleet, person: Client) -> None:
    port = str(kept_port())
    async with typed(shared_fleet, "run", "--forward", f"{port}:0", "--", sys.executable, SERVER, port) as run:
        found = await run.says(rf"127\.0\.0\.1:(\d+) leads to port {port} of job (\d+)")
        local, job_id = int(found[1]), int(found[2])
        await until_listens(person, job_id)
        assert await _echoed(local) == b"hello\nbye"
        await person.cancel(job_id)
        assert await run.code() != 0
        assert "Traceback" not in run.said, run.said
    async with typed(shared_fleet, "run", "--forward", "nothing", "--", "true") as run:
        assert await run.code() == 125
        assert '"nothing" is no port' in run.said


async def test_a_job_on_this_machine_has_its_port_though_run_forwards_it(shared_fleet: Fleet, person: Client) -> None:
    port = str(kept_port())
    async with typed(shared_fleet, "run", "--forward", port, "--", sys.executable, SERVER, port) as run:
        found = await run.says(rf"127\.0\.0\.1:(\d+) leads to port {port} of job (\d+)")
        local, job_id = int(found[1]), int(found[2])
        assert local != int(port)
        assert f"jobs run on this machine, where port {port} is the job's own" in run.said
        await until_listens(person, job_id)
        assert await _echoed(local) == await _echoed(int(port)) == b"hello\nbye"
        await person.cancel(job_id)
        assert await run.code() != 0


async def test_open_has_a_browser_on_the_first_port_once_the_job_answers_there(
    shared_fleet: Fleet, person: Client, tmp_path: Path
) -> None:
    browser, opened, port = tmp_path / "browser", tmp_path / "opened", str(kept_port())
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    line = f"sleep 1; exec {shlex.join([sys.executable, SERVER, port])}"
    job_id = await person.submit("/bin/sh", "-c", line)
    words = ("forward", str(job_id), f"{port}:0", "1:0", "--open")
    async with typed(shared_fleet, *words, environment={"BROWSER": f"{browser} %s"}) as forward:
        local = (await forward.says(rf"127\.0\.0\.1:(\d+) leads to port {port} of job"))[1]
        await until("a browser is opened", opened.exists)
        assert opened.read_text().strip() == f"http://127.0.0.1:{local}/"
        await person.cancel(job_id)
        assert await forward.code() == 0


async def _is_echoed(port: int) -> bool:
    return await _echoed(port) == b"hello\nbye"


async def test_a_job_of_somebody_else_is_refused_when_it_is_typed(
    shared_fleet: Fleet, person: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await person.submit("sleep", "1000")
    request = scheduler_pb2.CreateTokenRequest(user="mallory", role=scheduler_pb2.ROLE_USER)
    token = (await person.stub.CreateToken(request)).secret
    async with typed(shared_fleet, "forward", str(job_id), "8888:0", environment={"GPUCTL_TOKEN": token}) as forward:
        assert await forward.code() == 4
        assert f"job {job_id} belongs to root, and mallory may not reach its ports" in forward.said
        assert "Its owner and admins may." in forward.said and "leads to" not in forward.said
    monkeypatch.setenv("GPUCTL_SCHEDULER", shared_fleet.scheduler.address)
    monkeypatch.setenv("GPUCTL_TOKEN", token)
    monkeypatch.setenv("HOME", str(tmp_path))
    async with gpufleet.connect_async() as fleet:
        job = await fleet.job(job_id)
        with pytest.raises(gpufleet.GpufleetError, match="mallory may not reach its ports") as refused:
            async with job.forward(8888):
                pass
    assert refused.value.reason is Reason.NOT_YOUR_JOB
    story = await person.story(job_id)
    assert not any("mallory" in line for line in story), "nothing of the job was reached"
    await person.cancel(job_id)
