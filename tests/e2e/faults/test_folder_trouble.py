"""What goes wrong with a folder on its way: it changes, disks fill up, the laptop sleeps, the cache is too small."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from tests.e2e.client import Client
from tests.e2e.disks import Disk, small_disk
from tests.e2e.environments import wheel
from tests.e2e.fleet import Fleet
from tests.e2e.jobs.test_folders import gpuctl
from tests.e2e.processes import clean_environment, until

SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED
DISK_BYTES = 48 * 2**20
PASSES_BYTES = 4 * 2**20
CACHE_BYTES = 10_000_000
FILES_OF_MANY = 20_000
COUNT = "find . -type f | wc -l; cat 199/19999"


class Gate:
    """A way to the scheduler that lets so many bytes up, and the rest when it is opened."""

    def __init__(self, target: str, passes_bytes: int) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._left = passes_bytes
        self._is_open = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_full = False
        """Whether somebody waits to send more."""
        self.was_let_go_of = False
        """Whether the scheduler has ended a connection by itself."""

    def open(self) -> None:
        """Let all through from now on."""
        self._is_open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there_reader, there_writer = await asyncio.open_connection(self._host, self._port)
        up = asyncio.create_task(self._up(reader, there_writer))
        try:
            with suppress(ConnectionError):
                while data := await there_reader.read(65_536):
                    writer.write(data)
                    await writer.drain()
            self.was_let_go_of |= not up.done()
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            for each in (writer, there_writer):
                each.close()
            self._tasks.discard(task)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            self._left -= len(data)
            if self._left < 0 and not self._is_open.is_set():
                self.is_full = True
                await self._is_open.wait()
            writer.write(data)
            await writer.drain()

    async def end(self) -> None:
        """End all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def gate_to(fleet: Fleet) -> AsyncIterator[tuple[Gate, str]]:
    """A gate, and where it listens."""
    gate = Gate(fleet.scheduler.address, PASSES_BYTES)
    server = await asyncio.start_server(gate.serve, "127.0.0.1", 0)
    try:
        yield gate, f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await gate.end()


@contextmanager
def submitting(fleet: Fleet, folder: Path, address: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`gpuctl WORDS` in the folder, by that address; killed where it has not ended."""
    known = {"GPUCTL_SCHEDULER": address, "GPUCTL_TOKEN": fleet.scheduler.token("admin")}
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "gpufleet.cli", *words],
        env=clean_environment(fleet.folder, known),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def large(folder: Path, count: int = 10) -> Path:
    """A folder of files of 8 MiB, of bytes that nobody has sent."""
    folder.mkdir()
    for number in range(count):
        (folder / str(number)).write_bytes(os.urandom(8 * 2**20))
    return folder


def digest_of(folder: Path) -> str:
    """The SHA-256 of all its files behind each other."""
    return hashlib.sha256(b"".join(file.read_bytes() for file in sorted(folder.iterdir()))).hexdigest()


@pytest.fixture
def disk() -> Iterator[Disk]:
    with small_disk(DISK_BYTES) as mounted:
        yield mounted


async def test_a_file_that_changes_while_it_is_sent_is_told_and_nothing_is_submitted(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    folder = large(tmp_path / "project")
    words = ("submit", "--upload", ".", "--", "true")
    async with gate_to(fleet) as (gate, address):
        with submitting(fleet, folder, address, *words) as process:
            await until("it sends", lambda: gate.is_full)
            with (folder / "9").open("r+b") as file:
                file.write(b"another beginning")
            gate.open()
            _, said = await asyncio.to_thread(process.communicate)
            assert process.returncode != 0
            assert "'9' changed while the folder was read; nothing was submitted" in said
    assert not (await admin.queue(include_finished=True)).jobs
    again = await gpuctl(fleet, folder, "submit", "--upload", ".", "--hold", "--", "true")
    assert again.returncode == 0, again.stderr


@pytest.mark.slow
async def test_a_laptop_that_sleeps_while_it_sends_goes_on_when_it_wakes(
    fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    await fleet.add_node("n1")
    folder = large(tmp_path / "project")
    async with gate_to(fleet) as (gate, address):
        with submitting(fleet, folder, address, "run", "--upload", ".", "--", "cat * | sha256sum") as process:
            await until("it sends", lambda: gate.is_full)
            process.send_signal(signal.SIGSTOP)
            gate.open()
            # Nobody answers its probes: the scheduler lets go of it, as of anybody who has vanished.
            await until("the scheduler has let go of it", lambda: gate.was_let_go_of)
            assert not (await admin.queue(include_finished=True)).jobs
            process.send_signal(signal.SIGCONT)
            out, said = await asyncio.to_thread(process.communicate)
    assert process.returncode == 0, said
    assert out == f"{digest_of(folder)}  -\n"
    assert "Traceback" not in said


async def test_after_a_scheduler_was_killed_in_the_middle_of_an_upload_the_same_line_sends_the_rest(
    fleet: Fleet, tmp_path: Path
) -> None:
    folder = large(tmp_path / "project")
    words = ("run", "--upload", ".", "--", "cat * | sha256sum")
    async with gate_to(fleet) as (gate, address):
        with submitting(fleet, folder, address, *words) as process:
            await until("it sends", lambda: gate.is_full)
            fleet.scheduler.kill()
            gate.open()
            _, said = await asyncio.to_thread(process.communicate)
            assert process.returncode != 0
            assert "sends 83.9MB in 160 chunks" in said and "Traceback" not in said, said
    await fleet.scheduler.start()
    await fleet.add_node("n1")
    done = await gpuctl(fleet, folder, *words)
    assert (done.returncode, done.stdout) == (0, f"{digest_of(folder)}  -\n"), done.stderr
    assert "; sends " in done.stderr and "; sends 83.9MB" not in done.stderr
    assert not list((fleet.scheduler.data / "blobs").rglob("*.part"))


async def test_a_full_disk_of_the_scheduler_refuses_a_folder_and_with_room_the_same_line_works(
    tmp_path: Path, disk: Disk
) -> None:
    folder = large(tmp_path / "project", count=3)
    store = f"sqlite:///{tmp_path / 'scheduler.db'}"
    keeps = {"GPUCTL_SCHEDULER_FILES_FREE_BYTES_MIN": "1MB"}
    async with Fleet(tmp_path / "fleet", "--store", store, environment=keeps, data=disk.path / "scheduler") as fleet:
        await fleet.add_node("n1")
        disk.fill()
        refused = await gpuctl(fleet, folder, "submit", "--upload", ".", "--", "true")
        assert refused.returncode != 0 and not refused.stdout
        assert "Traceback" not in refused.stderr, refused.stderr
        assert "has 0 bytes free" in refused.stderr and "goes on where it stands" in refused.stderr, refused.stderr
        disk.make_room()
        done = await gpuctl(fleet, folder, "run", "--upload", ".", "--", "cat * | wc -c")
        assert (done.returncode, done.stdout.strip()) == (0, str(3 * 8 * 2**20)), done.stderr


async def test_a_full_disk_of_the_node_has_the_job_wait_and_with_room_it_runs(
    disk: Disk, fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    folder = large(tmp_path / "project", count=2)
    agent = await fleet.add_node("n1", data=disk.path / "agent")
    disk.fill()
    submitted = await gpuctl(fleet, folder, "submit", "--upload", ".", "--", "cat * | wc -c")
    assert submitted.returncode == 0, submitted.stderr
    job_id = int(submitted.stdout)

    async def is_refused() -> bool:
        return "AttemptVoided" in await admin.kinds(job_id)

    await until("the node has said that it cannot", is_refused)
    agent.must_run()
    disk.make_room()
    assert (await admin.wait(job_id)).state == SUCCEEDED
    assert (await admin.stdout(job_id)).strip() == str(2 * 8 * 2**20).encode()


@pytest.mark.nightly
async def test_a_disk_that_fills_while_an_environment_is_made_fails_nobody(
    disk: Disk, fleet: Fleet, admin: Client, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    wheel(project / "wheels", "hello")
    (project / "requirements.txt").write_text("--no-index\n--find-links wheels\ngreeting==1.0\n")
    await fleet.add_node("n1", data=disk.path / "agent")
    full = f"dd if=/dev/zero of=$VIRTUAL_ENV/ballast bs=1M; test -e {tmp_path}/room"
    submitted = await gpuctl(fleet, project, "submit", "--upload", ".", "--setup", full, "--", "echo ran")
    assert submitted.returncode == 0, submitted.stderr
    job_id = int(submitted.stdout)

    async def is_told() -> bool:
        return "AttemptVoided" in await admin.kinds(job_id)

    await until("the node has said that its disk is full", is_told)
    assert (await admin.job(job_id)).state != job_pb2.JOB_STATE_FAILED
    await admin.cancel(job_id)
    after = await gpuctl(
        fleet,
        project,
        "run",
        "--upload",
        ".",
        "--requirements",
        "requirements.txt",
        "--",
        "python -c 'import greeting'",
    )
    assert after.returncode == 0, after.stderr


@pytest.mark.slow
async def test_many_small_files_go_along_and_too_many_are_refused_with_where_they_are(
    shared_fleet: Fleet, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    for number in range(FILES_OF_MANY):
        file = folder / str(number // 100) / str(number)
        if number % 100 == 0:
            file.parent.mkdir(parents=True)
        file.write_text(f"{number}\n")
    done = await gpuctl(shared_fleet, folder, "run", "--upload", ".", "--", COUNT)
    assert (done.returncode, done.stdout.split()) == (0, [str(FILES_OF_MANY), "19999"]), done.stderr
    (folder / "one-more").touch()
    refused = await gpuctl(shared_fleet, folder, "submit", "--upload", ".", "--", "true")
    assert refused.returncode == 4 and not refused.stdout
    assert "holds more than 20,000 files" in refused.stderr, refused.stderr
    assert ".gpufleetignore" in refused.stderr and "GPUCTL_UPLOAD_FILES_MAX" in refused.stderr


async def test_a_cache_that_is_too_small_for_what_runs_at_once_takes_nothing_from_anybody(
    fleet: Fleet, tmp_path: Path
) -> None:
    await fleet.add_node("n1", "--cpus", "4", environment={"GPUCTL_AGENT_FILES_CACHE_BYTES_MAX": "10MB"})
    folders = [large(tmp_path / f"project-{number}", count=2) for number in range(4)]
    words = ("run", "--cpus", "1", "--upload", ".", "--", "cat * | sha256sum")
    done = await asyncio.gather(*(gpuctl(fleet, each, *words) for each in folders))
    for folder, one in zip(folders, done, strict=True):
        assert (one.returncode, one.stdout) == (0, f"{digest_of(folder)}  -\n"), one.stderr
    cache = fleet.agents["n1"].data / "files" / "cache"

    def is_within() -> bool:
        with suppress(FileNotFoundError):  # one that gives way at this moment
            return sum(each.stat().st_size for each in cache.iterdir()) <= CACHE_BYTES
        return False

    await until("the cache keeps to its bound", is_within)
