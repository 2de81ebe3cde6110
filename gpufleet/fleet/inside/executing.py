"""A command in a job's world whose output is wanted: what it is given goes up, what it writes comes down."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import grpc.aio

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import AsyncClient, is_told_to_end, understood
from gpufleet.fleet.exit_codes import SIGNALLED
from gpufleet.v1 import job_pb2, scheduler_pb2

PIECE_BYTES_MAX = 256 * 1024
"""What one message takes to it."""

WRITTEN_BYTES_MAX = 64 * 2**20
"""What it may write to be brought here whole."""

Request = scheduler_pb2.ExecJobRequest


@dataclass(frozen=True, slots=True)
class Executed:
    """How a command ended: what it exited with, 128 + n for a signal; and the bytes that it wrote.

    `problem` is why it could not be run, then with the exit code that a shell gives; else empty.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    problem: str = ""


def code_of(status: job_pb2.ExitStatus) -> int:
    """The exit code as a shell has it."""
    return SIGNALLED + status.signal if status.HasField("signal") else status.code


async def execute(client: AsyncClient, job_id: int, argv: Sequence[str], given: bytes, rank: int) -> Executed:
    """Run it to its end. To cancel this ends it.

    Errors: those of ExecJob, and MESSAGE_TOO_LARGE where it writes more than WRITTEN_BYTES_MAX.
    """
    call: Any = client.scheduler.ExecJob()
    start = job_pb2.ExecStart(job_id=job_id, rank=rank, argv=argv, has_input=bool(given))
    sending = asyncio.create_task(_send(call, start, given))
    try:
        return await _written(call)
    except (grpc.RpcError, grpc.aio.InternalError, asyncio.InvalidStateError, asyncio.CancelledError) as failure:
        if is_told_to_end():
            raise
        raise understood(failure, client.translated) from None
    finally:
        call.cancel()
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)


async def _send(call: Any, start: job_pb2.ExecStart, given: bytes) -> None:
    with contextlib.suppress(asyncio.InvalidStateError):  # whoever reads the call hears why it ended
        await call.write(Request(start=start))
        for offset in range(0, len(given), PIECE_BYTES_MAX):
            await call.write(Request(data=given[offset : offset + PIECE_BYTES_MAX]))
        if given:
            await call.write(Request(is_end=True))


async def _written(call: Any) -> Executed:
    out, error = bytearray(), bytearray()
    while (message := await call.read()) is not grpc.aio.EOF:
        (error if message.stream == job_pb2.STREAM_STDERR else out).extend(message.data)
        if len(out) + len(error) > WRITTEN_BYTES_MAX:
            raise GpufleetError(
                Reason.MESSAGE_TOO_LARGE,
                f"the command has written more than {WRITTEN_BYTES_MAX // 2**20} MiB",
                next_step="Have it write to a file of the job's folder, and bring that here with gpuctl cp.",
            )
        if message.HasField("exit"):
            return Executed(code_of(message.exit), bytes(out), bytes(error), message.problem)
    raise command_cut_off()


def command_cut_off() -> GpufleetError:
    """The error of a command in a job whose scheduler, agent or network went away before it had ended."""
    return GpufleetError(
        Reason.OUTCOME_UNKNOWN,
        "the connection ended, and the command with it",
        next_step="The job goes on. See whether its node is there with gpuctl nodes, and run the command again.",
    )
