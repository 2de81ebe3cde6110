"""A backup under load, a fleet that runs on, a kill and a restore: what is lost is named, and nothing is mixed."""

from __future__ import annotations

import asyncio
import itertools
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from gpufleet.v1 import job_pb2

from scheduler.known_store import read_known
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, SchedulerProcess, clean_environment, until
from tests.store.postgres_server import PostgresServer

SUCCEEDED = job_pb2.JOB_STATE_SUCCEEDED


async def gpuctl(scheduler: SchedulerProcess, *words: str, flags: list[str] | None = None) -> tuple[int, str]:
    """`gpuctl scheduler WORDS` with the scheduler's own options: the exit code, and all that it said."""
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("gpuctl")), "scheduler", *words),
        *(scheduler.flags if flags is None else flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=clean_environment(scheduler.log.parent, {}),
        cwd=scheduler.log.parent,
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


class People:
    """Submit jobs that each print a word of their own, and know which was whose."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = itertools.count(1)
        self.words: dict[int, str] = {}
        self.ended: dict[int, str] = {}

    async def run(self) -> int:
        """One job, to its end."""
        word = f"word {next(self._numbers)}"
        job = await self._client.submit("echo", word)
        self.words[job] = word
        assert (await self._client.wait(job)).state == SUCCEEDED
        self.ended[job] = word
        return job

    @asynccontextmanager
    async def busy(self) -> AsyncIterator[None]:
        """They go on all the while, and hear the number of each job that they submit."""
        is_over = asyncio.Event()

        async def go_on() -> None:
            while not is_over.is_set():
                await self.run()

        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(go_on())
            try:
                yield
            finally:
                is_over.set()


async def back_up_and_go_on(fleet: Fleet, file: Path) -> tuple[dict[int, str], dict[int, str]]:
    """Words of jobs that had ended before a backup was made under load, and of all that ended up to a kill."""
    await fleet.add_node("n1", "--virtual-gpus", "2", "--cpus", "4")
    async with fleet.client() as client:
        people = People(client)
        for _ in range(3):
            await people.run()
        before = dict(people.ended)
        async with people.busy():
            code, said = await gpuctl(fleet.scheduler, "backup", str(file))
        assert code == 0, said
        assert "keys and tokens, and a list of" in said
        fleet.scheduler.must_run()
        code, said = await gpuctl(fleet.scheduler, "backup", "--check", str(file))
        assert code == 0 and f"{file} is whole" in said, said
        await people.run()
        last = await people.run()

        def is_remembered() -> bool:
            known = read_known(fleet.scheduler.data)
            return known is not None and known.next_job > last

        await until("the data folder has seen the last job", is_remembered)
    fleet.scheduler.kill()
    return before, people.words


async def is_as_it_was(fleet: Fleet, before: dict[int, str], words: dict[int, str]) -> None:
    """What had ended before the backup is there, no job has another's output, and new ones have new numbers."""
    await fleet.node_is_ready("n1")
    async with fleet.client() as client:
        there = {each.id: each for each in (await client.queue(include_finished=True, page_size=1_000)).jobs}
        assert before.keys() <= there.keys() <= words.keys()
        for job in before:
            assert there[job].state == SUCCEEDED
        for job in there:
            printed = b"".join(each.data for each in await client.messages(job, follow=False, all_attempts=True))
            assert printed in (b"", f"{words[job]}\n".encode()), "a job has the output of another"
        new = await client.run("echo", "of the time after")
        assert new.id == 1_001 and new.state == SUCCEEDED
        assert await client.stdout(new.id) == b"of the time after\n"


@pytest.mark.nightly
async def test_a_drill_with_sqlite(fleet: Fleet, tmp_path: Path) -> None:
    file = tmp_path / "fleet.tar"
    before, words = await back_up_and_go_on(fleet, file)
    scheduler, last = fleet.scheduler, max(words)
    await scheduler.start()
    code, said = await gpuctl(scheduler, "restore", str(file), "--replace")
    assert code == 1 and f"is in use by pid {scheduler.pid}" in said, said
    scheduler.kill()
    code, said = await gpuctl(scheduler, "restore", str(file))
    assert code == 1 and "there is a database at" in said and "--replace" in said, said

    code, said = await gpuctl(scheduler, "restore", str(file), "--replace")
    assert code == 0, said
    assert f" to {last}, submitted after the backup was made" in said, said
    (lost,) = (line for line in said.splitlines() if line.startswith("lost: ") and " to " in line)
    first = lost.partition(" jobs, ")[2].partition(" to ")[0]  # of many the first ten are named
    assert f"kept apart: output of jobs {first}, " in said and "which the backup knows nothing of" in said, said
    assert "jobs that are submitted now get numbers above 1,000" in said
    (kept,) = scheduler.data.glob("scheduler.db.before-*Z")
    assert f"kept: {kept}" in said

    await scheduler.start()  # and no word but the restore was needed
    await is_as_it_was(fleet, before, words)
    for job in words.keys() - before.keys():
        for output in scheduler.data.glob(f"output/*/{job}/1.0.*.stdout"):
            assert output.read_text() in ("", f"{words[job]}\n"), "what the lost time printed is as it was"
    await scheduler.stop()
    await scheduler.start()

    # The same file on a machine that has nothing: tokens are those of before.
    other = SchedulerProcess(tmp_path / "other" / "scheduler")
    other.data.parent.mkdir()
    code, said = await gpuctl(other, "restore", str(file))
    assert code == 0 and "this data folder has not seen how much that is" in said and "missing: " in said, said
    await other.start()
    try:
        assert other.token("admin") == scheduler.token("admin")
        async with fleet.client() as client:
            alive = {each.id for each in (await client.queue(include_finished=True, page_size=1_000)).jobs}
        elsewhere = Fleet(tmp_path / "elsewhere")
        elsewhere.scheduler = other
        async with elsewhere.client(scheduler.token("admin")) as client:
            there = {each.id for each in (await client.queue(include_finished=True, page_size=1_000)).jobs}
        assert before.keys() <= there <= alive
    finally:
        await other.stop()


@pytest.mark.nightly
@pytest.mark.postgres
async def test_a_drill_with_postgresql(tmp_path: Path, postgres: PostgresServer) -> None:
    file, url = tmp_path / "fleet.tar", postgres.url(postgres.new_database())
    async with Fleet(tmp_path / "fleet", "--store", url) as fleet:
        before, words = await back_up_and_go_on(fleet, file)
        code, said = await gpuctl(fleet.scheduler, "restore", str(file), "--replace")
        assert code == 1 and "holds a store" in said and "DROP SCHEMA public" in said, said
        flags = fleet.scheduler.flags
        flags[flags.index(url)] = postgres.url(postgres.new_database())
        code, said = await gpuctl(fleet.scheduler, "restore", str(file))
        assert code == 0 and f" to {max(words)}, submitted after the backup was made" in said, said
        assert "missing: " in said and "bytes of output in" in said, said
        await fleet.scheduler.start()
        await is_as_it_was(fleet, before, words)


async def test_the_lines_of_the_page_are_typed_as_they_stand(fleet: Fleet, tmp_path: Path) -> None:
    """In their order, with folders of the test in the place of those that the page names."""
    text = (Path(__file__).parents[3] / "docs/backup.md").read_text()
    typed = [
        line.partition("#")[0].split()
        for block in re.findall(r"```sh\n(.*?)```", text, re.S)
        for line in block.splitlines()
    ]
    assert len(typed) == 7 and all(words[:2] == ["gpuctl", "scheduler"] for words in typed)
    data = fleet.scheduler.data
    await fleet.add_node("n1")
    async with fleet.client() as client:
        assert (await client.run("echo", "hello")).exit.code == 0
    other = tmp_path / "other"
    places = {"/var/backups": str(tmp_path), "move.tar": f"{tmp_path}/move.tar", "/var/lib/gpufleet": str(data)}
    places |= {
        "/tmp/drill": f"{tmp_path}/drill",
        "postgresql://gpufleet@localhost/fleet": f"sqlite:///{other}/scheduler.db",
    }
    other.mkdir()
    for number, words in enumerate(typed):
        if number == 2:
            await fleet.scheduler.stop()
        line = " ".join(words[2:])
        for named, place in places.items():
            line = line.replace(named, place)
        elsewhere = [] if "--data" in line else ["--data", str(tmp_path / "empty" if number == 2 else data)]
        if words[2] == "backup" and "--check" in words:
            elsewhere = []
        code, said = await gpuctl(fleet.scheduler, *line.split(), flags=elsewhere)
        assert code == 0, (line, said)
        if "--verify" in words:
            assert said.startswith("all is well: 0 living and 1 ended jobs"), said
        if "/tmp/drill" in words and "restore" in words:
            assert "missing: 6 bytes of output in 1 piece, " in said, said
        if "postgresql" in " ".join(words):
            assert "nothing is lost: it is as new as the database that was here" in said, said
    await fleet.scheduler.start()


async def test_a_pipe_a_terminal_and_a_file_that_is_there(fleet: Fleet, tmp_path: Path) -> None:
    gpuctl_path = Path(sys.executable).with_name("gpuctl")
    command = f"{shlex.quote(str(gpuctl_path))} scheduler backup - --data {fleet.scheduler.data} > {tmp_path}/piped.tar"
    process = await asyncio.create_subprocess_shell(command, env=clean_environment(tmp_path, {}))
    assert await process.wait() == 0
    code, said = await gpuctl(fleet.scheduler, "backup", "--check", str(tmp_path / "piped.tar"))
    assert code == 0, said
    whole = (tmp_path / "piped.tar").read_bytes()
    code, said = await gpuctl(fleet.scheduler, "backup", str(tmp_path / "piped.tar"))
    assert code == 1 and "is there already" in said and "--force" in said, said
    assert (tmp_path / "piped.tar").read_bytes() == whole
    code, said = await gpuctl(fleet.scheduler, "backup", str(tmp_path / "piped.tar"), "--force")
    assert code == 0, said
    assert shutil.which("tar") is None or await is_listed(tmp_path / "piped.tar")


async def is_listed(file: Path) -> bool:
    """Whether an ordinary tar reads it."""
    process = await asyncio.create_subprocess_exec(
        "tar", "-tf", str(file), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    names = said.decode().splitlines()
    return process.returncode == 0 and names[0] == "tables/meta/000001.jsonl.gz" and names[-1] == "manifest.json"
