"""Where the files are that `--input` names: of each rank of another job, once all of them are stored."""

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass

from gpufleet.v1 import files_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.folders import ManifestError
from gpufleet.jobs.results import Chosen

from ...blobs.results import EMPTY_DIGEST, Stored
from ...blobs.store import BlobStore
from ...engine import Engine
from ...state.ids import JobId, UserName
from ...state.jobs import Finished, Job
from ...state.specs import JobInput
from .arrays import find_job, items_at, items_of
from .what_came import RankLeft, left_by_ranks

RANK_FOLDER, ITEM_FOLDER = "rank-{}", "item-{}"
"""As gpuctl cp names them."""
ITEMS_MAX = 10_000
"""Items of an array that one input may name."""
ITEMS_READ = 1_000
BLOBS_REMEMBERED_MAX = 200_000
"""Manifests and chunks of inputs of which it is remembered whose they are, of all attempts that fetch them."""
GONE = (files_pb2.RESULTS_STATE_LOST, files_pb2.RESULTS_STATE_DROPPED)


@dataclass(frozen=True, slots=True)
class Source:
    """What one rank of another job left: its manifest, whose it is, and the folder for its files, empty for none."""

    user: UserName
    digest: str
    size_bytes: int
    folder: str
    words: str
    input: int = 0


@dataclass(frozen=True, slots=True)
class _Known:
    """The sources of an attempt, and whose each blob of them is."""

    sources: tuple[Source, ...]
    owners: Mapping[str, UserName]


class InputSources:
    """Finds them. `is_shared` says whether everybody reads what jobs write."""

    def __init__(self, engine: Engine, blobs: BlobStore, is_shared: Callable[[], bool]) -> None:
        self._engine = engine
        self._blobs = blobs
        self._is_shared = is_shared
        self._known: OrderedDict[tuple[JobId, int], _Known] = OrderedDict()

    async def of_attempt(self, job: Job, attempt: int) -> tuple[Source, ...]:
        """Those of all inputs of a job, as its submitter may read them now.

        Errors: INPUT_UNUSABLE, and CONFLICT while something of them is still coming.
        """
        return (await self._found(job, attempt)).sources

    async def owner_of(self, job: Job, attempt: int, digest: str) -> UserName | None:
        """Whose blob it is, if it is a manifest of these sources or a chunk of one. Errors: as `of_attempt`."""
        known = self._known.get((job.id, attempt)) or await self._found(job, attempt)
        return known.owners.get(digest)

    async def _found(self, job: Job, attempt: int) -> _Known:
        """Look for them anew, and remember them for what is fetched of them."""
        sources = tuple([source async for source in self._of_job(job)])
        found = _Known(sources, await self._blobs.on_thread(_owners, self._blobs, sources))
        self._known[job.id, attempt] = found
        while len(self._known) > 1 and sum(len(each.owners) for each in self._known.values()) > BLOBS_REMEMBERED_MAX:
            self._known.popitem(last=False)
        return found

    async def of(self, number: int, wanted: JobInput, left: Job) -> AsyncIterator[Source]:
        """Those of one input; `left` is the job that it names. Errors: as `of_attempt`."""
        if left.items is None:
            async for source in self._of_ranks(number, wanted, left, f"job {left.id}", ""):
                yield source
            return
        indices = items_of(left).indices
        for begin in range(0, indices.count, ITEMS_READ):
            for item in await items_at(self._engine, left, begin, min(begin + ITEMS_READ, indices.count)):
                index = indices.at(item.id - left.id - 1)
                words, folder = f"job {left.id}.{index}", ITEM_FOLDER.format(index)
                async for source in self._of_ranks(number, wanted, item, words, folder):
                    yield source

    async def chooses_any(self, source: Source, pattern: str) -> bool:
        """Whether a line chooses a file of a source."""
        return await self._blobs.on_thread(_chooses_any, self._blobs, source, pattern)

    async def _of_job(self, job: Job) -> AsyncIterator[Source]:
        for number, wanted in enumerate(job.spec.inputs):
            left = await find_job(self._engine, wanted.job)
            if left is None:
                why = f"nothing is known of job {wanted.job} any more"
                raise _unusable(why, "Run it again; or give the job its files with --file.")
            if not (left.user == job.user or wanted.is_of_admin or self._is_shared()):
                why = f"job {left.id} belongs to {left.user}, and {job.user} may not read what it left"
                raise _unusable(why, f"Ask {left.user}, or an admin.")
            async for source in self.of(number, wanted, left):
                yield source

    async def _of_ranks(
        self, number: int, wanted: JobInput, left: Job, words: str, folder: str
    ) -> AsyncIterator[Source]:
        ranks = await left_by_ranks(self._engine, self._blobs, left)
        for each in ranks:
            whose = words if len(ranks) == 1 else f"rank {each.key.rank} of {words}"
            stored = _stored(each, whose, left.id)
            if stored.digest != EMPTY_DIGEST:
                inner = RANK_FOLDER.format(each.key.rank) if len(ranks) > 1 else ""
                place = "/".join(filter(None, (wanted.name, folder, inner)))
                size = await self._blobs.on_thread(_size, self._blobs, stored, whose)
                yield Source(stored.user, stored.digest, size, place, whose, number)


def _unusable(why: str, next_step: str) -> GpufleetError:
    """What an input names cannot be had, and never will be."""
    return GpufleetError(Reason.INPUT_UNUSABLE, why, next_step=next_step)


def _stored(left: RankLeft, words: str, job: JobId) -> Stored:
    if left.stored is not None:
        return left.stored
    if left.state in GONE:
        why = f"what {words} left is not there: {left.message}"
        raise _unusable(why, f"See what happened with: gpuctl story {job}")
    raise GpufleetError(Reason.CONFLICT, f"what {words} left is still coming: {left.message}")


def _size(blobs: BlobStore, stored: Stored, words: str) -> int:
    reader = blobs.open(stored.user, stored.digest)
    if reader is None:
        raise _unusable(f"what {words} left is not stored any more", "Run that job again.")
    with closing(reader):
        return reader.size


def has_ended(job: Job) -> bool:
    """Whether nothing more of a job, or of an array, is to come but what it left."""
    return isinstance(job.state, Finished) if job.items is None else job.items.ended is not None


def _owners(blobs: BlobStore, sources: Iterable[Source]) -> dict[str, UserName]:
    """Whose each manifest is, and each chunk of it. It reads manifests: not for the event loop."""
    found: dict[str, UserName] = {}
    for source in sources:
        found[source.digest] = source.user
        with suppress(ManifestError):
            found |= dict.fromkeys(blobs.folders.contents(source.user, source.digest).chunks, source.user)
    return found


def _chooses_any(blobs: BlobStore, source: Source, pattern: str) -> bool:
    chosen = Chosen((pattern,))
    return any(chosen.has(each.path) for each in blobs.folders.read(source.user, source.digest).entries)
