"""What became of what a job was to leave: of each rank of the newest attempt that left anything."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from gpufleet.v1 import files_pb2

from gpufleet.errors import GpufleetError, Reason

from ...blobs.results import Stored, missing_words
from ...blobs.store import BlobStore
from ...engine import Engine
from ...state.durable import Durable
from ...state.ids import NodeName, RankKey
from ...state.jobs import Job
from ...state.records import ResultsSettled
from ...state.results import ResultsOutcome
from ..sight import Sight

SETTLED_READ_MAX = 10_000
"""Records of one job about its results that are read: of 10 attempts of 1,000 ranks."""
WORST_FIRST = (
    files_pb2.RESULTS_STATE_COMING,
    files_pb2.RESULTS_STATE_LOST,
    files_pb2.RESULTS_STATE_DROPPED,
    files_pb2.RESULTS_STATE_INCOMPLETE,
    files_pb2.RESULTS_STATE_STORED,
)


@dataclass(frozen=True, slots=True)
class RankLeft:
    """What became of what a rank was to leave; `stored` is what came of it, `message` why there is not all of it."""

    key: RankKey
    stored: Stored | None
    state: files_pb2.ResultsState.ValueType
    message: str = ""

    @property
    def has_something(self) -> bool:
        """Whether it left anything, as far as is known: what is still to come counts."""
        if self.stored is None:
            return self.state == files_pb2.RESULTS_STATE_COMING
        return not self.stored.is_nothing


async def left_by_ranks(engine: Engine, blobs: BlobStore, job: Job, *, asks_again: bool = True) -> list[RankLeft]:
    """By rank, of the newest attempt that left anything, stored or still to come; else of the newest that ran.

    What has ended without its start counts by what it left, as nobody else says that it ran. Empty where nothing was to
    be left, or no attempt that ran has ended. A place of files that is away hides nothing
    that is still to come; for the rest it is an error, STORE_UNAVAILABLE. One that was away just now is asked once more
    only if `asks_again`.
    """
    newest: list[RankLeft] = []
    if not job.spec.results:
        return newest
    settled: dict[RankKey, ResultsSettled] | None = None
    for attempt in reversed(job.past):
        due = engine.view.durable.results_due.get((job.id, attempt.number))
        keys = attempt.keys(job.id)
        awaited = frozenset(key for key in keys if due is not None and due.awaits(key))
        stored = await blobs.on_thread(_stored, blobs, keys, awaited, asks_again)
        has_run = any(rank.started_at is not None for rank in attempt.ranks)
        if not has_run and not awaited and not any(stored.values()):
            continue
        if settled is None and not all(stored.values()):
            settled = await _settled(engine, job)
        found = [_left(engine.view.durable, blobs, key, each, settled or {}) for key, each in stored.items()]
        if any(each.has_something for each in found):
            return found
        newest = newest or found
    return newest


async def add_results(message: files_pb2.JobResults, engine: Engine, blobs: BlobStore, job: Job, sight: Sight) -> None:
    """Say of a job what became of what it was to leave; why, to those alone who may read what it writes."""
    if job.items is not None:
        due = engine.view.durable.results_due
        last = job.id + job.items.indices.count
        if job.spec.results and any(job.id < item <= last for item, _ in due):
            message.state = files_pb2.RESULTS_STATE_COMING
        return
    try:
        ranks = await left_by_ranks(engine, blobs, job, asks_again=False)
    except GpufleetError as problem:
        if problem.reason is not Reason.STORE_UNAVAILABLE:
            raise
        message.state = files_pb2.RESULTS_STATE_UNKNOWN
        message.message = problem.message if sight.reads(job.user) else ""
        return
    worst = min(ranks, key=lambda each: WORST_FIRST.index(each.state), default=None)
    if worst is not None:
        message.state = worst.state
        message.message = worst.message if sight.reads(job.user) else ""


def _stored(
    blobs: BlobStore, keys: Sequence[RankKey], awaited: Collection[RankKey], asks_again: bool
) -> dict[RankKey, Stored | None]:
    """What came of each; of those that are `awaited` nothing, as far as is known while the place is away."""
    return {key: _one_stored(blobs, key, key in awaited, asks_again) for key in keys}


def _one_stored(blobs: BlobStore, key: RankKey, is_awaited: bool, asks_again: bool) -> Stored | None:
    if (away := blobs.place.away) and (is_awaited or not asks_again):
        known = blobs.results.known(key)
        if known is None and not is_awaited:
            raise GpufleetError(Reason.STORE_UNAVAILABLE, away)
        return known
    try:
        return blobs.results.of(key)
    except GpufleetError as problem:
        if problem.reason is not Reason.STORE_UNAVAILABLE or not is_awaited:
            raise
        return None


async def _settled(engine: Engine, job: Job) -> dict[RankKey, ResultsSettled]:
    """The newest word on each rank."""
    kinds = (ResultsSettled.__name__,)
    read = await engine.on_store_thread(lambda: engine.store.story(job.id, 0, SETTLED_READ_MAX, kinds=kinds))
    return {each.record.key: each.record for each in read if isinstance(each.record, ResultsSettled)}


def _left(
    durable: Durable, blobs: BlobStore, key: RankKey, stored: Stored | None, settled: dict[RankKey, ResultsSettled]
) -> RankLeft:
    if stored is not None:
        state = files_pb2.RESULTS_STATE_INCOMPLETE if stored.problems else files_pb2.RESULTS_STATE_STORED
        return RankLeft(key, stored, state, missing_words(stored.problems))
    due, last = durable.results_due.get((key.job, key.attempt)), settled.get(key)
    if due is not None and due.awaits(key):
        why = _why_coming(durable, blobs, key, due.nodes[key.rank])
        return RankLeft(key, None, files_pb2.RESULTS_STATE_COMING, why)
    if trouble := blobs.results.trouble.get(key, ""):
        return RankLeft(key, None, files_pb2.RESULTS_STATE_COMING, f"it is sent again, as {trouble}")
    if last is not None and last.outcome is ResultsOutcome.NOT_WANTED:
        return RankLeft(key, None, files_pb2.RESULTS_STATE_LOST, last.message)
    if last is not None and last.outcome is not ResultsOutcome.LOST:
        return RankLeft(key, None, files_pb2.RESULTS_STATE_DROPPED, "it was older than [files] keep_results")
    why = last.message if last is not None else "its node never brought it"
    return RankLeft(key, None, files_pb2.RESULTS_STATE_LOST, why)


def _why_coming(durable: Durable, blobs: BlobStore, key: RankKey, node: NodeName) -> str:
    if trouble := blobs.results.trouble.get(key, ""):
        return f"it is sent again, as {trouble}"
    found = durable.nodes.get(node)
    if found is not None and found.is_lost:
        return f"node {node}, which has it, is not heard"
    return f"node {node} brings it"
