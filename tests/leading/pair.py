"""Two schedulers on one PostgreSQL: one that leads and one that stands by, each a process with a data folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg

from tests.e2e.fleet import Fleet
from tests.e2e.processes import SchedulerProcess, until
from tests.ports import kept_port

PATIENT = ("GPUCTL_SCHEDULER_SILENCE_MAX", "60s")
"""For tests in which nobody hangs: on a busy machine a leader may not get to beat for seconds."""

KEYS = ("worker.key", "secrets.key")


class Pair(Fleet):
    """A fleet whose scheduler has a standby. They have the same port, one after the other, unless told otherwise."""

    def __init__(self, folder: Path, url: str, *, silence_max: str = PATIENT[1], has_own_port: bool = False) -> None:
        environment = {PATIENT[0]: silence_max}
        super().__init__(folder, "--store", url, environment=environment)
        self.url = url
        self.other = SchedulerProcess(folder / "other", ("--store", url, "--standby"), environment)
        self.other.name = "the other scheduler"
        self._has_own_port = has_own_port

    async def __aenter__(self) -> Pair:
        await super().__aenter__()
        copy_keys(self.scheduler, self.other)
        own = f"127.0.0.1:{kept_port()}"
        self.other.address = own if self._has_own_port else self.scheduler.address
        await self.stand_by()
        return self

    async def stand_by(self) -> None:
        """Start the other one, and return once it stands by and is warm."""
        self.other.spawn("--port", self.other.address.rpartition(":")[2])
        await self.is_warm(self.other)

    async def is_warm(self, standby: SchedulerProcess) -> None:
        """Return once that one has everything that is stored."""

        def has_all() -> bool:
            standby.must_run()
            row = self.row_of(standby)
            return row is not None and row[0] == "standing by" and row[1] == self.newest_sequence()

        await until(f"{standby.name} is warm", has_all)

    def row_of(self, scheduler: SchedulerProcess) -> tuple[str, int, str] | None:
        """Role, sequence and problem of a scheduler, as the store has them."""
        query = "SELECT role, sequence, problem FROM scheduler_run WHERE pid = %s"
        with psycopg.connect(self.url) as connection:
            row = connection.execute(query, (scheduler.pid,)).fetchone()
        return None if row is None else (row[0], row[1], row[2])

    def newest_sequence(self) -> int:
        """That of the newest record in the store."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT record_seq FROM meta").fetchone()
        assert row is not None
        return int(row[0])

    def term(self) -> int:
        """The newest term in the store."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT term FROM meta").fetchone()
        assert row is not None
        return int(row[0])

    async def serves(self, scheduler: SchedulerProcess) -> None:
        """Return once that one serves."""
        listening = scheduler.data / "listening"
        await until(f"{scheduler.name} serves", lambda: scheduler.must_run() and listening.exists())
        scheduler.address = listening.read_text().strip()

    async def end(self) -> None:
        """End every process."""
        for each in (self.other, self.scheduler):
            if each.process is not None and each.process.poll() is not None:
                each.process = None
        self.other.kill()
        await super().end()

    def report(self) -> str:
        """The log of the other one beside those of all."""
        return f"{super().report()}\n\nlog of {self.other.name}:\n{self.other.tail()}"


def copy_keys(leader: SchedulerProcess, standby: SchedulerProcess) -> None:
    """What an operator does before the first start of a standby."""
    standby.data.mkdir(mode=0o700, exist_ok=True)
    for name in KEYS:
        if (leader.data / name).exists():
            shutil.copy2(leader.data / name, standby.data / name)
