"""A worker with nothing around it: for each message of a stream a step of the test pattern, as JPEG."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from gpufleet.model import Inputs, Pointer, Session
from inference.core.pacing import QUALITIES
from inference.encoding import JPEG, encode
from inference.models.test_pattern import TestPattern

from ..floors import SERVICE


async def _serve() -> None:
    """Serve; prints the port."""
    model = TestPattern()

    async def stream(requests: Any, _: Any) -> AsyncIterator[bytes]:
        state = model.open(Session(id="bench"))
        newest = 0
        async for _request in requests:
            newest += 1
            inputs = Inputs(events=(), pointer=Pointer(0.5, 0.5, 0, 1), elapsed_s=0.03, coalesced=0, newest=newest)
            picture = model.step(state, inputs)
            yield encode(picture, JPEG, QUALITIES[0])

    server = grpc.aio.server()
    handlers: Any = {"Stream": grpc.stream_stream_rpc_method_handler(stream)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
