"""The NodeAgent service: the files of an attempt, for the node that it is placed on and nobody else."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import is_digest

from ...blobs.reading import pieces_from
from ...blobs.store import BlobStore
from ...state.durable import Durable
from ...state.ids import UserName
from ...wire.convert import rank_key
from ...wire.validate import node_name


async def pieces_of(
    durable: Durable, blobs: BlobStore, request: pb.FetchBlobRequest
) -> AsyncGenerator[pb.FetchBlobResponse, None]:
    """The bytes from the offset on. Errors: PERMISSION_DENIED, FILE_NOT_UPLOADED, OFFSET_OUT_OF_RANGE."""
    if not is_digest(request.digest):
        raise invalid("digest", "is not a SHA-256 in lower-case hexadecimal", next_step="name a file of the launch")
    owner = owner_of(durable, request)
    descriptor = await asyncio.to_thread(blobs.open, owner, request.digest)
    if descriptor is None:
        raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"file {request.digest} of {owner} is not stored any more")
    async with aclosing(pieces_from(descriptor, request.offset)) as pieces:
        async for offset, data in pieces:
            yield pb.FetchBlobResponse(data=data, offset=offset)


def owner_of(durable: Durable, request: pb.FetchBlobRequest) -> UserName:
    """Whose file it is, if an attempt that is placed on the node now names it."""
    name, key = node_name(request.node), rank_key(request.key)
    node, job = durable.nodes.get(name), durable.jobs.get(key.job)
    is_current = node is not None and node.incarnation == request.incarnation
    is_placed = is_current and key in durable.hold(name).ranks
    if not is_placed or job is None or all(each.digest != request.digest for each in job.spec.files):
        raise GpufleetError(
            Reason.PERMISSION_DENIED,
            f"no attempt that is placed on node {name} names this file",
            next_step="Nothing: a node fetches the files of its own attempts alone.",
        )
    return job.user
