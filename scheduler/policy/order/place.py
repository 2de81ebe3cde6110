"""A job's place in the order, and who stands ahead of it: counted, where nothing has to be replayed."""

from bisect import bisect_left
from collections import deque

from ...state.durable import Durable
from ...state.ids import JobId
from ...state.indexes.lines import UserLines
from ...state.jobs import Job, Queued
from ...state.state import State
from ...state.units import Instant
from ..groups.turns import OLD, all_takers
from .band import count_jobs
from .queue import age_cutoff, queue_order, turn_of


def position(state: State, job: Job, at: Instant) -> int:
    """A waiting job's place in the order, from 1; 0 for a job that does not wait in it.

    A job that is not submitted yet is told the place that it would get.
    """
    return _count_ahead(state, job, at) + 1 if isinstance(job.state, Queued) else 0


def jobs_ahead(state: State, job: Job, limit: int, at: Instant) -> tuple[list[JobId], int]:
    """The nearest `limit` jobs ahead of a waiting job, nearest first, and how many there are in all."""
    if not isinstance(job.state, Queued):
        return [], 0
    nearest = deque((each.id for each in queue_order(state, at, until=job)), maxlen=limit)
    return list(reversed(nearest)), _count_ahead(state, job, at)


def may_go_ahead(durable: Durable, job: Job) -> int:
    """How many of the jobs that wait now may be tried before this one, whatever users come to have used meanwhile."""
    count = 0
    for band, lines in durable.lines.of_band.items():
        if band >= job.band:
            count += count_jobs(lines)
    own = durable.lines.of_band[job.band].get(durable.lines.owner_of(job), UserLines())
    entry = (job.age_since, job.id)
    return count - sum(len(line) - bisect_left(line, entry) for line in own.values())


def _count_ahead(state: State, job: Job, at: Instant) -> int:
    durable, old_before = state.durable, age_cutoff(state, at)
    count = 0
    end = turn_of(state, job, at)
    for band, lines in durable.lines.of_band.items():
        if band > job.band:
            count += count_jobs(lines)
        elif band == job.band and end[0] == OLD:
            count += sum(bisect_left(line, end[1]) for of_user in lines.values() for line in of_user.values())
        elif band == job.band:
            count += sum(each.turns_before(end) for each in all_takers(durable, lines, at, old_before))
    return count
