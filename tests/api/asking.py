"""What several tests of the contract ask of the scheduler."""

from __future__ import annotations

import grpc
import grpc.aio
from gpufleet.v1 import scheduler_pb2

from tests.e2e.client import Client
from tests.e2e.processes import until


async def forget_node(admin: Client, node: str) -> None:
    """Drop a node that a test made; refused for as long as its stream is still being closed."""

    async def is_forgotten() -> bool:
        try:
            await admin.stub.ForgetNode(scheduler_pb2.ForgetNodeRequest(node=node))
        except grpc.aio.AioRpcError as problem:
            assert problem.code() is grpc.StatusCode.FAILED_PRECONDITION, problem
            return False
        return True

    await until(f"node {node} is forgotten", is_forgotten)
