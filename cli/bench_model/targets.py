"""What is asked: a model, with requests that were encoded before anything is measured, or any HTTP endpoint."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from gpufleet.client.core.outcomes import Failure, failure_of_status
from gpufleet.client.http import HttpOriginClient, Origin, RequestFailed
from gpufleet.client.protocol import EncodedRequest, ModelMetadata, decode, encode
from gpufleet.client.settings import ClientSettings
from gpufleet.client.tensors import CannotEncode, key_of
from gpufleet.errors import GpufleetError, Reason

from ..asking.items import NamedItem
from ..asking.reaching import Reached

BODIES_MAX = 64
"""Requests that are encoded before, and sent again and again in turns."""

ITEMS_MAX = 10_000
"""Items of a file that are looked at; further ones are not asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one request: the errors of its items by kind, and one of them in words."""

    errors: Mapping[str, int]
    is_answered: bool
    sentence: str = ""


class Target(Protocol):
    """What requests go to, within one event loop."""

    @property
    def items(self) -> int:
        """Items of a request."""
        ...

    async def ask(self, number: int) -> Outcome:
        """Send request `number` and read its answer."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


class ModelTarget:
    """A model's workers, asked in turns; or the gateway in front of them."""

    def __init__(
        self, reached: Sequence[Reached], items: Sequence[NamedItem], settings: ClientSettings, connections: int
    ) -> None:
        self._batch = settings.batch_size
        self._timeout_s = settings.timeout_s
        self._workers = [
            (_client(each.route.origin, settings, connections), f"{each.route.path}/infer") for each in reached
        ]
        metadata = reached[0].metadata
        assert metadata is not None
        self._bodies = _bodies(items, self._batch, metadata, settings)

    @property
    def items(self) -> int:
        """Items of a request."""
        return self._batch

    async def ask(self, number: int) -> Outcome:
        """Send one of the encoded requests, and see which of its items have an answer."""
        encoded, items = self._bodies[number % len(self._bodies)]
        http, path = self._workers[number % len(self._workers)]
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await http.request("POST", path, encoded.headers, encoded.body)
        except TimeoutError:
            return _failed("timed-out", self._batch, f"no answer within {self._timeout_s:g} s")
        except RequestFailed as problem:
            return _failed(str(problem.failure.kind), self._batch, problem.failure.message)
        reply = decode(answer.status, answer.headers, answer.body, items)
        if isinstance(reply, Failure):
            return _failed(str(reply.kind), self._batch, reply.message)
        failures = [each for each in reply.outcomes if isinstance(each, Failure)]
        errors = Counter(str(each.kind) for each in failures)
        return Outcome(errors, is_answered=True, sentence=failures[0].message if failures else "")

    def close(self) -> None:
        """Close its connections."""
        for http, _ in self._workers:
            http.close()


@dataclass(frozen=True, slots=True)
class EndpointRequest:
    """One HTTP request: GET without a body, else POST; `path` may hold a query."""

    origin: Origin
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes | None


class EndpointTarget:
    """Any HTTP endpoint; an answer of a status from 200 to 299 is a success, whatever it says."""

    def __init__(self, request: EndpointRequest, settings: ClientSettings, connections: int) -> None:
        self._request = request
        self._timeout_s = settings.timeout_s
        self._http = _client(request.origin, settings, connections)

    @property
    def items(self) -> int:
        """A request is an item."""
        return 1

    async def check_listens(self) -> None:
        """Raise WORKER_NOT_READY where nobody takes connections: no row would say more."""
        try:
            await self._http.check_listens()
        except RequestFailed as problem:
            origin = self._request.origin
            why = f"no server answers at {origin.url.removesuffix(origin.prefix)}: {problem.failure.message}"
            step = "Check the address, and that the server runs."
            raise GpufleetError(Reason.WORKER_NOT_READY, why, next_step=step) from None

    async def ask(self, number: int) -> Outcome:
        """Send it, and read the whole answer."""
        request = self._request
        method = "GET" if request.body is None else "POST"
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._http.request(method, request.path, request.headers, request.body or b"")
        except TimeoutError:
            return _failed("timed-out", 1, f"no answer within {self._timeout_s:g} s")
        except RequestFailed as problem:
            return _failed(str(problem.failure.kind), 1, problem.failure.message)
        if 200 <= answer.status < 300:
            return Outcome({}, is_answered=True)
        said = failure_of_status(answer.status, " ".join(answer.body[:200].decode("utf-8", "replace").split()))
        return _failed(f"status {answer.status}", 1, said.message)

    def close(self) -> None:
        """Close its connections."""
        self._http.close()


def _failed(kind: str, items: int, sentence: str) -> Outcome:
    return Outcome({kind: items}, is_answered=False, sentence=sentence)


def _client(origin: Origin, settings: ClientSettings, connections: int) -> HttpOriginClient:
    return HttpOriginClient(
        origin,
        connect_timeout_s=settings.connect_timeout_s,
        answer_bytes_max=settings.answer_bytes_max,
        kept_max=connections,
    )


def _bodies(
    given: Sequence[NamedItem], batch: int, metadata: ModelMetadata, settings: ClientSettings
) -> list[tuple[EncodedRequest, list[Any]]]:
    """Requests of `batch` items each, which go round among the items. Raises INVALID_ARGUMENT where none can."""
    for each in given:
        if isinstance(each.item, Failure):
            raise GpufleetError(Reason.INVALID_ARGUMENT, f"{each.name}: {each.item.message}")
    if metadata.batch_max and batch > metadata.batch_max:
        why = f"the model takes {metadata.batch_max} items of a request at most, and --batch-size is {batch}"
        raise GpufleetError(Reason.INVALID_ARGUMENT, why, next_step=f"Give --batch-size {metadata.batch_max} or less.")
    items = [each.item for each in given]
    if len({str(key_of(item)) for item in items}) > 1:
        step = "Give items of one kind: all bytes, or all values of JSON."
        raise GpufleetError(Reason.INVALID_ARGUMENT, "the items differ in kind, and share requests", next_step=step)
    count = len(items)
    bodies = []
    for number in range(min(BODIES_MAX, count // math.gcd(count, batch))):
        part = [items[(number * batch + place) % count] for place in range(batch)]
        try:
            encoded = encode(part, metadata.inputs, binary=settings.binary, timeout_s=settings.timeout_s)
        except CannotEncode as problem:
            raise GpufleetError(Reason.INVALID_ARGUMENT, f"the items cannot be sent: {problem}") from None
        bodies.append((encoded, part))
    return bodies
