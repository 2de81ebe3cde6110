"""The real programs of a person's session: scheduler, worker, gateway, and a WebSocket as a browser opens it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from gateway.protocol import ENCODINGS, FRAME_HEADER
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS, clean_environment, tail_of, until
from tests.ports import kept_port

PING_SECONDS = 1.0
"""A page does so every 5 s, and has a machine of its own."""


class Side:
    """A program beside the fleet: a worker or a gateway, that says in its log where it listens."""

    def __init__(
        self, folder: Path, name: str, module: str, *flags: str, variables: Mapping[str, str] | None = None
    ) -> None:
        self._variables = dict(variables or {})
        self.log = folder / f"{name}.log"
        self._command = [sys.executable, "-P", "-m", module, *flags]
        self._folder = folder
        self.inside: Sequence[str] = ()
        """What the command line begins with: how to get into another network, for one."""
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            environment = clean_environment(self._folder, self._variables)
            self.process = subprocess.Popen(
                [*self.inside, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self._folder,
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

    def end(self, number: int = signal.SIGTERM) -> int | None:
        """Its exit code."""
        if self.process is None:
            return None
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE_SECONDS)
        self.process = None
        return code


class Stage:
    """A scheduler with a gateway, and any number of workers."""

    def __init__(self, folder: Path, *flags: str) -> None:
        self.fleet = Fleet(folder, *flags)
        self.folder = folder
        self.sides: list[Side] = []
        self.gateway = ""

    def _files(self) -> tuple[str, ...]:
        return ("--scheduler", self.fleet.scheduler.address)

    async def start(self) -> None:
        await self.fleet.scheduler.start()
        self.gateway = await self.another_gateway("gateway", "--port", str(kept_port())).address()

    def another_gateway(self, name: str, *flags: str, variables: Mapping[str, str] | None = None) -> Side:
        """Start a gateway with a data folder of its own, which believes this machine where somebody comes from."""
        folder, token = str(self.folder / name), self.token_file("gateway")
        own = ("--port", "0", "--data", folder, "--token-file", token)
        believed = {"GPUCTL_GATEWAY_PROXIES": "127.0.0.1", **(variables or {})}
        side = self.side(name, "gpufleet.gateway", *own, *flags, variables=believed)
        side.start()
        return side

    def token_file(self, role: str) -> str:
        return str(self.fleet.scheduler.data / f"{role}.token")

    def side(self, name: str, module: str, *flags: str, variables: Mapping[str, str] | None = None) -> Side:
        reached = ("--scheduler", self.fleet.scheduler.address)
        side = Side(self.folder, name, module, *flags, *reached, variables=variables)
        self.sides.append(side)
        return side

    def worker(
        self,
        name: str,
        model: str = "test-pattern",
        *,
        variables: Mapping[str, str] | None = None,
        advertise: str = "",
        **arguments: str,
    ) -> Side:
        """Start a worker of a model that is called like it."""
        said = [word for key, value in arguments.items() for word in ("--model-arg", f"{key}={value}")]
        said += ["--advertise", advertise] if advertise else []
        flags = ("--port", "0", "--device", "cpu", "--name", name, "--token-file", self.token_file("admin"))
        side = self.side(
            f"worker-{name}-{len(self.sides)}", "gpufleet.inference", model, *flags, *said, variables=variables
        )
        side.start()
        return side

    async def end(self) -> None:
        for side in self.sides:
            side.end()
        await self.fleet.end()


class Browser:
    """One page's WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.texts: list[dict[str, Any]] = []
        self.frames = 0
        self.sequence = 0
        self.newest = 0

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
                else:
                    assert said["type"] != "end", said

    async def frame(self) -> tuple[int, int, bytes]:
        """The next frame: its number, the newest input that it shows, the picture."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            while True:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    return await self.shown(message)

    async def closed(self) -> int:
        """Read until the gateway closes the connection; answers the code."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            with suppress(ConnectionClosed):
                while True:
                    await self.socket.recv()
            await self.socket.wait_closed()
        assert self.socket.close_code is not None
        return self.socket.close_code

    async def shown(self, message: bytes) -> tuple[int, int, bytes]:
        version, encoding, _, _, number, newest, _ = FRAME_HEADER.unpack_from(message)
        assert (version, encoding) == (1, ENCODINGS["jpeg"])
        self.frames += 1
        self.newest = newest
        # The end of the session, and of the connection, may have come behind this frame already.
        with suppress(ConnectionClosed):
            await self.say(type="shown", frame=number)
        return number, newest, message[FRAME_HEADER.size :]

    async def click(self, x: float, y: float) -> int:
        self.sequence += 1
        await self.say(type="pointer", seq=self.sequence, x=x, y=y, buttons=1, button_change=True)
        return self.sequence


def browser(
    stage: Stage, cookie: str = "", origin: str | None = None, *, gateway: str = ""
) -> AbstractAsyncContextManager[Browser]:
    """Somebody's page, by default on the stage's own gateway."""
    return browser_at(gateway or stage.gateway, cookie, origin)


@asynccontextmanager
async def browser_at(gateway: str, cookie: str = "", origin: str | None = None) -> AsyncIterator[Browser]:
    """Somebody's page on the gateway at HOST:PORT."""
    headers = {"Cookie": cookie} if cookie else {}
    url = f"ws://{gateway}/ws"
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
        with suppress(ConnectionClosed):
            await socket.send(json.dumps({"type": "ping", "number": 0}))


def cookie_of(page: Browser) -> str:
    """The cookie that the gateway gave this page."""
    assert page.socket.response is not None
    return str(page.socket.response.headers["set-cookie"]).partition(";")[0]
