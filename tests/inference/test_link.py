"""The worker's line to a scheduler: what it says and hears, and that it comes back. The scheduler is a fake."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from gpufleet.v1 import inference_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.addresses import Address, parse_address
from gpufleet.net.channel import Target, connect_async
from gpufleet.net.status import to_status
from gpufleet.security.tickets import TICKET_LIFE_S, sign_ticket, ticket_for
from inference import link as link_module
from inference.link import Link
from inference.options import parser, schedulers_of, secret_of, token_of, wanted_of
from inference.worker import DRAINING, FAILED, READY
from tests.inference.serving import ME, WAIT_S_MAX, Client, GrpcStream, Running, serving, until
from tests.inference.test_streams import Recorder

Down = sessions_pb2.ConnectWorkerResponse

ON_ITS_WAY_S = TICKET_LIFE_S / 2
"""How old a ticket is that a worker takes: what the clock said may have been as long on its way."""


class FakeScheduler:
    """Takes workers' streams, notes what they say, and says what a test wants."""

    def __init__(self) -> None:
        self.hellos: list[sessions_pb2.WorkerHello] = []
        self.reports: list[sessions_pb2.WorkerReport] = []
        self.ends: list[sessions_pb2.TurnEnded] = []
        self.tokens: list[str] = []
        self.clock_ahead_s = 0.0
        self.stream: Any = None
        self.refusal: GpufleetError | None = None
        self.reads_on = asyncio.Event()
        self.reads_on.set()

    async def connect_worker(self, requests: Any, context: Any) -> None:
        self.tokens += [str(value) for key, value in context.invocation_metadata() if key == "authorization"]
        self.stream = context
        if self.refusal is not None:
            await context.abort_with_status(to_status(self.refusal))
        async for request in requests:
            match request.WhichOneof("body"):
                case "hello":
                    self.hellos.append(request.hello)
                    welcome = sessions_pb2.WorkerWelcome()
                    welcome.server_time.FromMicroseconds(round((time.time() + self.clock_ahead_s) * 1e6))
                    await self.say(welcome=welcome)
                case "report":
                    self.reports.append(request.report)
                case "ended":
                    self.ends.append(request.ended)
                    await self.reads_on.wait()

    async def say(self, **command: Any) -> None:
        await self.stream.write(Down(**command))

    def turns(self) -> list[tuple[str, int, bool]]:
        """The newest report's turns."""
        return [(each.session, each.epoch, each.is_attached) for each in self.reports[-1].turns] if self.reports else []


@asynccontextmanager
async def scheduler(fake: FakeScheduler, port: int = 0) -> AsyncIterator[int]:
    server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
    handler: Any = grpc.stream_stream_rpc_method_handler(
        fake.connect_worker,
        request_deserializer=sessions_pb2.ConnectWorkerRequest.FromString,
        response_serializer=Down.SerializeToString,
    )
    service = grpc.method_handlers_generic_handler("gpufleet.v1.Scheduler", {"ConnectWorker": handler})
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(0)


@asynccontextmanager
async def linked(running: Running, port: int) -> AsyncIterator[Link]:
    worker = running.worker

    def hello() -> sessions_pb2.WorkerHello:
        described = worker.described
        return sessions_pb2.WorkerHello(
            model="recorder", worker_start=described.start, ticket_secret=described.secret, endpoint="h:1"
        )

    link = Link(
        worker,
        [Address("127.0.0.1", 1), Address("127.0.0.1", port)],
        target_of=lambda address: Target(address=address, token="gf_worker"),
        hello=hello,
    )
    task = asyncio.create_task(link.run())
    try:
        yield link
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_worker_says_hello_its_state_and_each_turn() -> None:
    fake = FakeScheduler()
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port):
        await until(lambda: bool(fake.reports))
        assert fake.tokens == ["Bearer gf_worker"]
        assert fake.hellos[0].worker_start == running.worker.described.start
        assert (fake.reports[-1].state, fake.reports[-1].seats) == (READY, 8)
        client = await running.open("s")
        await until(lambda: fake.turns() == [("s", 1, True)])
        client.vanish()
        await until(lambda: fake.turns() == [("s", 1, False)])
        again = await running.open("s", 2)
        await until(lambda: fake.turns() == [("s", 2, True)])
        await again.leave()
        await until(lambda: fake.turns() == [])
        assert [(each.session, each.epoch, each.reason) for each in fake.ends] == [("s", 2, "LEFT")]


async def test_idle_times_are_told_while_there_are_turns() -> None:
    fake = FakeScheduler()
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port):
        client = await running.open("s")
        await client.frame()
        await until(lambda: any(each.turns and each.turns[0].since_input.ToMicroseconds() for each in fake.reports))
        await client.leave()


async def test_a_worker_without_people_is_heard_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "QUIET_REPORT_S", 0.05)
    fake = FakeScheduler()
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port):
        await until(lambda: len(fake.reports) >= 5)
        assert not any(each.turns for each in fake.reports)


async def test_who_leaves_is_heard_to_the_end_by_a_scheduler_that_is_busy() -> None:
    fake = FakeScheduler()
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port) as link:
        await running.open("first")
        await running.open("second")
        await until(lambda: len(fake.turns()) == 2)
        fake.reads_on.clear()
        running.worker._on_hung(("first",))
        leaving = asyncio.create_task(link.leave(WAIT_S_MAX))
        await until(lambda: len(fake.ends) == 1)
        # It stores the first end while the rest is under way: nothing may be cut off now.
        assert not (await asyncio.wait([leaving], timeout=0.2))[0]
        fake.reads_on.set()
        await leaving
        assert [each.session for each in fake.ends] == ["first", "second"]
        assert (fake.reports[-1].state, list(fake.reports[-1].suspects)) == (FAILED, ["first"])
    assert running.worker.model.stop(WAIT_S_MAX)


async def test_a_refusal_is_logged_with_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    fake = FakeScheduler()
    fake.refusal = GpufleetError(Reason.TOKEN_INVALID, "the token has expired", next_step="Make another one.")
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port):
        await until(lambda: "TOKEN_INVALID: the token has expired Make another one." in caplog.text)


async def test_the_scheduler_announces_ends_and_drains() -> None:
    fake = FakeScheduler()
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port):
        worker = running.worker
        await until(lambda: bool(fake.reports))
        await fake.say(expect=sessions_pb2.ExpectTurn(session="s", epoch=4, identity=ME))
        await until(lambda: bool(worker.turning.turns._expected))
        client = await running.open("s", 4)
        await fake.say(end=sessions_pb2.EndTurn(session="s", epoch=3, reason="IDLE"))
        await fake.say()  # of a newer scheduler, not known here
        await fake.say(end=sessions_pb2.EndTurn(session="s", epoch=4, reason="IDLE"))
        last = await client.end()
        assert last is not None and (last.reason, last.message) == ("IDLE", "")
        await until(lambda: len(fake.ends) == 1)
        await fake.say(ends_acknowledged=sessions_pb2.EndsAcknowledged(number=1))
        await until(lambda: not worker.turning.ends)
        await fake.say(drain=sessions_pb2.DrainWorker())
        await until(lambda: fake.reports[-1].state == DRAINING)
        await until(worker._finished.is_set)


async def test_turns_go_on_without_the_scheduler_and_are_told_when_it_is_back() -> None:
    fake = FakeScheduler()
    async with serving(Recorder) as running:
        async with scheduler(fake) as port, linked(running, port):
            first = await running.open("first")
            second = await running.open("second")
            await until(lambda: len(fake.turns()) == 2)
        # The link of before is gone as well; a new one must not know less.
        await second.leave()
        await first.key("a")
        await first.frame_with(1)
        async with linked(running, port):
            later = FakeScheduler()
            async with scheduler(later, port):
                await until(lambda: later.turns() == [("first", 1, True)])
                assert later.hellos[0].worker_start == fake.hellos[0].worker_start
                assert [each.session for each in later.ends] == ["second"]
            await until(lambda: running.worker.turning.held["first"].stream is not None)
            once_more = FakeScheduler()
            async with scheduler(once_more, port):
                await until(lambda: once_more.turns() == [("first", 1, True)])
                assert [each.session for each in once_more.ends] == ["second"], "not acknowledged, so told again"
        await first.leave()


async def test_tickets_expire_by_the_schedulers_clock() -> None:
    fake = FakeScheduler()
    fake.clock_ahead_s = 3_600.0
    async with serving(Recorder) as running, scheduler(fake) as port, linked(running, port):
        await until(lambda: bool(fake.reports))
        worker = running.worker
        old = running.ticket("s")
        with pytest.raises(GpufleetError, match="expired"):
            worker.ticket(old)
        assert worker.ticket(running.ticket("s", at_s=time.time() + 3_600 - ON_ITS_WAY_S)).session == "s"
        with pytest.raises(GpufleetError, match="future"):
            worker.ticket(running.ticket("s", at_s=time.time() + 3_600 + TICKET_LIFE_S))
        # That clock may be set while the worker is connected: each turn that is announced tells it anew.
        announced = sessions_pb2.ExpectTurn(session="t", epoch=1, identity=ME)
        announced.server_time.FromMicroseconds(round((time.time() + 7_200) * 1e6))
        await fake.say(expect=announced)
        await until(lambda: bool(worker.turning.turns._expected))
        assert worker.ticket(running.ticket("t", at_s=time.time() + 7_200 - ON_ITS_WAY_S)).session == "t"


def test_flags_that_make_no_sense_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    wrong: list[tuple[list[str], Callable[..., Any], str]] = [
        (["m:C"], lambda given: schedulers_of(given, {}), "is missing"),
        (["m:C", "--standalone", "--scheduler", "h"], schedulers_of, "choose one"),
        (["m:C", "--device", "a b"], wanted_of, "neither a number nor cpu"),
        (["m:C", "--model-arg", "steps"], wanted_of, "NAME=VALUE"),
        (["m:C", "--scheduler", "h"], lambda given: token_of(given, {}), "a token of role worker"),
        (["m:C"], lambda given: secret_of(given, {"GPUFLEET_TICKET_SECRET": "abc"}), "hexadecimal"),
    ]
    for words, read, said in wrong:
        with pytest.raises(GpufleetError, match=said):
            read(parser().parse_args(words))
    given = parser().parse_args(["m:C", "--device", "3", "--model-arg", "a=1", "--model-arg", "b=x=y", "--standalone"])
    assert (wanted_of(given).device, wanted_of(given).arguments) == ("cuda:3", {"a": "1", "b": "x=y"})
    secret, is_launched = secret_of(given, {})
    assert (len(secret), is_launched) == (32, False)
    assert secret_of(given, {}) == (secret, False)
    file = tmp_path / "gpufleet" / "worker" / "ticket.secret"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    with pytest.raises(GpufleetError, match="other accounts"):
        secret_of(given, {})


@pytest.mark.slow
async def test_gpuctl_worker_serves_a_model_of_the_current_folder_until_it_is_told_to_stop(tmp_path: Path) -> None:
    """With real processes: what a person types, a stream with a ticket of the secret's file, SIGTERM."""
    (tmp_path / "lamp.py").write_text(
        "import numpy as np\n"
        "class Lamp:\n"
        "    def open(self, session): return [0]\n"
        "    def step(self, state, inputs):\n"
        "        state[0] += len(inputs.events)\n"
        "        return np.full((8, 8, 3), state[0], np.uint8)\n"
        "    def close(self, state): pass\n"
    )
    secret = tmp_path / "secret"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "gpufleet.cli", "worker", "lamp:Lamp", "--standalone", "--port", "0"),
        *("--ticket-secret-file", str(secret)),
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        await streams_until_it_is_stopped(process, tmp_path)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def streams_until_it_is_stopped(process: asyncio.subprocess.Process, folder: Path) -> None:
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(WAIT_S_MAX):
        while not any("ready: Lamp" in line for line in lines):
            line = (await process.stderr.readline()).decode()
            assert line, lines
            lines.append(line)
    found = re.search(r"listening on (\S+), start (\w+)", "".join(lines))
    assert found is not None
    async with connect_async(Target(address=parse_address(found[1]))) as channel:
        client = Client(GrpcStream(inference_pb2_grpc.InferenceStub(channel).Stream()))
        ticket = ticket_for("s", 1, worker_start=found[2], identity=ME, now_s=time.time())
        await client.open(sign_ticket(ticket, bytes.fromhex((folder / "secret").read_text())), encodings=["raw"])
        await client.key("a")
        assert (await client.frame_with(1)).data[0] == 1
        process.send_signal(signal.SIGTERM)
        last = await client.end()
        assert last is not None and (last.reason, last.is_end) == ("DRAINING", True)
        assert "This worker is being stopped." in last.message
    async with asyncio.timeout(WAIT_S_MAX):
        rest = (await process.stderr.read()).decode()
        assert await process.wait() == 0, rest
    assert "Traceback" not in rest
