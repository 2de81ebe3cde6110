"""Asks the node of a running rank to store what that keeps for the next attempt, and waits until it is stored."""

import asyncio

from gpufleet.v1 import files_pb2, node_agent_pb2

from gpufleet.errors import GpufleetError, Reason, invalid

from ...state.ids import RankKey
from ...state.jobs import Job
from .tunnels import AgentSide

KEEP_SECONDS_MAX = 3_600.0
"""How long a call waits until all of it is stored."""


def check_keeps(job: Job) -> None:
    """Refuse a job that keeps nothing. Errors: INVALID_ARGUMENT."""
    if not job.spec.keep:
        raise invalid(
            "job_id",
            f"is {job.id}, a job that keeps nothing for its next attempt",
            next_step="say what it keeps when you submit it: --keep 'ckpt/**'",
        )


async def kept_by(side: AgentSide, key: RankKey) -> files_pb2.KeepFilesResponse:
    """What a rank has had stored. Errors: what the agent says, DEADLINE, NODE_UNREACHABLE."""
    question = files_pb2.FolderQuestion(keep=files_pb2.KeepFolder())
    await side.context.write(node_agent_pb2.CarryFilesResponse(question=question))
    try:
        async with asyncio.timeout(KEEP_SECONDS_MAX):
            message = await anext(side.requests, None)
    except TimeoutError:
        why = f"not all of what attempt {key} keeps was stored within {KEEP_SECONDS_MAX:.0f} s"
        raise GpufleetError(Reason.DEADLINE, why, next_step="Try again: what came is stored already.") from None
    if message is None:
        why = f"the node of attempt {key} has gone before all was stored"
        raise GpufleetError(Reason.NODE_UNREACHABLE, why, next_step="Try again when it is back: gpuctl nodes")
    answer = message.answer
    if answer.problem:
        reason = Reason[answer.reason] if answer.reason in Reason.__members__ else Reason.CONFLICT
        raise GpufleetError(reason, answer.problem, next_step="The job goes on; the copy before this one counts.")
    return files_pb2.KeepFilesResponse(attempt=key.attempt, file_count=answer.file_count, size_bytes=answer.size_bytes)
