"""Models served by the fleet through real programs: workers as jobs, a person on one, and what becomes of both."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import tarfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest
from gpufleet.v1 import inference_pb2, job_pb2, node_pb2, scheduler_pb2, sessions_pb2

from inference.__main__ import EXIT_HUNG
from scheduler.state.ids import JobId, RankKey
from scheduler.worker_secrets import read_or_make
from tests.e2e.client import Client
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, until
from tests.gateway.stage import Browser, Stage, browser

JPEG = b"\xff\xd8"


@dataclass(frozen=True)
class Said:
    """What a command said, and its exit code."""

    code: int
    out: str
    err: str


async def gpuctl(stage: Stage, *words: str, folder: Path | None = None, err: int | IO[bytes] = PIPE) -> Said:
    scheduler = stage.fleet.scheduler
    variables = {"GPUCTL_SCHEDULER": scheduler.address, "GPUCTL_TOKEN": scheduler.token("admin")}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-P", "-m", "gpufleet.cli", *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=err,
        env=clean_environment(stage.folder, variables),
        cwd=folder or stage.folder,
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        out, said = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), (said or b"").decode())


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A stage of the test's own, with a node: its scheduler is started again, and its jobs are killed."""
    stage = Stage(tmp_path / "stage")
    try:
        await stage.start()
        await stage.fleet.add_node("n1")
        yield stage
    finally:
        await stage.end()


@pytest.fixture
async def admin(stage: Stage) -> AsyncIterator[Client]:
    async with stage.fleet.client() as client:
        yield client


async def model_named(admin: Client, name: str) -> sessions_pb2.Model:
    models = (await admin.stub.ListModels(sessions_pb2.ListModelsRequest())).models
    return next(model for model in models if model.name == name)


async def ready_worker(admin: Client, name: str) -> sessions_pb2.WorkerInfo:
    async def is_ready() -> bool:
        workers = (await model_named(admin, name)).workers
        return [worker.state for worker in workers] == [inference_pb2.WORKER_STATE_READY]

    await until(f"the worker of {name} is ready", is_ready)
    return (await model_named(admin, name)).workers[0]


async def free_gpus(admin: Client) -> int:
    nodes = (await admin.stub.ListNodes(scheduler_pb2.ListNodesRequest())).nodes
    return sum(1 for node in nodes for device in node.devices if not device.job_id)


async def test_a_person_keeps_a_place_on_a_served_model_whatever_becomes_of_its_worker(
    stage: Stage, admin: Client, tmp_path: Path
) -> None:
    options = ("--gpus", "1", "--model-arg", "seats=1", "--idle", "10m", "--name", "served")
    served = await gpuctl(stage, "serve", "test-pattern", *options)
    assert (served.code, served.err) == (0, "")
    assert served.out == "model served is ready: 1 worker with 1 seat\n"
    worker = await ready_worker(admin, "served")
    assert await free_gpus(admin) == 1

    async with browser(stage) as ann:
        await ann.hello("served")
        turn = await ann.text("turn")
        assert (await ann.frame())[2].startswith(JPEG)

        # A scheduler that starts again finds the worker as it was, and starts no other one.
        await stage.fleet.scheduler.stop()
        await stage.fleet.scheduler.start()
        again = await ready_worker(admin, "served")
        assert (again.worker_start, again.job_id) == (worker.worker_start, worker.job_id)
        job = await admin.job(worker.job_id)
        assert (job.state, job.attempt_count) == (job_pb2.JOB_STATE_RUNNING, 1)
        assert (await ann.text("turn"))["is_resumed"]
        clicked = await ann.click(0.5, 0.5)
        while (await ann.frame())[1] < clicked:
            pass

        # It is killed: it is started again, and who had the turn is the first to have one.
        await stage.fleet.node_is_ready("n1")
        jobs = scheduler_pb2.JobSelector(job_ids=[worker.job_id])
        request = scheduler_pb2.SignalJobRequest(jobs=jobs, signal=signal.SIGKILL)
        await admin.stub.SignalJob(request)
        while (notice := await ann.text("notice"))["reason"] != "WORKER_LOST":
            pass
        assert "in front" in notice["message"]
        back = await ann.text("turn")
        assert back["session"] == turn["session"]
        assert (await ann.frame())[2].startswith(JPEG)
        replaced = await ready_worker(admin, "served")
        assert replaced.worker_start != worker.worker_start
        job = await admin.job(worker.job_id)
        assert (job.attempt_count, job.attempts[0].exit.signal) == (2, signal.SIGKILL)

        await _no_secret_is_told(stage, job, tmp_path)

        # It is stopped: the person is told by whom, and the GPU is free.
        stopped = await gpuctl(stage, "serve", "served", "--stop")
        assert (stopped.code, stopped.err) == (0, "")
        end = await ann.text("end")
        assert end["reason"] == "CLOSED"
        assert "stopped the model" in end["message"]

    async def is_over() -> bool:
        return (await admin.job(worker.job_id)).state == job_pb2.JOB_STATE_CANCELLED

    await until("the worker's job is over", is_over)
    assert await free_gpus(admin) == 2


async def _no_secret_is_told(stage: Stage, job: job_pb2.Job, folder: Path) -> None:
    """Neither a worker's token nor the secret of its tickets stands in the job, the store, a log or a bundle."""
    data = stage.fleet.scheduler.data
    workers = read_or_make(data)
    secrets = [
        text.encode()
        for attempt in (1, 2)
        for key in [RankKey(JobId(job.id), attempt, 0, job.attempts[-1].lineage)]
        for text in (
            workers.ticket_secret(key).hex(),
            workers.token(key),
        )
    ]
    bundle = folder / "bundle.tar.gz"
    packed = await gpuctl(stage, "doctor", "--bundle", str(bundle))
    assert bundle.exists(), packed.err
    with tarfile.open(bundle) as archive:
        members = [archive.extractfile(each) for each in archive.getmembers() if each.isfile()]
        texts = {f"bundle {number}": each.read() for number, each in enumerate(members) if each is not None}
    for words in (("job", str(job.id), "-o", "json"), ("models", "-o", "json"), ("logs", "--model", "served")):
        said = await gpuctl(stage, *words)
        assert said.code == 0, said.err
        texts[" ".join(words)] = (said.out + said.err).encode()
    assert texts["logs --model served"], "a worker logs something"
    for root in (data, stage.fleet.agents["n1"].data, stage.folder):
        texts |= {str(file): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    told = {name for name, text in texts.items() for secret in secrets if secret in text}
    assert not told


async def test_a_model_that_cannot_be_imported_has_failed_and_says_what_is_missing(
    stage: Stage, admin: Client, tmp_path: Path
) -> None:
    (tmp_path / "half.py").write_text("import no_such_package\n\n\nclass Half:\n    pass\n")
    said = await gpuctl(stage, "serve", "half:Half", "--gpus", "1", folder=tmp_path)
    assert said.code == 1
    assert "half:Half: the model needs no_such_package, which is not installed" in said.err
    assert "ModuleNotFoundError: No module named 'no_such_package'" in said.err
    models: dict[str, Any] = json.loads((await gpuctl(stage, "models", "-o", "json")).out)
    (half,) = (model for model in models["models"] if model["name"] == "Half")
    assert half["failure"]["message"].startswith("half:Half: the model needs no_such_package")
    assert any("No module named" in line for line in half["failure"]["last_lines"])
    shown = await gpuctl(stage, "models")
    assert "failed: half:Half: the model needs" in shown.out

    # Mended, it is served again, from the folder where it is.
    (tmp_path / "half.py").write_text(MENDED)
    said = await gpuctl(stage, "serve", "half:Half", "--model-arg", "grey=7", folder=tmp_path)
    assert (said.code, said.out) == (0, "model Half is ready: 1 worker with 1 seat\n"), said.err
    async with browser(stage) as ann:
        await ann.hello("Half")
        await ann.text("turn")
        assert (await ann.frame())[2].startswith(JPEG)
        await ann.say(type="leave")
        await ann.text("end")
    assert (await gpuctl(stage, "serve", "half:Half", "--stop")).code == 0
    nodes = (await admin.stub.ListNodes(scheduler_pb2.ListNodesRequest())).nodes
    assert [node.state for node in nodes] == [node_pb2.NODE_STATE_READY]


async def test_a_worker_that_cannot_start_says_what_to_install(stage: Stage, admin: Client, tmp_path: Path) -> None:
    (tmp_path / "simplejpeg.py").write_text("raise ModuleNotFoundError('gone', name='simplejpeg')\n")
    options = ("--name", "bare", "--env", f"PYTHONPATH={tmp_path}")
    said = await gpuctl(stage, "serve", "test-pattern", *options)
    why = f"a worker needs simplejpeg, which is not installed in {sys.prefix}"
    how = "Install it with: pip install 'gpufleet[inference]'"
    assert (said.code, said.out) == (1, "")
    assert f"model bare has failed: {why}. {how}" in said.err
    assert "exited with code" not in said.err
    failure = (await model_named(admin, "bare")).failure
    assert failure.message == f"{why}. {how}"
    job = await admin.job(failure.job_id)
    assert job.exit_message == failure.message, "its job says the same"


async def test_an_interpreter_that_has_no_gpufleet_is_named_by_what_it_says(stage: Stage, tmp_path: Path) -> None:
    other = tmp_path / "other-python"
    other.write_text("#!/bin/sh\necho 'other-python: No module named gpufleet' >&2\nexit 1\n")
    other.chmod(0o755)
    said = await gpuctl(stage, "serve", "test-pattern", "--name", "elsewhere", "--python", str(other))
    assert said.code == 1
    assert (
        "model elsewhere has failed: the command exited with code 1: other-python: No module named gpufleet" in said.err
    )


MENDED = """\
import numpy


class Half:
    def __init__(self, *, grey: int) -> None:
        self.grey = grey

    def open(self, session):
        return None

    def step(self, state, inputs):
        return numpy.full((48, 64, 3), self.grey, numpy.uint8)

    def close(self, state):
        pass
"""


async def test_serve_says_in_a_log_what_its_worker_waits_for_and_each_change(
    stage: Stage, admin: Client, tmp_path: Path
) -> None:
    node = (await admin.stub.ListNodes(scheduler_pb2.ListNodesRequest())).nodes[0]
    holder = await admin.submit("/bin/sh", "-c", "exec sleep 1000", cpus=node.info.cpus)
    said = tmp_path / "said"
    with said.open("wb") as file:
        serving = asyncio.create_task(gpuctl(stage, "serve", "test-pattern", "--name", "late", "--cpus", "1", err=file))

        async def says_why() -> bool:
            return "CPUs free" in said.read_text() or "CPU free" in said.read_text()

        await until("it is said what the worker waits for", says_why)
        (worker,) = (await model_named(admin, "late")).workers
        assert said.read_text() == f"late: job {worker.job_id} {worker.message}\n"
        await admin.cancel(holder)
        done = await serving
    assert (done.code, done.out.split(":")[0]) == (0, "model late is ready")
    assert (await gpuctl(stage, "serve", "late", "--stop")).code == 0


async def test_who_follows_a_model_sees_its_workers_come_and_go(stage: Stage, admin: Client, tmp_path: Path) -> None:
    options = ("test-pattern", "--name", "served", "--gpus", "1", "--max", "2")
    assert (await gpuctl(stage, "serve", *options)).code == 0
    first = (await ready_worker(admin, "served")).job_id
    shown = tmp_path / "shown"
    with shown.open("wb") as file:
        following = asyncio.create_task(gpuctl(stage, "logs", "-f", "--model", "served", err=file))
        assert (await gpuctl(stage, "serve", *options, "--min", "2", "--no-wait")).code == 0

        async def both_are_shown() -> bool:
            jobs = {worker.job_id for worker in (await model_named(admin, "served")).workers}
            labels = {line.partition("|")[0] for line in shown.read_text().splitlines()}
            return first in jobs and len(jobs) == 2 and {f"served {job}" for job in jobs} <= labels

        await until("the output of both workers is shown", both_are_shown)
        assert (await gpuctl(stage, "serve", "served", "--stop")).code == 0
        assert (await following).code == 0


HANGS = """\
import time

import numpy


class Hangs:
    seats = 2

    def open(self, session):
        return None

    def step(self, state, inputs):
        if inputs.events:
            time.sleep(3_600)
        return numpy.zeros((48, 64, 3), numpy.uint8)

    def close(self, state):
        pass
"""


@pytest.mark.slow
async def test_a_model_that_hangs_costs_the_worker_and_the_second_time_only_who_made_it_hang(
    stage: Stage, admin: Client, tmp_path: Path
) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    served = await gpuctl(stage, "serve", "hangs:Hangs", "--gpus", "1", "--turn", "1h", "--idle", "1h", folder=tmp_path)
    assert (served.code, served.out) == (0, "model Hangs is ready: 1 worker with 2 seats\n"), served.err
    job_id = (await ready_worker(admin, "Hangs")).job_id
    async with browser(stage) as ann, browser(stage) as bob, browser(stage) as cid:
        sessions: list[str] = []
        for each in (ann, bob):
            await each.hello("Hangs")
            sessions.append((await each.text("turn"))["session"])
            await each.frame()
        await cid.hello("Hangs")
        assert (await cid.text("place"))["place"] == 1

        await ann.click(0.5, 0.5)
        for each, session in zip((ann, bob), sessions, strict=True):
            assert "in front" in (await _notice(each, "WORKER_LOST"))["message"]
            again = await each.text("turn")
            assert again["session"] == session, "those who had a turn have one before who waits"
            await each.frame()
        first = (await admin.job(job_id)).attempts[0]
        assert first.exit.code == EXIT_HUNG

        await ann.click(0.5, 0.5)
        end = await _end(ann)
        assert end["reason"] == "MODEL_FAILED", end
        await _notice(bob, "WORKER_LOST")
        assert (await bob.text("turn"))["session"] == sessions[1]
        await bob.frame()
        await cid.text("turn")
        await cid.frame()
    assert (await gpuctl(stage, "serve", "Hangs", "--stop")).code == 0


async def _notice(page: Browser, reason: str) -> dict[str, Any]:
    while (said := await page.text("notice"))["reason"] != reason:
        pass
    return said


async def _end(page: Browser) -> dict[str, Any]:
    """How the session ends, past all that is told before."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            message = await page.socket.recv()
            if isinstance(message, str) and (said := json.loads(message))["type"] == "end":
                return dict(said)
