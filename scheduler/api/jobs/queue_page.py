"""A page of the queue: active jobs, those that wait in their order, held or deferred ones, then ended ones.

An array is one line: among the active ones while an item is, else where the first of its items waits.

The cursor is (section, the last job's key in it), so that a page costs what it shows and not what the queue holds.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpufleet.v1 import scheduler_pb2

from ...engine import Engine
from ...policy.order.page import order_from
from ...ports import FinishedQuery
from ...state.durable import Durable
from ...state.groups.group import GroupId
from ...state.ids import JobId, UserName
from ...state.jobs import Deferred, Held, Job, Queued, Running, Starting, Stopping
from ...state.specs import Band
from ...state.units import Instant
from ...wire.convert_jobs import OUTCOMES
from .arrays import state_now, who_waits

ACTIVE, WAITING, HELD, FINISHED = range(4)
FINISHED_READ = 200
"""Ended jobs read from the store at once while a filter looks for matches."""
SCANNED_MAX = 20_000
"""Ended jobs looked at for one page; a page may then be short and still have a successor."""


@dataclass(frozen=True, slots=True)
class PageRow:
    """A job of the page, its place in the order, and the cursor that goes on behind it."""

    job: Job
    position: int
    cursor: list[Any]


def live_rows(engine: Engine, request: scheduler_pb2.QueueRequest, cursor: list[Any] | None) -> Iterator[PageRow]:
    """Jobs that have not ended, from the cursor on, filtered."""
    section, key = (cursor[0], cursor[1:]) if cursor else (ACTIVE, [])
    for row in _all_live_rows(engine, section, key):
        if matches(row.job, request, engine.view.durable):
            yield row


def _all_live_rows(engine: Engine, section: int, key: list[Any]) -> Iterator[PageRow]:
    durable = engine.view.durable
    if section == ACTIVE:
        for job_id in _with_items_as_arrays(durable, durable.active, key):
            yield PageRow(durable.jobs[job_id], 0, [ACTIVE, job_id])
        key = []
    if section <= WAITING:
        yield from _waiting_rows(engine, key if section == WAITING else [])
        key = []
    if section <= HELD:
        jobs = (*durable.held, *durable.deferred)
        for job_id in _with_items_as_arrays(durable, jobs, key if section == HELD else []):
            live = durable.arrays.get(job_id)
            if live is not None and (live.active or Queued in live.counts):
                continue  # it has its line above
            yield PageRow(durable.jobs[job_id], 0, [HELD, job_id])


def _with_items_as_arrays(durable: Durable, jobs: Iterable[JobId], key: list[Any]) -> Iterator[JobId]:
    """The ids of jobs behind one, or all, by id, with that of its array in place of an item's.

    An array's items have the ids behind its own, so that they come to it in one piece.
    """
    last: JobId = key[0] if key else JobId(0)
    in_order = sorted(jobs)
    for at in range(bisect_right(in_order, last), len(in_order)):
        job_id = durable.jobs[in_order[at]].array or in_order[at]
        if job_id > last:
            last = job_id
            yield job_id


def _waiting_rows(engine: Engine, key: list[Any]) -> Iterator[PageRow]:
    durable = engine.view.durable
    after = None
    if key:
        owner = (GroupId(key[1]), UserName(key[2]))
        after = (Band(key[0]), owner, (Instant(key[3]), JobId(key[4])))
    for position, job in order_from(engine.view, engine.now(), after):
        cursor = [WAITING, int(job.band), *durable.lines.owner_of(job), job.age_since, job.id]
        if job.array is None:
            yield PageRow(job, position, cursor)
        elif not durable.arrays[job.array].active and who_waits(durable, durable.jobs[job.array]).id == job.id:
            yield PageRow(durable.jobs[job.array], position, cursor)


def matches(job: Job, request: scheduler_pb2.QueueRequest, durable: Durable) -> bool:
    """Whether a job passes the request's filters."""
    if request.user and job.user != request.user:
        return False
    if request.name and job.spec.name != request.name:
        return False
    if request.states and state_now(durable, job) not in request.states:
        return False
    labels = dict(job.spec.labels)
    return all(labels.get(key) == value for key, value in request.labels.items())


async def finished_rows(
    engine: Engine, request: scheduler_pb2.QueueRequest, cursor: list[Any] | None, wanted: int
) -> list[PageRow]:
    """At most `wanted` ended jobs from the cursor on, filtered."""
    outcomes = tuple(outcome for outcome, state in OUTCOMES.items() if not request.states or state in request.states)
    before = (Instant(cursor[1]), JobId(cursor[2])) if cursor and cursor[0] == FINISHED else None
    rows: list[PageRow] = []
    scanned = 0
    while outcomes and len(rows) < wanted and scanned < SCANNED_MAX:
        query = FinishedQuery(
            user=UserName(request.user) if request.user else None,
            name=request.name or None,
            outcomes=outcomes,
            before=before,
            limit=FINISHED_READ if request.labels else wanted - len(rows),
        )
        jobs = await engine.on_store_thread(partial(engine.store.finished_jobs, query))
        for job in jobs:
            before = (job.state.at, job.id)  # type: ignore[union-attr]
            if matches(job, request, engine.view.durable) and len(rows) < wanted:
                rows.append(PageRow(job, 0, [FINISHED, *before]))
        scanned += len(jobs)
        if len(jobs) < query.limit:
            break
    return rows


def each_once(rows: Sequence[PageRow]) -> list[PageRow]:
    """The rows without the earlier one of a job that ended while the page was put together."""
    newest = {row.job.id: row for row in rows}
    return [row for row in rows if newest[row.job.id] is row]


def counts(engine: Engine) -> scheduler_pb2.QueueCounts:
    """The whole queue by state. An array whose items wait alike is noted once among those that are held or deferred."""
    durable = engine.view.durable
    alike = [each for array in durable.arrays if (each := durable.items_alike(array)) is not None]
    deferred = sum(len(each) - 1 for each in alike if isinstance(each.first.state, Deferred))
    held = sum(len(each) - 1 for each in alike if isinstance(each.first.state, Held))
    active = Counter(durable.active.values())
    return scheduler_pb2.QueueCounts(
        queued=durable.lines.count + len(durable.deferred) + deferred,
        held=len(durable.held) + held,
        starting=active[Starting],
        running=active[Running],
        stopping=active[Stopping],
    )
