"""A start while the database is away, starts, recovers or refuses: it waits where that helps, and is refused at once
where it does not."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from gpufleet.config.scheduler_settings import SchedulerSettings
from gpufleet.host.service_manager import ServiceManager
from gpufleet.telemetry.metrics import OFF
from scheduler.known_store import Memory
from scheduler.leading import opening, starting
from scheduler.store.errors import StoreLocked, StoreUnavailable
from scheduler.store.opening import open_store
from scheduler.store.reading import Began, Meta
from scheduler.store.server_state import CONNECTIONS_REFUSED_MAX, ServerState, server_state
from tests.e2e.processes import SchedulerProcess, until
from tests.store.postgres_server import PostgresServer, needed_programs

pytestmark = pytest.mark.postgres

NOBODY_LISTENS = 1
"""A port at which nothing is."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which does not run yet."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-postgres-"))
    try:
        own = PostgresServer(needed_programs(), folder)
        yield own
        if own.is_running:
            own.stop()
    finally:
        shutil.rmtree(folder)


def reached_by_name(name: str) -> str:
    return f"postgresql://gpufleet@{name}/fleet"


async def test_a_start_waits_for_a_database_that_is_away_recovers_or_takes_no_writes_yet(
    tmp_path: Path, server: PostgresServer
) -> None:
    server.start()
    url = server.url(server.new_database())
    server.stop()
    settings = tmp_path / "scheduler.toml"
    settings.write_text('[log]\nlevel = "info"\n')
    scheduler = SchedulerProcess(tmp_path / "data", ("--store", url, "--config", str(settings)))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as service_manager:
        service_manager.bind(str(tmp_path / "notify"))
        service_manager.setblocking(False)
        scheduler.environment["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        scheduler.spawn("--port", "0")
        try:
            await waits(scheduler, ServerState.SILENT)
            said = await asyncio.get_running_loop().sock_recv(service_manager, 4096)
            assert said.startswith(b"EXTEND_TIMEOUT_USEC=60000000\nSTATUS=waits for the database"), said

            settings.write_text('[log]\nlevel = "debug"\n')
            scheduler.signal(signal.SIGHUP)
            await until("it has read its settings again", lambda: "setting changed" in scheduler.log_text())

            server.follow_nobody()
            server.start("hot_standby=off", is_awaited=False)
            await waits(scheduler, ServerState.STARTING)
            server.stop()

            server.start("hot_standby=on")
            await waits(scheduler, ServerState.READ_ONLY)
            several = url.replace("@127.0.0.1:", f"@127.0.0.1:{NOBODY_LISTENS},127.0.0.1:")
            assert server_state(f"{several}?target_session_attrs=read-write") is ServerState.READ_ONLY

            server.promote()
            await until("it serves", lambda: scheduler.must_run() and (scheduler.data / "listening").exists())
            assert server_state(several) is ServerState.WRITABLE
            assert await scheduler.stop() == 0
        finally:
            scheduler.kill()
    log = scheduler.log_text()
    assert "the database takes writes" in log
    assert log.count(f"waiting for the database: it {ServerState.STARTING.value}") == 1, "once, and not at each try"
    assert "Traceback" not in log


async def waits(scheduler: SchedulerProcess, state: ServerState) -> None:
    """Return once the log of a start says that it waits, and for what."""
    line = f"waiting for the database: it {state.value}"
    await until(f"it says: {line}", lambda: scheduler.must_run() and line in scheduler.log_text())


def test_a_server_that_comes_up_behind_a_connection_that_it_refused_has_not_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, refused = psycopg.connect, [psycopg.OperationalError("the database system is starting up")]

    def come_up(*arguments: Any, **options: Any) -> Any:
        if refused:
            raise refused.pop()
        return connect(*arguments, **options)

    monkeypatch.setattr(psycopg, "connect", come_up)
    assert server_state(url) is ServerState.WRITABLE
    refused += [psycopg.OperationalError("no such account")] * CONNECTIONS_REFUSED_MAX
    assert server_state(url) is ServerState.REFUSING


async def test_a_start_that_waits_ends_when_it_is_told_to(tmp_path: Path) -> None:
    scheduler = SchedulerProcess(tmp_path / "data", ("--store", f"postgresql://a@127.0.0.1:{NOBODY_LISTENS}/b"))
    scheduler.spawn("--port", "0")
    await waits(scheduler, ServerState.SILENT)
    assert await scheduler.stop() == 0
    assert "Traceback" not in scheduler.log_text()


async def test_a_standby_reads_its_settings_again(tmp_path: Path, url: str) -> None:
    settings = tmp_path / "scheduler.toml"
    settings.write_text('[log]\nlevel = "info"\n')
    standby = SchedulerProcess(tmp_path / "data", ("--store", url, "--config", str(settings), "--standby"))
    try:
        with closing(open_store(url)):  # somebody leads
            standby.spawn("--port", "0")
            await until("it stands by", lambda: standby.must_run() and "standing by" in standby.log_text())
            settings.write_text('[log]\nlevel = "loud"\n')
            standby.signal(signal.SIGHUP)
            await until("wrong ones are refused", lambda: "settings were not reloaded" in standby.log_text())
            settings.write_text('[log]\nlevel = "debug"\n')
            standby.signal(signal.SIGHUP)
            await until(
                "it has read them again", lambda: standby.must_run() and "setting changed" in standby.log_text()
            )
            assert await standby.stop() == 0
    finally:
        standby.kill()


async def test_a_database_that_refuses_is_not_waited_for(tmp_path: Path, server: PostgresServer) -> None:
    access = server.folder / "data" / "pg_hba.conf"
    access.write_text(f"host all locked 127.0.0.1/32 scram-sha-256\n{access.read_text()}")
    server.start()
    url = server.url(server.new_database())
    with psycopg.connect(url) as connection:
        connection.execute("CREATE ROLE locked LOGIN PASSWORD 'right'")
    password, database = url.replace("gpufleet@", "locked:wrong@"), f"{url}_of_nobody"
    refused = 'password authentication failed for user "locked"'
    wrong = ((password, refused), (database, "does not exist"), (password, refused))
    started = [SchedulerProcess(tmp_path / str(number), ("--store", each)) for number, (each, _) in enumerate(wrong)]
    for scheduler, more in zip(started, ((), (), ("--standby",)), strict=True):
        scheduler.spawn("--port", "0", *more)
    for scheduler, (_, why) in zip(started, wrong, strict=True):
        assert await scheduler.ended() == 1, scheduler.tail()
        log = scheduler.log_text()
        assert "the store cannot be used" in log and why in log, log
        assert "waiting" not in log and ":wrong@" not in log


@pytest.mark.parametrize(
    ("code", "state"), [(socket.EAI_NONAME, ServerState.UNKNOWN), (socket.EAI_AGAIN, ServerState.UNRESOLVED)]
)
def test_a_name_that_nobody_knows_is_told_from_one_that_cannot_be_looked_up_now(
    monkeypatch: pytest.MonkeyPatch, code: int, state: ServerState
) -> None:
    def look_up(*_: object, **__: object) -> None:
        raise socket.gaierror(code, "as the test has it")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    assert server_state(reached_by_name("db.invalid")) is state
    assert state.may_pass is (state is ServerState.UNRESOLVED)


async def test_a_start_waits_for_so_long_and_no_longer(tmp_path: Path) -> None:
    settings = SchedulerSettings(data=tmp_path, store=f"postgresql://a@127.0.0.1:{NOBODY_LISTENS}/b")
    clock_s = iter([0.0, 1.0, starting.DATABASE_SECONDS_MAX + 1.0])
    with pytest.raises(StoreUnavailable):
        await starting.open_when_there(
            settings, Memory(tmp_path), OFF, ServiceManager({}), asyncio.Event(), monotonic_s=lambda: next(clock_s)
        )
    assert next(clock_s, None) is None, "it tried more than once"


async def test_without_psycopg_a_scheduler_with_sqlite_serves_and_one_for_postgresql_says_what_to_install(
    tmp_path: Path,
) -> None:
    lacking = (
        "import runpy, sys; sys.modules['psycopg'] = None; runpy.run_module('gpufleet.scheduler', run_name='__main__')"
    )
    for number, more in enumerate([("--standby",), ()]):
        scheduler = SchedulerProcess(tmp_path / str(number), ("--store", "postgresql://a@127.0.0.1/b", *more))
        scheduler.program = ("-P", "-c", lacking)
        scheduler.spawn("--port", "0")
        assert await scheduler.ended() == 1
        assert "pip install 'gpufleet[postgres]'" in scheduler.log_text(), scheduler.tail()
        assert "Traceback" not in scheduler.log_text()
    embedded = SchedulerProcess(tmp_path / "embedded")
    embedded.program = ("-P", "-c", lacking)
    try:
        await embedded.start()
        assert await embedded.stop() == 0, embedded.tail()
    finally:
        embedded.kill()


class Unsteady(Memory):
    """Does not get to look at the store the first time, as when the server is lost just then."""

    has_tried = False

    def admit(self, found: Meta | None, starts: Sequence[Began]) -> int:
        if not self.has_tried:
            self.has_tried = True
            raise StoreUnavailable("the server is lost")
        return super().admit(found, starts)


async def test_who_could_not_open_the_store_at_first_beats_once_it_leads(tmp_path: Path, url: str) -> None:
    """Both were started at once and the other was faster; then the server was lost while it had the lock."""
    shared = opening.shared_of(SchedulerSettings(data=tmp_path, store=url))
    memory = Unsteady(tmp_path)
    with closing(open_store(url)), pytest.raises(StoreLocked):
        opening.open_shared(shared, memory)
    with pytest.raises(StoreUnavailable, match="is lost"):
        opening.open_shared(shared, memory)
    with closing(opening.Opened(opening.open_shared(shared, memory), shared)) as opened:

        def beats() -> int:
            row = shared.beats.last.run(shared.own.identity)
            return 0 if row is None else row.beat

        await until("it beats again and again", lambda: beats() > 2)
        assert opened.store.term == 2
