"""Calls of every service that a port has, as its reflection tells: streams of strange messages, and strange ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import Default
from gpufleet.v1 import inference_pb2, node_agent_pb2, scheduler_pb2
from gpufleet.v1.open_inference import open_inference_pb2
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from gpufleet.net.stream_calls import StreamCall
from tests.fuzz.http2 import statuses, wrong_call
from tests.fuzz.messages import Forge
from tests.fuzz.steering import STEERED

KNOWN = (scheduler_pb2, node_agent_pb2, inference_pb2, open_inference_pb2, health_pb2, reflection_pb2)
"""What has the descriptors of whatever a port may name."""

MESSAGES_MAX = 8
"""Of one call."""
ANSWERS_MAX = 30
"""So many answers of a stream are read; then it is left."""
SECONDS = (0.05, 0.2, 0.2, 0.5, 1.0)
"""How long a call may take: most answer at once, and streams would go on for ever."""

BAD = frozenset({"INTERNAL", "UNKNOWN"})

OF_GRPC: Mapping[str, frozenset[str]] = {
    "wrong length": frozenset({"INTERNAL"}),
    "half a frame": frozenset({"INTERNAL"}),
    "compression flag": frozenset({"INTERNAL"}),
    "corrupt gzip": frozenset({"INTERNAL"}),
    "made-up encoding": frozenset({"INTERNAL"}),
    "odd deadline": frozenset({"INTERNAL"}),
    "odd path": frozenset({"UNKNOWN"}),
    "bits turned": frozenset({"INTERNAL", "UNKNOWN"}),
}
"""What gRPC itself answers, by its specification, before there is a message or a method: nothing of ours has a say.
Where the path of a call is no text, there is no method that could answer, and it says UNKNOWN."""


@dataclass(frozen=True, slots=True)
class Call:
    """A method of a port. `path` is as on the wire."""

    port: str
    address: str
    method: MethodDescriptor

    @property
    def name(self) -> str:
        """Service/Method."""
        return f"{self.method.containing_service.name}/{self.method.name}"

    @property
    def path(self) -> str:
        """As on the wire."""
        return f"/{self.method.containing_service.full_name}/{self.method.name}"


async def calls_of(port: str, address: str) -> list[Call]:
    """Every method of every service there, asked of the port itself."""

    async def requests() -> AsyncIterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")

    async with grpc.aio.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        async for answer in stub.ServerReflectionInfo(requests()):
            names = [each.name for each in answer.list_services_response.service]
        del stub
    services = [Default().FindServiceByName(name) for name in names]
    return [Call(port, address, method) for service in services for method in service.methods]


@dataclass(slots=True)
class Tally:
    """What was sent, and what came of it."""

    messages: Counter[str]
    calls: Counter[str]
    statuses: Counter[tuple[str, str]]
    wrong: list[str]

    @classmethod
    def empty(cls) -> Tally:
        """Nothing yet."""
        return cls(Counter(), Counter(), Counter(), [])


class Caller:
    """Makes one call after the other; each is a function of its number's own randomness."""

    def __init__(self, channels: dict[str, Sequence[grpc.aio.Channel]], tokens: dict[str, str], tally: Tally) -> None:
        self._channels = channels
        self._tokens = tokens
        self._tally = tally

    async def make(self, call: Call, random: Random, *, known: Any, roles: Sequence[str]) -> None:
        """One call, and its status counted."""
        forge = Forge(random, known)
        steered = STEERED.get(call.name)
        steer = None if steered is None else steered.steer
        secret = self._secret(random, roles)
        streams = call.method.client_streaming
        count = random.randrange(MESSAGES_MAX + 1) if streams else random.choice((1, 1, 1, 1, 1, 1, 1, 1, 0, 2))
        descriptor = call.method.input_type
        sent = [forge.request(descriptor, steer, is_first=number == 0) for number in range(count)]
        self._tally.messages[call.name] += max(1, count)
        self._tally.calls[call.name] += 1
        if random.random() < 0.06:
            host, _, port = call.address.rpartition(":")
            data, kind = wrong_call(random, forge, call.path, secret, sent[0] if sent else b"")
            with suppress(OSError):
                for number in await statuses(host, int(port), data):
                    self._count(call, _name(number), f"by hand, {kind}", OF_GRPC.get(kind, frozenset()))
            return
        code, details = await self._status(call, random, sent, secret)
        self._count(call, code.name, f"{[each[:200] for each in sent]!r}: {details[:400]}", frozenset())

    def _count(self, call: Call, status: str, about: str, of_grpc: frozenset[str]) -> None:
        is_librarys = status in of_grpc
        self._tally.statuses[call.name, f"{status} of gRPC" if is_librarys else status] += 1
        if status in BAD and not is_librarys:
            self._tally.wrong.append(f"{call.name} answered {status} to {about}")

    async def _status(
        self, call: Call, random: Random, sent: Sequence[bytes], secret: str
    ) -> tuple[grpc.StatusCode, str]:
        channel = random.choice(self._channels[call.address])
        timeout = 0.0 if random.random() < 0.01 else random.choice(SECONDS)
        metadata = (*((("authorization", f"Bearer {secret}"),) if secret else ()), *_trouble(random))
        asked: Any = channel.stream_stream(call.path)(timeout=timeout, metadata=metadata)
        made = StreamCall(asked)
        closes, leaves_after = random.random() < 0.8, random.choice((None,) * 8 + (1, 2))
        writing = asyncio.create_task(_write(made, sent, closes=closes))
        try:
            answers = 0
            async for _ in made:
                answers += 1
                if answers == leaves_after or answers >= ANSWERS_MAX:
                    break
            else:
                return await made.code(), await made.details()
            made.cancel()
            return grpc.StatusCode.CANCELLED, ""
        except grpc.aio.AioRpcError as problem:
            return problem.code(), problem.details() or ""
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    def _secret(self, random: Random, roles: Sequence[str]) -> str:
        draw = random.random()
        if draw < 0.04:
            return ""
        if draw < 0.08:
            return random.choice(("made-up", "x" * 5_000, "gpt_" + "0" * 40, " "))
        fitting = [self._tokens[role] for role in roles if role in self._tokens]
        if draw < 0.80 and fitting:
            return random.choice(fitting)
        return random.choice(list(self._tokens.values()))


async def _write(call: Any, sent: Sequence[bytes], *, closes: bool) -> None:
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
        for each in sent:
            await call.write(each)
        if closes:
            await call.done_writing()


def _trouble(random: Random) -> tuple[tuple[str, str | bytes], ...]:
    if random.random() > 0.06:
        return ()
    return random.choice(
        (
            (("authorization", "Bearer twice"),),
            (("authorization", "Basic x"), ("authorization", "")),
            (("x-huge", "y" * 12_000),),
            (("x-some-bin", b"\xff\x00\xed\xa0\x80"),),
            (("traceparent", "00-zz-zz-01"),),
            (("traceparent", "00-" + "1" * 32 + "-" + "2" * 16 + "-01"), ("tracestate", "=" * 600)),
            (("grpc-accept-encoding", "snow"),),
        )
    )


def _name(number: int) -> str:
    return next((each.name for each in grpc.StatusCode if each.value[0] == number), str(number))
