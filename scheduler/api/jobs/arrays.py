"""Arrays as people see them: one line with counts, and pages of items."""

from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.jobs.run_protos import exit_to_proto

from ...engine import Engine
from ...policy.explain import next_item
from ...state.attempts import Attempt, EndedAttempt
from ...state.durable import Durable
from ...state.ids import JobId
from ...state.indices import Indices
from ...state.jobs import Deferred, Finished, Held, Items, Job, Queued, Running, Starting, Stopping, item_ended_together
from ...state.specs import Outcome
from ...wire.convert import timestamp
from ...wire.convert_jobs import state_of

ITEMS_READ = 1_000
"""Items looked at together while a filter looks for matches."""
ITEMS_SCANNED_MAX = 20_000
"""Items looked at for one page; a page may then be short and still have a successor."""


def counts_of(durable: Durable, array: Job) -> job_pb2.ArrayCounts:
    """An array's items by state, now or at its end."""
    assert array.items is not None
    tally = array.items.ended or durable.tally(array.id)
    live = durable.arrays.get(array.id)
    counts = live.counts if live is not None and array.items.ended is None else {}
    return job_pb2.ArrayCounts(
        items=array.items.indices.count,
        queued=counts.get(Queued, 0) + counts.get(Deferred, 0),
        held=counts.get(Held, 0),
        starting=counts.get(Starting, 0),
        running=counts.get(Running, 0),
        stopping=counts.get(Stopping, 0),
        succeeded=tally.succeeded,
        failed=tally.failed,
        cancelled=tally.cancelled,
        timed_out=tally.timed_out,
    )


def state_now(durable: Durable, job: Job) -> job_pb2.JobState.ValueType:
    """A job's state on the wire; an array's is that of the item that is furthest on its way."""
    live = durable.arrays.get(job.id)
    if job.items is None or job.items.ended is not None or live is None:
        return state_of(job)
    for state, shown in _FURTHEST_FIRST.items():
        if state in live.counts:
            return shown
    return job_pb2.JOB_STATE_HELD


_FURTHEST_FIRST = {
    Running: job_pb2.JOB_STATE_RUNNING,
    Stopping: job_pb2.JOB_STATE_STOPPING,
    Starting: job_pb2.JOB_STATE_STARTING,
    Queued: job_pb2.JOB_STATE_QUEUED,
    Deferred: job_pb2.JOB_STATE_QUEUED,
}


def who_waits(durable: Durable, job: Job) -> Job:
    """The job whose place and reason are told of a job: itself, and of an array that of its items which comes first."""
    return job if job.items is None else next_item(durable, job.id) or job


def show_items(message: job_pb2.Job, durable: Durable, job: Job) -> None:
    """Add to a job's message what it is as an array."""
    if job.items is None:
        return
    message.state = state_now(durable, job)
    message.spec.array.indices = str(job.items.indices)
    message.spec.array.max_active_count = job.items.active_max
    message.spec.array.max_fails = job.items.failures_max
    message.array_counts.CopyFrom(counts_of(durable, job))


def array_id_of(durable: Durable, item: JobId) -> JobId | None:
    """The live array whose items include an id."""
    for array in durable.tallies:
        items = durable.jobs[array].items
        if items is not None and array < item <= array + items.indices.count:
            return array
    return None


async def find_job(engine: Engine, job_id: JobId) -> Job | None:
    """A live or ended job, an item that never stood for itself included."""
    durable = engine.view.durable
    found = durable.jobs.get(job_id) or engine.recently_finished.get(job_id)
    if found is not None:
        return found
    array_id = array_id_of(durable, job_id)
    if array_id is not None:
        together = item_ended_together(durable.jobs[array_id], durable.tally(array_id), job_id)
        if together is not None:
            return together
    found = await engine.on_store_thread(lambda: engine.store.finished_job(job_id))
    if found is not None:
        return found
    array = await engine.on_store_thread(lambda: engine.store.array_with(job_id))
    if array is None or array.items is None or array.items.ended is None:
        return None
    return item_ended_together(array, array.items.ended, job_id)


async def failed_indices(engine: Engine, array: Job) -> list[int]:
    """The indices of the items that have failed so far, in rising order."""
    items = items_of(array)
    tally = items.ended or engine.view.durable.tally(array.id)
    last = JobId(array.id + items.indices.count)
    failed = await engine.on_store_thread(lambda: engine.store.failed_items(array.id, last))
    for ended in tally.together:
        if ended.finished.outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
            failed += [JobId(item) for begin, end in ended.spans for item in range(begin, end)]
    return [items.indices.at(item - array.id - 1) for item in sorted(set(failed))]


async def page_of_items(
    engine: Engine, array: Job, request: scheduler_pb2.ListArrayItemsRequest, position: int, size: int
) -> tuple[list[scheduler_pb2.ArrayItem], int | None]:
    """At most `size` items from a position on, and the position behind them where there are more."""
    position, end = positions_in(items_of(array).indices, request, position)
    found: list[scheduler_pb2.ArrayItem] = []
    scanned = 0
    while position < end and len(found) < size and scanned < ITEMS_SCANNED_MAX:
        step = min(ITEMS_READ if request.states else size - len(found), end - position)
        for job in await items_at(engine, array, position, position + step):
            position += 1
            item = item_proto(array, job)
            if not request.states or item.state in request.states:
                found.append(item)
                if len(found) == size:
                    break
        scanned += step
    return found, position if position < end else None


def positions_in(
    indices: Indices, request: scheduler_pb2.ListArrayItemsRequest | files_pb2.ListFilesRequest, position: int
) -> tuple[int, int]:
    """Where a list of items begins that goes on at a position, and where it ends."""
    end = indices.first_from(request.last_index + 1) if request.HasField("last_index") else indices.count
    if request.HasField("first_index"):
        position = max(position, indices.first_from(request.first_index))
    return position, end


async def items_at(engine: Engine, array: Job, begin: int, end: int) -> list[Job]:
    """The items at these positions, each as it is. All are live, have ended together, or are in the store by then."""
    durable, items = engine.view.durable, items_of(array)
    ids = [JobId(array.id + 1 + position) for position in range(begin, end)]
    jobs = {item: job for item in ids if (job := durable.jobs.get(item)) is not None}
    tally = items.ended or durable.tally(array.id)
    for item in ids:
        if item not in jobs:
            together = item_ended_together(array, tally, item)
            if together is not None:
                jobs[item] = together
    if len(jobs) < len(ids):
        ended = await engine.on_store_thread(lambda: engine.store.finished_items(array.id, ids[0], ids[-1]))
        jobs = {job.id: job for job in ended} | jobs
    return [jobs[item] for item in ids if item in jobs]


def item_proto(array: Job, job: Job) -> scheduler_pb2.ArrayItem:
    """An item of a page."""
    attempt: Attempt | EndedAttempt | None = job.attempt or (job.past[-1] if job.past else None)
    starts = [] if attempt is None else [rank.started_at for rank in attempt.ranks if rank.started_at is not None]
    finished = job.state if isinstance(job.state, Finished) else None
    return scheduler_pb2.ArrayItem(
        index=items_of(array).indices.at(job.id - array.id - 1),
        job_id=job.id,
        state=state_of(job),
        exit=exit_to_proto(finished.exit) if finished is not None else None,
        exit_reason=finished.reason if finished is not None else "",
        exit_message=finished.message if finished is not None else "",
        start_time=timestamp(max(starts)) if starts else None,
        end_time=timestamp(finished.at) if finished is not None else None,
        nodes=[] if attempt is None else [rank.placement.node for rank in attempt.ranks],
        attempt_count=job.attempt_count,
    )


def items_of(array: Job) -> Items:
    """The items of an array. Errors: NOT_AN_ARRAY."""
    if array.items is None:
        what = f"job {array.id} is no array" + (f", but an item of array {array.array}" if array.array else "")
        raise GpufleetError(Reason.NOT_AN_ARRAY, what)
    return array.items
