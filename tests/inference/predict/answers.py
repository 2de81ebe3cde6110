"""Models that answer requests, a server of one on loopback, and a caller that speaks plain HTTP to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import uvicorn

from gpufleet.net.addresses import Address
from gpufleet.net.http_server import QuietServer
from gpufleet.net.listening import bound
from gpufleet.predict import TensorSpec
from inference.core.batching import BatchLimits
from inference.loading import Wanted
from inference.predict.app import PredictService
from inference.predict.predictor import Predictor, State
from tests.e2e.processes import until

DEADLINE_S = 60.0


class Echo:
    """Gives each item back; an item that is the text "bad" is refused."""

    def load(self) -> None:
        """Nothing is loaded."""

    def predict(self, items: list[Any]) -> list[Any]:
        """The items."""
        return [ValueError("it is bad") if item == b"bad" else item for item in items]


class Double:
    """Twice three numbers; where one is negative the item is refused, and where one is 666 the whole batch raises."""

    inputs = (TensorSpec("x", "FP32", (3,)),)
    outputs = (TensorSpec("y", "FP32", (3,)),)
    sizes: list[int]

    def load(self, device: str, args: Mapping[str, str]) -> None:
        """Note what it was given."""
        self.device, self.args = device, args
        self.sizes = []

    def predict(self, items: list[Any]) -> list[Any]:
        """Twice each."""
        self.sizes.append(len(items))
        if any(item.max() == 666 for item in items):
            raise RuntimeError("the number of the beast")
        return [ValueError("negative") if item.min() < 0 else 2 * item for item in items]


class Scarce:
    """Gives each item back, as long as there are no more than two at once: more do not fit into memory."""

    sizes: ClassVar[list[int]] = []

    def load(self) -> None:
        """Nothing was computed yet."""
        self.sizes.clear()

    def predict(self, items: list[Any]) -> list[Any]:
        """The items."""
        self.sizes.append(len(items))
        if len(items) > 2:
            raise MemoryError("there is room for two")
        return items


class Words:
    """The words of a text, as values of JSON both ways."""

    inputs = (TensorSpec("question", "JSON"),)
    outputs = (TensorSpec("words", "JSON"),)

    def load(self) -> None:
        """Nothing is loaded."""

    def predict(self, items: list[Any]) -> list[Any]:
        """Of each its words."""
        return [item["text"].split() for item in items]


class Gated:
    """Answers once `gate` is open, and says what it was given; shared by all instances, set anew by each test."""

    gate = threading.Event()
    began = threading.Event()
    seen: ClassVar[list[list[Any]]] = []

    def load(self) -> None:
        """Nothing is loaded."""

    def predict(self, items: list[Any]) -> list[Any]:
        """The items, once the gate is open."""
        Gated.seen.append([int(item) for item in items])
        Gated.began.set()
        assert Gated.gate.wait(DEADLINE_S)
        return items


def gated() -> None:
    """A new gate, closed."""
    Gated.gate, Gated.began, Gated.seen = threading.Event(), threading.Event(), []


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        """The JSON of it; of binary data its first part."""
        return json.loads(self.body[: int(self.headers.get("inference-header-content-length", len(self.body)))])

    @property
    def binary(self) -> bytes:
        """What is behind the JSON."""
        return self.body[int(self.headers["inference-header-content-length"]) :]


@dataclass
class Answering:
    """A server that answers."""

    port: int
    predictor: Predictor
    name: str
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def ask(
        self, path: str, body: bytes | object = b"", headers: Mapping[str, str] | None = None, method: str = ""
    ) -> Reply:
        """One request on a connection of its own."""
        reader, writer = await self.send(path, body, headers, method)
        try:
            async with asyncio.timeout(DEADLINE_S):
                answer = await reader.read()
        finally:
            writer.close()
        head, _, rest = answer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        pairs = (line.partition(": ") for line in lines)
        return Reply(int(first.split()[1]), {name.lower(): value for name, _, value in pairs}, rest)

    async def send(
        self, path: str, body: bytes | object = b"", headers: Mapping[str, str] | None = None, method: str = ""
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send it, and leave the answer for later."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        said = {"Host": "h", "Connection": "close", "Content-Length": str(len(data)), **(headers or {})}
        lines = "".join(f"{name}: {value}\r\n" for name, value in said.items())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        word = method or ("POST" if data else "GET")
        writer.write(f"{word} {path} HTTP/1.1\r\n{lines}\r\n".encode() + data)
        return reader, writer

    async def infer(self, body: bytes | object, headers: Mapping[str, str] | None = None) -> Reply:
        """Ask the model."""
        return await self.ask(f"/v2/models/{self.name}/infer", body, headers)


def tensor(data: list[Any], datatype: str = "FP32", name: str = "x", width: int | None = None) -> dict[str, Any]:
    """A request with one input: `width` numbers an item, or one without a shape of its own."""
    shape = [len(data)] if width is None else [len(data) // width, width]
    return {"inputs": [{"name": name, "shape": shape, "datatype": datatype, "data": data}]}


def floats(*numbers: float) -> list[float]:
    """As FP32 has them."""
    return [float(each) for each in np.asarray(numbers, np.float32)]


@asynccontextmanager
async def answering(
    kind: str,
    limits: BatchLimits | None = None,
    *,
    body_max: int = 1 << 20,
    ready: bool = True,
    entry_point: str = "",
    **arguments: str,
) -> AsyncIterator[Answering]:
    """A server of a class of this module, or of what the entry point names; ready unless it is not to be waited for."""
    entry_point = entry_point or f"{__name__}:{kind}"
    kind = entry_point.rpartition(":")[2]
    wanted = Wanted(entry_point=entry_point, arguments=arguments, device="cpu")
    predictor = Predictor(wanted, limits or BatchLimits())
    service = PredictService(predictor, name=kind.lower(), version="0", body_max=body_max)
    listening = bound(Address("127.0.0.1", 0), backlog=64)
    config = uvicorn.Config(service.app(), interface="asgi3", lifespan="off", ws="none", log_config=None)
    server = QuietServer(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    predictor.start()
    try:
        await until("it listens", lambda: server.started)
        if ready:
            await until("the model is loaded", lambda: predictor.state is not State.LOADING)
        yield Answering(listening.getsockname()[1], predictor, kind.lower())
    finally:
        Gated.gate.set()
        server.should_exit = True
        await serving
        listening.close()
        await until("the model's thread has ended", predictor.close)
