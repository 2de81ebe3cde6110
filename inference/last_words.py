"""What a worker tells its scheduler that cannot even begin: why, so that nobody has to look for it in a log.

A worker that has begun says it over its link. This one has no model, no server, and maybe not what those need: it dials
with what gRPC and the contract alone give, and only where the fleet started it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
from contextlib import suppress

import grpc.aio
from gpufleet.v1 import inference_pb2, scheduler_pb2_grpc, sessions_pb2

from gpufleet.errors import GpufleetError
from gpufleet.host.facts import first_installed
from gpufleet.net.channel import Target, connect_async

from .loading import model_name
from .options import SECRET_VARIABLE, schedulers_of, token_of

TELL_S_MAX = 5.0
"""How long the scheduler may take to hear it; what it does not hear stands in the output."""

NO_ENDPOINT = "127.0.0.1:0"
"""Where such a worker is reached: nowhere. The contract wants one."""


def tell(given: argparse.Namespace, problem: GpufleetError) -> None:
    """Say why this worker ends before it has begun, if the fleet started it. Never raises."""
    if SECRET_VARIABLE in os.environ:
        with suppress(GpufleetError, grpc.RpcError, OSError, TimeoutError, ValueError):
            asyncio.run(_tell(given, problem))


async def _tell(given: argparse.Namespace, problem: GpufleetError) -> None:
    hello = sessions_pb2.WorkerHello(
        model=given.name or model_name(given.model),
        endpoint=NO_ENDPOINT,
        job_id=int(os.environ.get("GPUFLEET_JOB_ID", "0")),
        attempt=int(os.environ.get("GPUFLEET_ATTEMPT", "0")),
        worker_start=secrets.token_hex(16),
        worker_version=first_installed(["gpufleet"]),
    )
    why = f"{problem.message.rstrip('.')}. {problem.next_step}".strip()
    report = sessions_pb2.WorkerReport(state=inference_pb2.WORKER_STATE_FAILED, message=why)
    async with asyncio.timeout(TELL_S_MAX):
        first, *others = schedulers_of(given)
        target = Target(
            address=first,
            others=tuple(others),
            token=token_of(given),
            ca_file=given.ca_file,
            client_cert_file=given.client_cert_file,
            is_insecure=given.insecure,
        )
        async with connect_async(target) as channel:
            call = scheduler_pb2_grpc.SchedulerStub(channel).ConnectWorker()
            with suppress(grpc.RpcError, asyncio.InvalidStateError):
                await call.write(sessions_pb2.ConnectWorkerRequest(hello=hello))
                await call.read()
                await call.write(sessions_pb2.ConnectWorkerRequest(report=report))
                await call.done_writing()
                # It ends the stream once it has read all of it.
                while await call.read() is not grpc.aio.EOF:
                    pass
