"""Two schedulers that are started at the same moment, again and again: `python -m tests.leading.at_once --rounds 100`.

In each round exactly one leads and the other stands by; the one that leads is ended, and the other one leads and beats.
Every other round they are killed, else they are stopped, which leaves no row behind that anybody waits for.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import shutil
import tempfile
import time
from pathlib import Path

import psycopg

from tests.e2e.processes import SchedulerProcess, until
from tests.leading.pair import PATIENT, copy_keys
from tests.store.postgres_server import PostgresServer, needed_programs

LEADING, STANDING_BY = "leading", "standing by"
SERVES = re.compile(r"\bserving\b.*\bterm=(\d+)")


class Both:
    """Two data folders with the same keys, and the store of both."""

    def __init__(self, folder: Path, url: str) -> None:
        folder.mkdir(exist_ok=True)
        self.url = url
        flags, environment = ("--store", url, "--standby"), dict([PATIENT])
        self.one, self.two = (SchedulerProcess(folder / name, flags, environment) for name in ("one", "two"))
        self.one.name, self.two.name = "scheduler one", "scheduler two"

    async def prepare(self) -> None:
        """Have the first one make the store and the keys."""
        self.one.spawn("--port", "0")
        await until("the first one serves", lambda: self._roles(self.one)[0] == LEADING)
        assert await self.one.stop() == 0
        copy_keys(self.one, self.two)

    async def go_round(self, *, is_killed: bool) -> None:
        """Start both at once, end the one that leads, and then the other."""
        term = self.term()
        for each in (self.one, self.two):
            each.spawn("--port", "0")
        await until("one leads, the other stands by", lambda: self._roles(self.one, self.two) == [LEADING, STANDING_BY])
        assert self.term() == term + 1
        pair = (self.one, self.two)
        leader, standby = pair if self._roles(self.one) == [LEADING] else pair[::-1]
        await self._end(leader, is_killed)
        await until("the other one leads", lambda: standby.must_run() and self._roles(standby) == [LEADING])
        assert self.term() == term + 2
        beat = self._beat(standby)
        await until("it beats", lambda: self._beat(standby) > beat)
        await self._end(standby, is_killed)

    def must_have_led_once_a_term(self) -> None:
        """No term had two schedulers."""
        terms = [int(term) for each in (self.one, self.two) for term in SERVES.findall(each.log_text())]
        assert sorted(terms) == list(range(1, self.term() + 1)), terms
        for each in (self.one, self.two):
            assert "Traceback" not in each.log_text(), each.tail()

    def term(self) -> int:
        """The newest term in the store."""
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT term FROM meta").fetchone()
        assert row is not None
        return int(row[0])

    def end(self) -> None:
        """Whatever still runs is killed."""
        for each in (self.one, self.two):
            each.kill()

    @staticmethod
    async def _end(scheduler: SchedulerProcess, is_killed: bool) -> None:
        if is_killed:
            scheduler.kill()
        else:
            assert await scheduler.stop() == 0, scheduler.tail()

    def _roles(self, *schedulers: SchedulerProcess) -> list[str]:
        """What they say of themselves in the store, the one that leads first. Never do two lead."""
        pids = [each.pid for each in schedulers if each.must_run()]
        try:
            with psycopg.connect(self.url) as connection:
                query = "SELECT role FROM scheduler_run WHERE pid = ANY(%s) ORDER BY role"
                roles = [row[0] for row in connection.execute(query, (pids,))]
        except psycopg.errors.UndefinedTable:
            return [""]
        assert roles.count(LEADING) <= 1, roles
        return roles or [""]

    def _beat(self, scheduler: SchedulerProcess) -> int:
        with psycopg.connect(self.url) as connection:
            row = connection.execute("SELECT beat FROM scheduler_run WHERE pid = %s", (scheduler.pid,)).fetchone()
        return 0 if row is None else int(row[0])


async def go_rounds(both: Both, count: int) -> None:
    """So many rounds, and what holds of all of them."""
    try:
        await both.prepare()
        for number in range(count):
            await both.go_round(is_killed=number % 2 == 0)
        both.must_have_led_once_a_term()
    finally:
        both.end()


def main() -> None:
    """Run it on a PostgreSQL of its own, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    given = parser.parse_args()
    folder, began_s = Path(tempfile.mkdtemp(prefix="gpufleet-at-once-")), time.monotonic()
    server = PostgresServer(needed_programs(), Path(tempfile.mkdtemp(prefix="gpufleet-postgres-")))
    server.start()
    try:
        asyncio.run(go_rounds(Both(folder, server.url(server.new_database())), given.rounds))
        print(f"{given.rounds} rounds: one led each time; {time.monotonic() - began_s:.0f} s")
    finally:
        server.stop()
        shutil.rmtree(folder)
        shutil.rmtree(server.folder)


if __name__ == "__main__":
    main()
