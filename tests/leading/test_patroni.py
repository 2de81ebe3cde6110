"""docs/patroni.md, typed: etcd, two PostgreSQL kept by Patroni, two schedulers, a switchover and a failover."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from gpufleet.v1 import scheduler_pb2

from tests.e2e.client import Client, dial
from tests.e2e.processes import clean_environment, until
from tests.leading.pair import PATIENT
from tests.ports import kept_port
from tests.store.postgres_server import needed_programs, unprivileged_account

pytestmark = [pytest.mark.nightly, pytest.mark.postgres, pytest.mark.slow]

PAGE = (Path(__file__).parents[2] / "docs" / "patroni.md").read_text()
PROGRAMS = {"etcd": "etcd-server", "patroni": "patroni", "patronictl": "patroni", "psql": "postgresql-client"}
"""What the page types, and the package that has it."""

STAYING = ("etcd", "patroni", "gpuctl")
"""Programs that run until they are ended."""

PORTS = ("2379", "2380", "8008", "8009", "5433", "5434", "50051", "50052")
COMMAND_SECONDS_MAX = 120
LOG_CHARS = 3_000


class Terminals:
    """A person's terminals in an empty folder, with free ports in place of the page's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.account = unprivileged_account()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self._words = {port: str(kept_port()) for port in PORTS}
        self._words["/usr/lib/postgresql/15/bin"] = str(needed_programs())
        self._environment = clean_environment(folder, {"HOME": str(folder), **dict([PATIENT])})
        if self.account is not None:
            os.chown(folder, self.account.pw_uid, self.account.pw_gid)

    def as_here(self, text: str) -> str:
        """What the page says, for here."""
        pattern = "|".join(map(re.escape, self._words))
        return re.sub(rf"(?<!\d)(?:{pattern})(?!\d)", lambda found: self._words[found[0]], text)

    def type(self, line: str) -> str:
        """Type a line, which must come to its end well unless it runs on; what it printed."""
        program, *words = shlex.split(self.as_here(line))
        if program == "export":
            name, _, value = words[0].partition("=")
            self._environment[name] = value
            return ""
        if program not in STAYING:
            code, printed = self.printed(line)
            assert code == 0, f"{line}\n{printed}"
            return printed
        command = (
            [sys.executable, "-P", "-m", "gpufleet.scheduler", *words[1:]] if program == "gpuctl" else [program, *words]
        )
        with (self.folder / f"{len(self.running)}.log").open("wb") as log:
            self.running[line] = self._started(command, log.fileno(), has_account=program != "gpuctl")
        return ""

    def printed(self, line: str) -> tuple[int, str]:
        """The exit code of a line that comes to its end, and what it printed."""
        is_of_schedulers = line.startswith(("cp ", "mkdir "))
        with tempfile.TemporaryFile() as out:
            process = self._started(
                ["/bin/sh", "-c", self.as_here(line)], out.fileno(), has_account=not is_of_schedulers
            )
            code = process.wait(COMMAND_SECONDS_MAX)
            out.seek(0)
            return code, out.read().decode(errors="replace")

    def _started(self, command: list[str], out: int, *, has_account: bool) -> subprocess.Popen[bytes]:
        account = self.account if has_account else None
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
        )

    def kill(self, line: str) -> None:
        """End what a line started, as if its machine were lost."""
        process = self.running.pop(line)
        process.kill()
        process.wait()
        if line.startswith("patroni "):
            pid_file = self.folder / line.split()[1].replace(".yml", "") / "postmaster.pid"
            if pid_file.exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid_file.read_text().split()[0]), signal.SIGKILL)

    def end(self) -> None:
        """End everything, the newest first."""
        for line in reversed([*self.running]):
            self.kill(line)

    def log_of(self, line: str) -> str:
        """What a program that runs has said."""
        number = [*self.running].index(line)
        return (self.folder / f"{number}.log").read_text(errors="replace")

    def logs(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n{log.read_text(errors='replace')[-LOG_CHARS:]}" for log in logs)


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    """An empty folder; whatever was started in it is ended."""
    for program, package in PROGRAMS.items():
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed, so no Patroni: apt-get install {package}")
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-patroni-"))
    own = Terminals(folder)
    try:
        yield own
    finally:
        own.end()
        shutil.rmtree(folder)


async def submitted(client: Client, ids: list[int]) -> None:
    """Submit one more job, by an id of its own, however often it is refused meanwhile."""
    specs, request_id = [client.spec("true")], f"request {len(ids)}"

    async def is_taken() -> bool:
        try:
            answer = await client.submit_specs(specs, request_id=request_id)
        except grpc.aio.AioRpcError as refused:
            assert refused.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED), refused
            return False
        ids.append(answer.first_job_id)
        return True

    await until(f"{request_id} is acknowledged", is_taken)


async def each_is_there_once(client: Client, ids: list[int]) -> None:
    """All jobs that were acknowledged, and no other."""
    assert sorted(job.id for job in (await client.queue()).jobs) == ids == sorted(set(ids))


async def test_what_the_page_tells_to_type_keeps_every_job_through_a_switchover_and_a_failover(
    terminals: Terminals,
) -> None:
    try:
        await _type_the_page(terminals)
    except BaseException:
        print(terminals.logs())
        raise


async def _type_the_page(terminals: Terminals) -> None:
    folder, lines = terminals.folder, re.findall(r"^\$ (.*)$", PAGE, re.MULTILINE)
    (written,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (folder / "db1.yml").write_text(terminals.as_here(written))
    list_servers = "patronictl -c db1.yml list"
    switchover = next(line for line in lines if " switchover " in line)
    first, second = (line for line in lines if line.startswith("gpuctl scheduler"))
    one, two = (line for line in lines if line.startswith("patroni "))

    def has_role(server: str, role: str) -> bool:
        return re.search(rf"\| {server} .*\| {role} +\|", terminals.printed(list_servers)[1]) is not None

    for line in lines[: lines.index(switchover)]:
        terminals.type(line)
        if line == one:
            await until("the first server leads", lambda: has_role("db1", "Leader"))
        elif line == two:
            await until("the second has what it has", lambda: has_role("db2", "Sync Standby"))
        elif line == first:
            await until("a scheduler serves", (folder / "sched1" / "listening").exists)
        elif line == second:
            await until("the other one stands by", lambda: "standing by" in terminals.log_of(second))
    token = (folder / "sched1" / "admin.token").read_text().strip()
    ids, seen = list[int](), set[int]()
    async with dial(terminals.as_here("127.0.0.1:50051"), token) as channel:
        client = Client(channel, folder, seen)
        await submitted(client, ids)
        terminals.type(switchover)
        await submitted(client, ids)
        await until("the servers have changed places", lambda: has_role("db2", "Leader"))
        await until("the first one follows", lambda: has_role("db1", "Sync Standby"))
        await submitted(client, ids)
        terminals.kill(two)
        await submitted(client, ids)
        await each_is_there_once(client, ids)
        term = (await client.stub.GetServerInfo(scheduler_pb2.GetServerInfoRequest())).term
        assert term == 1, "the scheduler that led has led all the time"
    terminals.kill(first)
    await until("the other one leads", (folder / "sched2" / "listening").exists)
    async with dial(terminals.as_here("127.0.0.1:50052"), token) as channel:
        client = Client(channel, folder, seen)
        await submitted(client, ids)
        await each_is_there_once(client, ids)
        client.forget()
