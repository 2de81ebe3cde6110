"""The programs of a live session, as a user starts them, and people at them: WebSockets as browsers open them."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from gateway.protocol import FRAME_HEADER

START_S_MAX = 60.0
WAIT_S_MAX = 60.0


@dataclass
class Stage:
    """A scheduler with a gateway, and workers.

    `inside` is what a command line begins with to run on another machine, `host` that machine's address.
    """

    folder: Path
    host: str = "127.0.0.1"
    inside: Sequence[str] = ()
    scheduler: str = ""
    gateway: str = ""
    gateway_pid: int = 0
    scheduler_pid: int = 0

    def token(self, role: str) -> str:
        """The file with a token of this role."""
        return str(self.folder / "scheduler" / f"{role}.token")

    @contextmanager
    def running(self, *gateway_flags: str) -> Iterator["Stage"]:
        """Scheduler and gateway, for the length of the block."""
        with ExitStack() as stack:
            data = ("--data", str(self.folder / "scheduler"), "--port", "0")
            self.scheduler_pid = stack.enter_context(self.program("scheduler", "serving", *data)).pid
            self.scheduler = (self.folder / "scheduler" / "listening").read_text().strip()
            reached = ("--scheduler", self.scheduler, "--token-file", self.token("gateway"), "--host", self.host)
            flags = ("--data", str(self.folder / "gateway"), "--port", "0", *reached, *gateway_flags)
            process = stack.enter_context(self.program("gateway", "listening on", *flags))
            self.gateway = (self.folder / "gateway" / "listening").read_text().strip()
            self.gateway_pid = process.pid
            yield self

    @contextmanager
    def another_gateway(self, variables: dict[str, str]) -> Iterator["Stage"]:
        """The same stage at a gateway of its own, with these variables."""
        folder = self.folder / "another"
        reached = ("--scheduler", self.scheduler, "--token-file", self.token("gateway"), "--host", self.host)
        flags = ("--data", str(folder), "--port", "0", *reached)
        with self.program("gateway", "listening on", *flags, variables=variables) as process:
            yield replace(self, gateway=(folder / "listening").read_text().strip(), gateway_pid=process.pid)

    @contextmanager
    def worker(self, name: str, **arguments: object) -> Iterator[int]:
        """A worker with `test-pattern` under this name, met by the scheduler; its pid."""
        words = [word for key, value in arguments.items() for word in ("--model-arg", f"{key}={value}")]
        reached = ("--scheduler", self.scheduler, "--token-file", self.token("admin"), "--port", "0")
        flags = ("test-pattern", "--name", name, "--device", "cpu", *reached, *words)
        with self.program("inference", "connected to the scheduler", *flags) as process:
            yield process.pid

    @contextmanager
    def program(
        self, module: str, ready: str, *flags: str, variables: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A program, from when its log says that it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / f"{module}-{time.monotonic_ns()}.log"
        with log.open("ab") as opened:
            process = subprocess.Popen(
                [*self.inside, sys.executable, "-P", "-m", f"gpufleet.{module}", *flags],
                stdin=subprocess.DEVNULL,
                stdout=opened,
                stderr=opened,
                env={
                    **os.environ,
                    "XDG_CONFIG_HOME": str(self.folder),
                    "XDG_STATE_HOME": str(self.folder),
                    **(variables or {}),
                },
            )
        try:
            deadline = time.monotonic() + START_S_MAX
            while ready not in log.read_text():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{module} did not start: {log.read_text()[-2_000:]}")
                time.sleep(0.02)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(START_S_MAX)


@dataclass
class Person:
    """One browser: sends inputs and remembers when, reads frames and says that they are shown."""

    socket: ClientConnection
    sent_at: list[float] = field(default_factory=lambda: [0.0])
    frames: int = 0
    newest: int = 0
    picture: bytes = b""
    got_at: float = 0.0

    async def say(self, **message: Any) -> None:
        """A message."""
        await self.socket.send(json.dumps(message))

    async def join(self, model: str) -> None:
        """Want a turn."""
        await self.say(type="hello", version=1, model=model, encodings=["jpeg"])

    async def turn(self, model: str) -> None:
        """Get a turn, and see its first frame."""
        await self.join(model)
        await self.text("turn")
        await self.frame()

    async def text(self, kind: str) -> dict[str, Any]:
        """The next text of this type; frames on the way are shown."""
        async with asyncio.timeout(WAIT_S_MAX):
            while True:
                message = await self.socket.recv()
                if isinstance(message, bytes):
                    await self._shown(message)
                elif (said := json.loads(message))["type"] == kind:
                    return dict(said)
                else:
                    assert said["type"] != "end", said

    async def frame(self) -> int:
        """The next frame, said to be shown; answers the newest input in it."""
        while not isinstance(message := await self.socket.recv(), bytes):
            assert json.loads(message)["type"] != "end", message
        await self._shown(message)
        return self.newest

    async def _shown(self, message: bytes) -> None:
        self.got_at = time.perf_counter()
        _, _, _, _, number, self.newest, _ = FRAME_HEADER.unpack_from(message)
        self.picture = message
        self.frames += 1
        await self.socket.send(f'{{"type": "shown", "frame": {number}}}')

    async def input(self, x: float, *, is_click: bool) -> int:
        """A move, or a button that goes down; answers its number."""
        number = len(self.sent_at)
        self.sent_at.append(time.perf_counter())
        buttons = '"buttons": 1, "button_change": true' if is_click else '"buttons": 0'
        await self.socket.send(f'{{"type": "pointer", "seq": {number}, "x": {x}, "y": 0.5, {buttons}}}')
        return number

    def age_ms(self) -> float:
        """How old the newest input of the last frame was when that frame arrived."""
        return (self.got_at - self.sent_at[self.newest]) * 1e3

    async def leave(self) -> None:
        """Leave for good."""
        await self.say(type="leave")
        await self.socket.wait_closed()


async def person(gateway: str, sock: socket.socket | None = None) -> Person:
    """A browser at the gateway; `sock` is a connection made elsewhere."""
    return Person(await connect(f"ws://{gateway}/ws", compression=None, proxy=None, sock=sock, max_queue=None))
