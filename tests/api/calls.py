"""Every call of the contract, by name, from the descriptors: nothing is forgotten when one is added."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
from google.protobuf.message_factory import GetMessageClass
from gpufleet.v1 import node_agent_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.net.status import from_rpc_error

SERVICES = (
    scheduler_pb2.DESCRIPTOR.services_by_name["Scheduler"],
    node_agent_pb2.DESCRIPTOR.services_by_name["NodeAgent"],
)
METHODS: dict[str, Any] = {
    f"{service.name}/{method.name}": method for service in SERVICES for method in service.methods
}
PROTOS = Path(__file__).parents[2] / "protos" / "gpufleet" / "v1"
ANSWER_SECONDS = 60.0


def not_built() -> list[str]:
    """The calls of which the contract says that they are not built yet."""
    found = []
    for service, file in (("Scheduler", "scheduler.proto"), ("NodeAgent", "node_agent.proto")):
        text = (PROTOS / file).read_text()
        found += [f"{service}/{name}" for name in re.findall(r"Not built yet\.\n  rpc (\w+)\(", text)]
    return found


class Caller:
    """Makes any call by its name; nothing is added that is not given."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel: Any = channel

    def forget(self) -> None:
        """Let go of the channel: pytest keeps a fixture's value longer than gRPC's threads may live."""
        del self.channel

    async def reason(self, name: str, request: Any = None, token: str | None = None) -> Reason | None:
        """The reason why a call is refused, None when it is answered."""
        error = await self.error(name, request, token)
        return None if error is None else error.reason

    async def error(self, name: str, request: Any = None, token: str | None = None) -> GpufleetError | None:
        """The error of a call, by default with an empty request; of a stream the first message decides."""
        method = METHODS[name]
        message = GetMessageClass(method.input_type)() if request is None else request
        kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        multi_callable = getattr(self.channel, kind)(
            f"/gpufleet.v1.{name}",
            request_serializer=lambda each: each.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        metadata = () if token is None else (("authorization", f"Bearer {token}"),)
        call = multi_callable(one(message) if method.client_streaming else message, metadata=metadata)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await (call.read() if method.server_streaming else call)
        except grpc.aio.AioRpcError as problem:
            return from_rpc_error(problem)
        finally:
            call.cancel()
        return None


async def one(message: Any) -> AsyncIterator[Any]:
    """A stream of one message."""
    yield message
