"""Passes questions about the folder of a running job, and their answers, between a person and the job's node."""

from collections.abc import AsyncIterator
from typing import Any

from gpufleet.v1 import files_pb2, node_agent_pb2

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.net.carrying import PIECE_BYTES_MAX

from ...blobs.store import BlobStore
from .tunnels import AgentSide, Direction, relay

Request = files_pb2.AccessFilesRequest
Response = files_pb2.AccessFilesResponse


_OF_READERS = (None, "list", "read")
"""What may be asked by who only reads; another question is for the job's owner and admins until it stands here."""


async def relay_files(
    requests: AsyncIterator[Request], context: Any, side: AgentSide, blobs: BlobStore, *, may_write: bool
) -> None:
    """Until the person asks no more, or one side has gone. Errors: INVALID_ARGUMENT, FILE_TOO_LARGE, NOT_YOUR_JOB."""

    async def up(request: Request) -> bool:
        if request.HasField("target"):
            raise invalid("target", "belongs into the first message only")
        if len(request.data) > PIECE_BYTES_MAX:
            raise invalid("data", f"holds {len(request.data):,} bytes; at most {PIECE_BYTES_MAX:,} a message")
        if not may_write and (request.question.WhichOneof("what") not in _OF_READERS or request.data):
            raise GpufleetError(Reason.NOT_YOUR_JOB, "only the job's owner and admins write into its folder")
        most, size = blobs.file_bytes_max, request.question.write.size_bytes
        if size > most:
            why = f"the file has {size:,} bytes; at most {most:,} are taken"
            raise GpufleetError(Reason.FILE_TOO_LARGE, why, next_step="an admin sets [files] file_bytes_max")
        message = node_agent_pb2.CarryFilesResponse(data=request.data)
        if request.HasField("question"):
            message.question.CopyFrom(request.question)
        await side.context.write(message)
        return True

    async def down(message: node_agent_pb2.CarryFilesRequest) -> bool:
        await context.write(Response(answer=message.answer))
        return True

    from_person = Direction(lambda: anext(requests, None), up)
    await relay(side, from_person, Direction(lambda: anext(side.requests, None), down))
