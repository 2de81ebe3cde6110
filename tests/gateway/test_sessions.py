"""A person's session through real programs: scheduler, worker, gateway, and a WebSocket as a browser opens it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from gateway.protocol import ENCODINGS, FRAME_HEADER
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, tail_of, until

PING_SECONDS = 5.0
JPEG = b"\xff\xd8"


class Side:
    """A program beside the fleet: a worker or a gateway, that says in its log where it listens."""

    def __init__(self, folder: Path, name: str, module: str, *flags: str) -> None:
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-P", "-m", module, *flags]
        self._folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            environment = clean_environment(self._folder, {})
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd=self._folder
            )

    async def address(self) -> str:
        """Where it listens, once it does."""

        def said() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, tail_of(self.log)
            return "listening on " in self.log.read_text()

        await until(f"{self.log.stem} listens", said)
        return self.log.read_text().rpartition("listening on ")[2].split()[0].rstrip(",")

    async def is_served(self) -> None:
        """Return once the scheduler has met this worker."""
        await self.address()
        await until(f"{self.log.stem} is met", lambda: "connected to the scheduler" in self.log.read_text())

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(DEADLINE_SECONDS)
            self.process = None


class Stage:
    """A scheduler with a gateway, and any number of workers."""

    def __init__(self, folder: Path) -> None:
        self.fleet = Fleet(folder)
        self.folder = folder
        self.sides: list[Side] = []
        self.gateway = ""

    def _files(self) -> tuple[str, ...]:
        return ("--scheduler", self.fleet.scheduler.address)

    async def start(self) -> None:
        await self.fleet.scheduler.start()
        side = self.side("gateway", "gpufleet.gateway", "--port", "0", "--token-file", self.token_file("gateway"))
        side.start()
        self.gateway = await side.address()

    def token_file(self, role: str) -> str:
        return str(self.fleet.scheduler.data / f"{role}.token")

    def side(self, name: str, module: str, *flags: str) -> Side:
        side = Side(self.folder, name, module, *flags, "--scheduler", self.fleet.scheduler.address)
        self.sides.append(side)
        return side

    def worker(self, name: str, model: str = "test-pattern", **arguments: str) -> Side:
        """Start a worker of a model that is called like it."""
        said = [word for key, value in arguments.items() for word in ("--model-arg", f"{key}={value}")]
        flags = ("--port", "0", "--device", "cpu", "--name", name, "--token-file", self.token_file("admin"))
        side = self.side(f"worker-{name}-{len(self.sides)}", "gpufleet.inference", model, *flags, *said)
        side.start()
        return side

    async def end(self) -> None:
        for side in self.sides:
            side.end()
        await self.fleet.end()


@pytest.fixture(scope="module")
def stage(
    long_lived: Callable[[str], AbstractContextManager[None]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("stage"))
    try:
        with long_lived("the gateway's programs"):
            asyncio.run(stage.start())
        yield stage
    finally:
        asyncio.run(stage.end())


class Browser:
    """One page's WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.texts: list[dict[str, Any]] = []
        self.frames = 0
        self.sequence = 0

    async def say(self, **message: Any) -> None:
        await self.socket.send(json.dumps(message))

    async def hello(self, model: str, place_key: str = "") -> None:
        await self.say(type="hello", version=1, model=model, place_key=place_key, encodings=["jpeg"])

    async def text(self, kind: str) -> dict[str, Any]:
        """The next text of this type; frames on the way are shown, and other texts passed over."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    await self.shown(message)
                elif (said := json.loads(message))["type"] == kind:
                    return dict(said)

    async def frame(self) -> tuple[int, int, bytes]:
        """The next frame: its number, the newest input that it shows, the picture."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    return await self.shown(message)

    async def shown(self, message: bytes) -> tuple[int, int, bytes]:
        version, encoding, _, _, number, newest, _ = FRAME_HEADER.unpack_from(message)
        assert (version, encoding) == (1, ENCODINGS["jpeg"])
        self.frames += 1
        await self.say(type="shown", frame=number)
        return number, newest, message[FRAME_HEADER.size :]

    async def click(self, x: float, y: float) -> int:
        self.sequence += 1
        await self.say(type="pointer", seq=self.sequence, x=x, y=y, buttons=1, button_change=True)
        return self.sequence


@asynccontextmanager
async def browser(stage: Stage, cookie: str = "", origin: str | None = None) -> AsyncIterator[Browser]:
    headers = {"Cookie": cookie} if cookie else {}
    url = f"ws://{stage.gateway}/ws"
    async with connect(url, additional_headers=headers, origin=origin, proxy=None) as socket:  # type: ignore[arg-type]
        pinging = asyncio.create_task(_ping(socket), name="pings")
        try:
            yield Browser(socket)
        finally:
            pinging.cancel()
            await asyncio.gather(pinging, return_exceptions=True)


async def _ping(socket: ClientConnection) -> None:
    """Say every few seconds that somebody is there, as a page does; the first after the hello."""
    while True:
        await asyncio.sleep(PING_SECONDS)
        await socket.send(json.dumps({"type": "ping", "number": 0}))


async def test_a_person_gets_a_turn_and_sees_what_they_did(stage: Stage) -> None:
    worker = stage.worker("seen")
    await worker.is_served()
    async with browser(stage) as ann:
        await ann.hello("seen")
        turn = await ann.text("turn")
        assert (turn["is_resumed"], turn["encoding"]) == (False, "jpeg")
        assert turn["place_key"].startswith("gp_")
        newest = 0
        for _ in range(5):
            clicked = await ann.click(0.5, 0.5)
            while newest < clicked:
                number, newest, picture = await ann.frame()
                assert number == ann.frames
                assert picture.startswith(JPEG)
        await ann.say(type="ping", number=7)
        while (await ann.text("pong"))["number"] != 7:
            pass
        await ann.say(type="leave")
        end = await ann.text("end")
        assert end["reason"] == "LEFT"
    worker.end()


async def test_two_people_share_a_seat_and_a_reload_keeps_the_turn(stage: Stage) -> None:
    worker = stage.worker("shared", seats="1")
    await worker.is_served()
    async with browser(stage) as bob:
        async with browser(stage) as ann:
            cookie = _cookie_of(ann)
            await ann.hello("shared")
            turn = await ann.text("turn")
            await bob.hello("shared")
            place = await bob.text("place")
            assert (place["place"], place["line_length"]) == (1, 1)
            assert place["longest_wait_s"] <= 71
            limited = await ann.text("notice")
            assert limited["reason"] == "TURN_LIMITED"
            frames = ann.frames
        async with browser(stage, cookie) as again:
            await again.hello("shared", turn["place_key"])
            back = await again.text("turn")
            assert (back["session"], back["is_resumed"]) == (turn["session"], True)
            number, _, _ = await again.frame()
            assert (number, frames >= 0) == (1, True)
            await again.say(type="leave")
            await again.text("end")
        assert (await bob.text("turn"))["is_resumed"] is False
        await bob.say(type="leave")
        await bob.text("end")
    worker.end()


async def test_a_killed_worker_puts_its_person_in_front_and_on_the_next(stage: Stage) -> None:
    worker = stage.worker("killed")
    await worker.is_served()
    async with browser(stage) as ann:
        await ann.hello("killed")
        await ann.text("turn")
        await ann.frame()
        before = ann.frames
        worker.end(signal.SIGKILL)
        assert (await ann.text("notice"))["reason"] == "WORKER_LOST"
        assert (await ann.text("place"))["bound_cause"] == "no worker is ready"
        another = stage.worker("killed")
        assert (await ann.text("turn"))["is_resumed"] is False
        number, _, _ = await ann.frame()
        assert number > before
        await ann.say(type="leave")
        await ann.text("end")
    another.end()


async def test_a_turn_goes_on_while_the_scheduler_is_away(tmp_path: Path) -> None:
    stage = Stage(tmp_path / "stage")
    try:
        await stage.start()
        await stage.worker("away").is_served()
        async with browser(stage) as ann:
            await ann.hello("away")
            await ann.text("turn")
            stage.fleet.scheduler.kill()
            assert (await ann.text("notice"))["reason"] == "SCHEDULER_AWAY"
            clicked = await ann.click(0.1, 0.1)
            newest = 0
            while newest < clicked:
                _, newest, _ = await ann.frame()
            await stage.fleet.scheduler.start()
            assert (await ann.text("turn"))["is_resumed"] is True
            await ann.say(type="leave")
            assert (await ann.text("end"))["reason"] == "LEFT"
    finally:
        await stage.end()


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ("no json", "message"),
        ("[]", "message"),
        ('{"type": "pointer"}', "type"),
        ('{"type": "hello", "version": 2, "model": "m"}', "version"),
        ('{"type": "hello", "version": 1}', "model"),
        ('{"type": "hello", "version": 1, "model": "m", "width": -1}', "width"),
        ('{"type": "hello", "version": 1, "model": "m", "encodings": "jpeg"}', "encodings"),
    ],
)
async def test_a_wrong_hello_is_refused_by_its_field(stage: Stage, said: str, field: str) -> None:
    async with browser(stage) as page:
        await page.socket.send(said)
        error = await page.text("error")
        assert error["message"].startswith(f"{field}: ")
        with pytest.raises(ConnectionClosed) as closed:
            await page.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4400


async def test_a_model_that_nobody_serves_ends_the_session_with_the_reason(stage: Stage) -> None:
    async with browser(stage) as page:
        await page.hello("nothing")
        end = await page.text("end")
        assert end["reason"] == "MODEL_NOT_FOUND"


async def test_a_message_that_is_too_long_closes_the_connection(stage: Stage) -> None:
    async with browser(stage) as page:
        await page.socket.send("x" * 20_000)
        with pytest.raises(ConnectionClosed) as closed:
            await page.socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_page_of_another_host_may_not_connect(stage: Stage) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with browser(stage, origin="http://elsewhere.example"):
            pass
    assert refused.value.response.status_code == 403
    async with browser(stage, origin=f"http://{stage.gateway}") as page:
        await page.hello("nothing")
        await page.text("end")


def _cookie_of(page: Browser) -> str:
    assert page.socket.response is not None
    return str(page.socket.response.headers["set-cookie"]).partition(";")[0]


async def test_the_models_and_their_lines_are_for_everybody(stage: Stage) -> None:
    worker = stage.worker("listed", seats="3")
    await worker.is_served()
    answer = await asyncio.to_thread(_get, stage, "/api/v1/models")
    assert answer.status == 200
    assert answer.getheader("set-cookie", "").startswith("gpufleet_person=")
    listed = next(each for each in json.loads(answer.body)["models"] if each["name"] == "listed")
    assert listed == {"name": "listed", "waiting": 0, "turns": 0, "seats": 3, "workers": 1}
    worker.end()


async def test_the_workers_are_for_those_with_a_token(stage: Stage) -> None:
    path = "/api/v1/status/workers"
    assert (await asyncio.to_thread(_get, stage, path)).status == 401
    assert (await asyncio.to_thread(_get, stage, path, "gpufleet-nonsense")).status == 401
    answer = await asyncio.to_thread(_get, stage, path, stage.fleet.scheduler.token("admin"))
    assert answer.status == 200
    assert set(json.loads(answer.body)) == {"models", "agents"}


async def test_it_is_well_while_it_hears_the_scheduler(stage: Stage) -> None:
    answer = await asyncio.to_thread(_get, stage, "/healthz")
    assert (answer.status, json.loads(answer.body)["ok"]) == (200, True)


class Answer:
    """What came back of a GET."""

    def __init__(self, response: HTTPResponse) -> None:
        self.status = response.status
        self.getheader = response.getheader
        self.body = response.read()


def _get(stage: Stage, path: str, token: str = "") -> Answer:
    connection = HTTPConnection(stage.gateway, timeout=DEADLINE_SECONDS)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        return Answer(connection.getresponse())
    finally:
        connection.close()
