"""The NodeAgent service: the files of an attempt, for the node that it is placed on and nobody else."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import PIECE_BYTES_MAX, is_digest
from gpufleet.jobs.folders import ManifestError

from ...blobs.reading import pieces_from
from ...blobs.store import BlobStore
from ...links import Links
from ...state.durable import Durable
from ...state.ids import UserName
from ...state.jobs import Job, folders_of
from ...state.specs import InputFolder
from ...wire.convert import rank_key
from ...wire.validate import node_name
from ..jobs.input_sources import InputSources

OWN_STEP = "Nothing: a node fetches the files of its own attempts alone."


async def pieces_of(
    durable: Durable, links: Links, blobs: BlobStore, inputs: InputSources, request: pb.FetchBlobRequest
) -> AsyncGenerator[pb.FetchBlobResponse, None]:
    """The bytes from the offset on. Errors: PERMISSION_DENIED, FILE_NOT_UPLOADED, OFFSET_OUT_OF_RANGE.

    Of what other jobs left also INPUT_UNUSABLE, and CONFLICT while it is still coming.
    """
    if request.wants_inputs:
        sources = await inputs.of_attempt(job_of(durable, request), request.key.attempt)
        found = pb.InputSources(
            sources=[
                pb.InputSource(
                    input=each.input,
                    digest=each.digest,
                    size_bytes=each.size_bytes,
                    folder=each.folder,
                    words=each.words,
                )
                for each in sources
            ]
        ).SerializeToString()
        for offset in range(0, len(found), PIECE_BYTES_MAX):
            yield pb.FetchBlobResponse(data=found[offset : offset + PIECE_BYTES_MAX], offset=offset)
        return
    if not is_digest(request.digest):
        raise invalid("digest", "is not a SHA-256 in lower-case hexadecimal", next_step="name a file of the launch")
    if request.check_request:
        owner = _owner_of_check(links, request)
    else:
        job = job_of(durable, request)
        owner = await _owner_of_file(blobs, inputs, job, request)
    reader = await blobs.on_thread(blobs.open, owner, request.digest)
    if reader is None:
        raise GpufleetError(Reason.FILE_NOT_UPLOADED, f"file {request.digest} of {owner} is not stored any more")
    async with aclosing(pieces_from(blobs, reader, request.offset)) as pieces:
        async for offset, data in pieces:
            yield pb.FetchBlobResponse(data=data, offset=offset)


async def _owner_of_file(blobs: BlobStore, inputs: InputSources, job: Job, request: pb.FetchBlobRequest) -> UserName:
    """Whose file it is that the job names, or that another one left for it. Errors: PERMISSION_DENIED."""
    if await blobs.on_thread(_is_named, blobs, job, request.digest):
        return job.user
    owner = await inputs.owner_of(job, request.key.attempt, request.digest) if job.spec.inputs else None
    if owner is not None:
        return owner
    raise GpufleetError(
        Reason.PERMISSION_DENIED,
        f"no attempt that is placed on node {request.node} names this file",
        next_step=OWN_STEP,
    )


def _owner_of_check(links: Links, request: pb.FetchBlobRequest) -> UserName:
    """Whose file it is, if the node is asked just now how fast it comes."""
    connection = links.of(node_name(request.node))
    check = None if connection is None else connection.checks.get(request.check_request)
    if connection is None or connection.incarnation != request.incarnation or check is None:
        check = None
    if check is None or check.digest != request.digest:
        raise GpufleetError(
            Reason.PERMISSION_DENIED,
            f"node {request.node} is not asked to check this file",
            next_step="Nothing: a node fetches for a check what that names.",
        )
    return check.user


def job_of(durable: Durable, request: pb.FetchBlobRequest) -> Job:
    """The job that the file is for, if an attempt of it is placed on the node now. Errors: PERMISSION_DENIED."""
    name, key = node_name(request.node), rank_key(request.key)
    node, job = durable.nodes.get(name), durable.jobs.get(key.job)
    is_current = node is not None and node.incarnation == request.incarnation
    is_placed = is_current and key in durable.hold(name).ranks
    if not is_placed or job is None:
        raise GpufleetError(Reason.PERMISSION_DENIED, f"no such attempt is placed on node {name}", next_step=OWN_STEP)
    return job


def _is_named(blobs: BlobStore, job: Job, digest: str) -> bool:
    """Whether it is one of the job's files, or belongs to a folder that it is given. It may read manifests."""
    folders = folders_of(job)
    named = {each.digest for each in job.spec.files} | {each.digest for each in folders}
    if digest in named:
        return True
    return any(_is_in(blobs, job.user, folder, digest) for folder in folders)


def _is_in(blobs: BlobStore, user: UserName, folder: InputFolder, digest: str) -> bool:
    try:
        return digest in blobs.folders.contents(user, folder.digest).chunks
    except ManifestError:
        return False
