"""A replica with a real program, real sockets and a fake scheduler: what it says of itself, and how it ends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from gpufleet.v1 import sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address, parse_address
from gpufleet.net.listening import bound
from gpufleet.net.program_ports import choose_port
from gpufleet.security.tickets import connect_key, connect_line
from gpufleet.security.tokens import make_token
from inference.core import replicas
from inference.http_service import options, shim
from inference.http_service.shim import Shim
from inference.worker import DRAINING, FAILED, LOADING, READY
from tests.inference.http_service.endpoints import Reader, Writer, read_all
from tests.inference.serving import WAIT_S_MAX, until
from tests.inference.test_link import FakeScheduler, scheduler

SECRET = bytes(range(32))

PROGRAM = """
import http.server, os, sys

class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        ill = os.path.exists("ill")
        body = f"{self.path} of {os.environ['LISTEN']}".encode()
        self.send_response(503 if ill and self.path == "/health" else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *more): ...

class Served(http.server.ThreadingHTTPServer):
    daemon_threads = True

Served(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


class Running:
    """A replica that runs, the scheduler that it talks to, and how it ended."""

    def __init__(self, made: Shim, fake: FakeScheduler) -> None:
        self.shim = made
        self.fake = fake
        self.task = asyncio.create_task(made.run())

    @property
    def said(self) -> list[tuple[int, str]]:
        """The states and messages of the reports, each once."""
        found: list[tuple[int, str]] = []
        for each in self.fake.reports:
            if not found or found[-1] != (each.state, each.message):
                found.append((each.state, each.message))
        return found

    async def until(self, state: int, message: str = "") -> None:
        await until(lambda: bool(self.said) and self.said[-1] == (state, message))

    async def end(self) -> GpufleetError | None:
        async with asyncio.timeout(WAIT_S_MAX):
            return await self.task

    @asynccontextmanager
    async def dial(self) -> AsyncIterator[tuple[Reader, Writer]]:
        """A connection of a gateway, as it knows the replica from its scheduler."""
        hello = self.fake.hellos[-1]
        at = parse_address(hello.endpoint)
        tls = ssl.create_default_context(cadata=hello.certificate) if hello.certificate else None
        name = "worker.gpufleet" if tls else None
        reader, writer = await asyncio.open_connection(at.host, at.port, ssl=tls, server_hostname=name)
        try:
            writer.write(connect_line(connect_key(SECRET, hello.worker_start)))
            yield reader, writer
        finally:
            writer.transport.abort()

    async def get(self, path: str) -> bytes:
        """What the program answers through the endpoint."""
        async with self.dial() as (reader, writer):
            writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
            return (await read_all(reader)).rpartition(b"\r\n\r\n")[2]


@pytest.fixture(autouse=True)
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As the fleet starts a replica, with short times."""
    monkeypatch.setenv("GPUCTL_TOKEN", make_token())
    monkeypatch.setenv("GPUFLEET_TICKET_SECRET", SECRET.hex())
    monkeypatch.setenv("GPUFLEET_JOB_ID", "7")
    monkeypatch.setenv("GPUFLEET_ATTEMPT", "2")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setattr(replicas, "PROBE_US", 10_000)
    monkeypatch.setattr(replicas, "QUIET_US", 10_000)


@asynccontextmanager
async def replica(*program: str, flags: tuple[str, ...] = ()) -> AsyncIterator[Running]:
    fake = FakeScheduler()
    async with scheduler(fake) as port:
        words = ["--http-service", "--name", "chat", "--port-env", "LISTEN", "--scheduler", f"127.0.0.1:{port}"]
        given = options.read([*words, "--port", "0", *flags, "--", *program])
        running = Running(Shim(given, 300), fake)
        try:
            yield running
        finally:
            running.shim.stop()
            await running.end()


SERVER = (sys.executable, "program.py", "$LISTEN")
READY_PATH = ("--ready", "/health")


async def test_a_replica_says_who_it_is_and_its_program_is_reached_with_the_key() -> None:
    async with replica(*SERVER, flags=(*READY_PATH, "--concurrency", "3")) as running:
        await running.until(READY)
        hello = running.fake.hellos[0]
        assert (hello.model, hello.job_id, hello.attempt) == ("chat", 7, 2)
        assert (hello.worker_start, hello.ticket_secret, hello.certificate) == (running.shim.start, b"", "")
        report = running.fake.reports[-1]
        assert (report.seats, list(report.turns), report.HasField("card")) == (3, [], False)
        assert running.said[0] == (LOADING, "") or running.said[0][1].startswith("waits for 127.0.0.1:")
        assert await running.get("/a?b") == f"/a?b of {running.shim.port}".encode()
        await until(lambda: running.shim.endpoint.open == 0)
        assert running.shim.endpoint.open_max == 12


async def test_the_scheduler_drains_it_and_it_ends_after_the_last_connection() -> None:
    async with replica(*SERVER) as running:
        await running.until(READY)
        async with running.dial() as (reader, writer):
            await until(lambda: running.shim.endpoint.open == 1)
            await running.fake.say(drain=sessions_pb2.DrainWorker())
            await running.until(DRAINING)
            assert await running.get("/late") == f"/late of {running.shim.port}".encode()
            writer.write(b"GET /last HTTP/1.1\r\nHost: h\r\n\r\n")
            await reader.readuntil(b"/last of ")
            assert not running.task.done()
        assert await running.end() is None
        assert running.said[-1] == (DRAINING, "")


async def test_stopped_it_ends_its_program_whatever_is_open() -> None:
    async with replica(*SERVER) as running:
        await running.until(READY)
        async with running.dial() as (reader, _):
            await until(lambda: running.shim.endpoint.open == 1)
            running.shim.stop()
            assert await read_all(reader) == b""
        assert await running.end() is None
        assert running.said[-1] == (DRAINING, "")


async def test_what_a_program_said_before_it_ended_still_reaches_a_slow_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shim, "LAST_BYTES_S_MAX", WAIT_S_MAX)
    size = 300_000  # what its sockets take from the program, and this gateway does not
    code = (
        "import socket, sys\n"
        "s = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n"
        "while not (c := s.accept()[0]).recv(1): pass\n"
        f"c.sendall(b'x' * {size})"
    )
    async with replica(sys.executable, "-c", code, "$LISTEN") as running:
        await running.until(READY)
        with socket.socket() as gateway:
            gateway.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            gateway.setblocking(False)
            hello = running.fake.hellos[0]
            loop = asyncio.get_running_loop()
            await loop.sock_connect(gateway, ("127.0.0.1", parse_address(hello.endpoint).port))
            await loop.sock_sendall(gateway, connect_line(connect_key(SECRET, hello.worker_start)) + b"?")
            await until(lambda: running.shim.replica.status == 0)
            await running.until(FAILED, "the program ended with exit code 0")
            assert not (await asyncio.wait([running.task], timeout=0.3))[0], "it stays for what is on its way"
            came = 0
            async with asyncio.timeout(WAIT_S_MAX):
                while data := await loop.sock_recv(gateway, 65_536):
                    came += len(data)
            assert came == size
        assert await running.end() is not None


async def test_a_program_that_nothing_can_start_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(shim, "Child", refused)
    async with replica(*SERVER) as running:
        failure = await running.end()
        assert failure is not None and failure.metadata == {"exit_code": "127"}
        assert running.said[-1][1].endswith(": Resource temporarily unavailable")


async def test_a_program_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(replicas, "STOP_US_MAX", 50_000)
    code = "import signal, time, pathlib; signal.signal(15, 1); pathlib.Path('here').touch(); time.sleep(1000)"
    async with replica(sys.executable, "-c", code) as running:
        await until((tmp_path / "here").exists)
        running.shim.stop()
        assert await running.end() is None
        assert running.shim.replica.status == 137


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("exit 0", 0, "the program ended with exit code 0"),
        ("exit 3", 3, "the program ended with exit code 3"),
        ("kill -9 $$", 137, "the program was ended by SIGKILL"),
    ],
)
async def test_a_program_that_ends_at_once_has_failed_and_the_scheduler_knows_how(
    command: str, status: int, said: str
) -> None:
    async with replica("sh", "-c", command) as running:
        failure = await running.end()
        assert failure is not None and failure.reason is Reason.PROGRAM_FAILED
        assert (failure.message, failure.metadata) == (said, {"exit_code": str(status)})
        assert running.said[-1] == (FAILED, said)
        assert running.shim.replica._starts == 1


async def test_a_program_that_never_opens_its_port_is_waited_for_and_that_is_said() -> None:
    async with replica("sleep", "1000", flags=READY_PATH) as running:
        await until(lambda: running.shim.port != 0)
        await running.until(LOADING, f"waits for 127.0.0.1:{running.shim.port} to open")
        running.shim.stop()
        assert await running.end() is None


async def test_one_that_does_not_answer_well_any_more_is_left_and_taken_again(tmp_path: Path) -> None:
    (tmp_path / "ill").touch()
    async with replica(*SERVER, flags=READY_PATH) as running:
        await running.until(LOADING, "GET /health answers 503")
        (tmp_path / "ill").unlink()
        await running.until(READY)
        (tmp_path / "ill").touch()
        await running.until(LOADING, "GET /health answers 503")
        assert await running.get("/other") == f"/other of {running.shim.port}".encode()
        (tmp_path / "ill").unlink()
        await running.until(READY)


async def test_a_port_that_was_taken_meanwhile_costs_one_more_start(monkeypatch: pytest.MonkeyPatch) -> None:
    others = bound(Address("127.0.0.1", 0), backlog=10)
    taken = others.getsockname()[1]
    ports = [taken]
    monkeypatch.setattr(shim, "choose_port", lambda: ports.pop() if ports else choose_port())
    monkeypatch.setattr(
        replicas, "SECOND_START_US_MAX", WAIT_S_MAX * 1e6
    )  # on a busy machine it takes its time to fail
    try:
        async with replica(*SERVER, flags=READY_PATH) as running:
            await running.until(READY)
            assert running.shim.port != taken and running.shim.replica._starts == 2
            assert await running.get("/") == f"/ of {running.shim.port}".encode()
        assert await running.end() is None
    finally:
        others.close()


async def test_turns_that_a_scheduler_grants_it_are_logged_and_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    async with replica(*SERVER) as running:
        await running.until(READY)
        await running.fake.say(expect=sessions_pb2.ExpectTurn(session="s1", epoch=1))
        await running.fake.say(end=sessions_pb2.EndTurn(session="s2", epoch=1, reason="IDLE"))
        await running.fake.say(ends_acknowledged=sessions_pb2.EndsAcknowledged(number=1))
        await until(lambda: "session s1" in caplog.text and "session s2" in caplog.text)
        assert await running.get("/") == f"/ of {running.shim.port}".encode()


async def test_beyond_its_machine_it_speaks_tls_with_a_certificate_that_gateways_are_told() -> None:
    async with replica(*SERVER, flags=("--host", "0.0.0.0")) as running:
        await running.until(READY)
        hello = running.fake.hellos[0]
        assert hello.certificate.startswith("-----BEGIN CERTIFICATE-----")
        assert hello.endpoint.startswith("127.0.0.1:"), "the address towards its scheduler, and not 0.0.0.0"
        assert await running.get("/a") == f"/a of {running.shim.port}".encode()


async def test_its_program_is_told_its_port_and_none_of_the_secrets_of_the_shim(tmp_path: Path) -> None:
    async with replica("sh", "-c", 'env > new; mv new found; exec sleep 1000 "$LISTEN"') as running:
        file = tmp_path / "found"
        await until(file.exists)
        found = file.read_text()
        assert f"LISTEN={running.shim.port}\n" in found
        assert "GPUFLEET_TICKET_SECRET" not in found and "GPUCTL_TOKEN" not in found and SECRET.hex() not in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--name", "a"], "PROGRAM: is missing"),
        (["--name", "a", "--"], "PROGRAM: is missing"),
        (["--name", "a", "--port-env", "A B", "--", "p"], '"A B" is no name of a variable'),
        (["--name", "a", "--ready", "health", "--", "p"], "is no path"),
        (["--name", "a", "--ready", "/a b", "--", "p"], "is no path"),
        (["--name", "a", "--ready", "/a\r\nX: y", "--", "p"], "is no path"),
        (["--name", "a", "--concurrency", "0", "--", "p"], "must be 1 to 10,000"),
        (["--name", "a", "--concurrency", "10001", "--", "p"], "must be 1 to 10,000"),
    ],
)
def test_flags_that_make_no_sense_are_refused(words: list[str], said: str) -> None:
    with pytest.raises(GpufleetError, match=said) as refused:
        options.read(["--http-service", *words])
    assert refused.value.reason is Reason.INVALID_ARGUMENT


def test_everything_behind_the_first_two_dashes_is_the_program() -> None:
    given: Any = options.read(["--http-service", "--name", "a", "--", "p", "--name", "b", "--", "-c"])
    assert (given.name, given.program) == ("a", ["p", "--name", "b", "--", "-c"])
    assert (given.port_env, given.ready, given.concurrency) == ("PORT", "", 64)


async def test_a_program_that_is_not_there_is_refused_before_anything_is_started() -> None:
    given = options.read(["--http-service", "--name", "a", "--scheduler", "h", "--", "no-such-program"])
    with pytest.raises(GpufleetError) as refused:
        Shim(given, 300)
    assert refused.value.reason is Reason.PROGRAM_FAILED
