"""The NodeAgent service: what the ranks of a node left, for the user of their job."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from gpufleet.v1 import node_agent_pb2 as pb

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.jobs.files import PIECE_BYTES_MAX
from gpufleet.jobs.folders import Folder

from ...blobs.receiving import Receiving
from ...blobs.results import Stored, missing_words
from ...blobs.store import BlobStore
from ...engine import Engine
from ...state.events import CheckpointStored, ResultsReported
from ...state.ids import NodeName, RankKey, UserName
from ...state.jobs import ATTEMPTS_KEPT
from ...state.kept import KeptCopy
from ...state.results import Claim, ResultsOutcome, claim_of
from ...state.specs import InputFolder
from ...wire.convert import rank_key
from ...wire.validate import node_name
from ..answers import reply_of
from ..jobs.arrays import find_job
from .brought import MANIFEST_STEP, check_sizes, checked

PIECE_WAIT_SECONDS = 60.0
TROUBLES_MAX = 10_000
"""Ranks of which it is kept in mind why what they left could not be taken."""
GIVEN_UP_CHARS_MAX = 300
"""Of why a node keeps what a rank left no longer."""
OWN_STEP = "Nothing: the node keeps it, and brings it again; see which jobs this scheduler knows with: gpuctl history"
NOT_YET_STEP = "Nothing: the node keeps it, and brings it again."


async def store_results(
    engine: Engine, blobs: BlobStore, first: pb.StoreResultsRequest, rest: AsyncIterator[pb.StoreResultsRequest]
) -> AsyncGenerator[pb.StoreResultsResponse, None]:
    """Say what is missing, store it as it comes, and say whether it is all.

    What permits the node to delete it is answered behind its record; no error permits that. Errors: CONFLICT where the
    end of the rank is not stored yet, or a checkpoint is of one that has ended, PERMISSION_DENIED where no such rank is
    known there, and those of UploadBlob.
    """
    key, node, given_at = rank_key(first.key), _registered(engine, first), engine.now()
    job, due = await find_job(engine, key.job), engine.view.durable.results_due.get((key.job, key.attempt))
    claim, is_awaited = claim_of(job, due, node, key), due is not None and due.awaits(key)
    if first.is_checkpoint:
        if job is None or not job.spec.keep or claim is not Claim.RUNS:
            raise _no_checkpoint(node, key, claim)
    elif claim is Claim.PASSED:
        await _settle(engine, key, ResultsOutcome.NOT_WANTED, f"{ATTEMPTS_KEPT} newer attempts have ended since")
        yield pb.StoreResultsResponse(is_unwanted=True)
        return
    elif first.gives_up and not is_awaited and claim in (Claim.UNKNOWN, Claim.FOREIGN):
        if claim is Claim.UNKNOWN:  # of another node's rank a record says already what became of it
            await _give_up(engine, key, node, first.gives_up)
        yield pb.StoreResultsResponse(is_lost=True)
        return
    elif job is None or claim is not Claim.ENDED:
        raise _refused(node, key, claim)
    elif job.is_finished and not job.spec.results:
        await _settle(engine, key, ResultsOutcome.NOT_WANTED, "the job has ended: there is no next attempt")
        yield pb.StoreResultsResponse(is_unwanted=True)
        return
    if first.is_question:
        yield pb.StoreResultsResponse()
        return
    brought = checked(first, job)
    with _noted(blobs, key):
        known = await _known(blobs, key, is_given_up=bool(first.gives_up)) if brought.left is not None else None
        if known is not None:
            brought = replace(brought, left=None)
        if known is not None and brought.kept is None:
            await _tell(engine, blobs, key, known)
            yield pb.StoreResultsResponse(is_stored=True)
            return
        if first.gives_up:
            await _give_up(engine, key, node, first.gives_up)
            yield pb.StoreResultsResponse(is_lost=True)
            return
        sizes = brought.sizes
        check_sizes(brought, blobs.folder_bytes_max)
        held = [(job.user, each) for each in (*sizes, *brought.manifest_digests(first))]
        with blobs.holding(held):
            await blobs.on_thread(partial(blobs.keep, held, is_asked=False))
            missing = [each for each in sizes if blobs.size_of(job.user, each) is None]
            stored = [blobs.stored_bytes(job.user, each) for each in missing]
            yield pb.StoreResultsResponse(missing_digests=missing, stored_bytes=stored)
            async with Receiving(blobs, job.user) as files:
                for digest, size in zip(missing, stored, strict=True):
                    if size == sizes[digest]:  # a cut left it so: it came whole, and has not its name yet
                        await files.begin(digest, size)
                digest = ""
                while (piece := await _next(rest)) is not None:
                    size = _size_of(piece, sizes)
                    if piece.digest != digest:
                        digest = piece.digest
                        await files.begin(digest, size)
                    await files.take(piece.offset, piece.data)
                await files.finish()
            is_whole = all(blobs.size_of(job.user, each) is not None for each in sizes)
            if is_whole:
                copy = None
                if brought.kept is not None:
                    folder = await blobs.on_thread(_finish_kept, blobs, job.user, first.kept_manifest, brought.kept)
                    copy = KeptCopy(rank=key.rank, attempt=key.attempt, given_at=given_at, folder=folder)
                if first.is_checkpoint:
                    assert copy is not None
                    await reply_of(engine.request(CheckpointStored(at=engine.now(), key=key, copy=copy)))
                elif job.spec.results:
                    left = known
                    if left is None:
                        left = await blobs.on_thread(_finish, blobs, job.user, key, first.manifest, brought.problems)
                    await _tell(engine, blobs, key, left, copy, brought.kept_problem)
                else:
                    await _tell_kept(engine, key, copy, brought.kept_problem)
    yield pb.StoreResultsResponse(is_stored=is_whole)


def _registered(engine: Engine, first: pb.StoreResultsRequest) -> NodeName:
    """The node that speaks, as its agent registered it. Errors: PERMISSION_DENIED."""
    name = node_name(first.node)
    node = engine.view.durable.nodes.get(name)
    if node is None or node.incarnation != first.incarnation:
        why = f"node {name} is not registered by this start of its agent"
        raise GpufleetError(Reason.PERMISSION_DENIED, why, next_step=NOT_YET_STEP)
    return name


async def _known(blobs: BlobStore, key: RankKey, *, is_given_up: bool) -> Stored | None:
    """What is stored of a rank; of one that is given up nothing, as far as is known while the place is away."""
    try:
        return await blobs.on_thread(blobs.results.of, key)
    except GpufleetError as problem:
        if problem.reason is not Reason.STORE_UNAVAILABLE or not is_given_up:
            raise
        return None


def _refused(node: NodeName, key: RankKey, claim: Claim) -> GpufleetError:
    if claim is Claim.RUNS:
        return GpufleetError(Reason.CONFLICT, f"the end of attempt {key} is not stored yet", next_step=NOT_YET_STEP)
    why = f"no attempt that has run on node {node} and is to leave files is called {key}"
    return GpufleetError(Reason.PERMISSION_DENIED, why, next_step=OWN_STEP)


def _no_checkpoint(node: NodeName, key: RankKey, claim: Claim) -> GpufleetError:
    if claim is Claim.ENDED:
        return GpufleetError(Reason.CONFLICT, f"attempt {key} has ended", next_step=NOT_YET_STEP)
    why = f"no attempt that runs on node {node} and keeps files is called {key}"
    return GpufleetError(Reason.PERMISSION_DENIED, why, next_step=OWN_STEP)


def _size_of(piece: pb.StoreResultsRequest, sizes: dict[str, int]) -> int:
    """The size of the chunk that it is a piece of. Errors: INVALID_ARGUMENT."""
    size = sizes.get(piece.digest)
    if size is None:
        raise invalid("digest", "is of no chunk of the manifest", next_step=MANIFEST_STEP)
    if len(piece.data) > PIECE_BYTES_MAX or not 0 <= piece.offset <= size - len(piece.data):
        raise invalid("offset", "is not within the chunk", next_step=MANIFEST_STEP)
    return size


@contextmanager
def _noted(blobs: BlobStore, key: RankKey) -> Iterator[None]:
    """Keep in mind why it could not be taken, for who waits for it."""
    try:
        yield
    except GpufleetError as problem:
        troubles = blobs.results.trouble
        troubles[key] = problem.message
        while len(troubles) > TROUBLES_MAX:
            del troubles[next(iter(troubles))]
        raise
    blobs.results.trouble.pop(key, None)


async def _give_up(engine: Engine, key: RankKey, node: NodeName, why: str) -> None:
    """Have it in the job's story that what a rank left is lost, before its node is permitted to delete it."""
    await _settle(engine, key, ResultsOutcome.LOST, f"node {node} gave it up: {why[:GIVEN_UP_CHARS_MAX]}")


async def _settle(engine: Engine, key: RankKey, outcome: ResultsOutcome, message: str) -> None:
    await reply_of(engine.request(ResultsReported(at=engine.now(), key=key, outcome=outcome, message=message)))


async def _tell(
    engine: Engine, blobs: BlobStore, key: RankKey, stored: Stored, copy: KeptCopy | None = None, kept_problem: str = ""
) -> None:
    """Have it in the job's story, once: before its node is answered, and again only where it is still awaited."""
    due = engine.view.durable.results_due.get((key.job, key.attempt))
    if not stored.is_new and copy is None and (due is None or not due.awaits(key)):
        return
    folder = await blobs.on_thread(blobs.folders.read, stored.user, stored.digest)
    message = "; ".join(filter(None, (missing_words(stored.problems), _not_kept_words(kept_problem))))
    told = ResultsReported(
        at=engine.now(),
        key=key,
        outcome=ResultsOutcome.INCOMPLETE if message else ResultsOutcome.STORED,
        file_count=len(folder.entries),
        size_bytes=folder.content_bytes,
        message=message,
        kept=copy,
    )
    await reply_of(engine.request(told))


async def _tell_kept(engine: Engine, key: RankKey, copy: KeptCopy | None, kept_problem: str) -> None:
    """The same of a job that leaves nothing but what it keeps."""
    reported = ResultsReported(
        at=engine.now(),
        key=key,
        outcome=ResultsOutcome.STORED if copy is not None else ResultsOutcome.INCOMPLETE,
        file_count=0 if copy is None else copy.folder.entry_count,
        size_bytes=0 if copy is None else copy.folder.content_bytes,
        message=_not_kept_words(kept_problem),
        kept=copy,
    )
    await reply_of(engine.request(reported))


def _not_kept_words(problem: str) -> str:
    return f"nothing is kept of this attempt, as {problem}" if problem else ""


def _finish(blobs: BlobStore, user: UserName, key: RankKey, manifest: bytes, problems: tuple[str, ...]) -> Stored:
    stored = Stored(user, _finish_manifest(blobs, user, manifest), problems, is_new=True)
    blobs.results.add(key, stored)
    return stored


def _finish_kept(blobs: BlobStore, user: UserName, manifest: bytes, folder: Folder) -> InputFolder:
    digest = _finish_manifest(blobs, user, manifest)
    return InputFolder(
        digest=digest,
        size_bytes=len(manifest),
        entry_count=len(folder.entries),
        content_bytes=folder.content_bytes,
    )


def _finish_manifest(blobs: BlobStore, user: UserName, manifest: bytes) -> str:
    digest = hashlib.sha256(manifest).hexdigest()
    if manifest:  # that nothing came, and why, is said of those as well who have no room for anything
        blobs.check_room(user, digest, len(manifest))
        blobs.write(user, digest, 0, manifest)
        blobs.finish(user, digest, len(manifest))
    return digest


async def _next(requests: AsyncIterator[pb.StoreResultsRequest]) -> pb.StoreResultsRequest | None:
    try:
        async with asyncio.timeout(PIECE_WAIT_SECONDS):
            return await anext(requests, None)
    except TimeoutError:
        why = f"nothing of the files came for {PIECE_WAIT_SECONDS:.0f} s; what came is stored"
        raise GpufleetError(Reason.DEADLINE, why, next_step="Send them again: it goes on where it stands.") from None
