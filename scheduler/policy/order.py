"""Which job is next: bands from urgent to low, then age."""

from bisect import bisect_left
from collections.abc import Iterator

from ..state.durable import Durable
from ..state.ids import JobId
from ..state.jobs import Job, Queued
from ..state.units import Instant


def queue_order(durable: Durable) -> Iterator[Job]:
    """Eligible jobs in the order in which they are tried. A requeued job keeps its submit time and so its place."""
    for line in durable.queue.values():
        for _, job_id in line:
            yield durable.jobs[job_id]


def position(durable: Durable, job: Job) -> int:
    """A waiting job's place in the order, from 1; 0 for a job that does not wait in it.

    A job that is not submitted yet is told the place that it would get.
    """
    return sum(length for _, length in _lines_ahead(durable, job)) + 1 if isinstance(job.state, Queued) else 0


def order_up_to(durable: Durable, job: Job) -> Iterator[Job]:
    """Eligible jobs that are tried before this one, in their order."""
    for line, length in _lines_ahead(durable, job):
        for _, job_id in line[:length]:
            yield durable.jobs[job_id]


def jobs_ahead(durable: Durable, job: Job, limit: int) -> tuple[list[JobId], int]:
    """The nearest `limit` jobs ahead of a waiting job, nearest first, and how many there are in all."""
    if not isinstance(job.state, Queued):
        return [], 0
    nearest: list[JobId] = []
    count = 0
    for line, length in reversed(list(_lines_ahead(durable, job))):
        start = max(0, length - (limit - len(nearest)))
        nearest.extend(job_id for _, job_id in reversed(line[start:length]))
        count += length
    return nearest, count


def _lines_ahead(durable: Durable, job: Job) -> Iterator[tuple[list[tuple[Instant, JobId]], int]]:
    """Each line that holds jobs ahead of this one, highest band first, and how many of its jobs those are."""
    for band, line in durable.queue.items():
        if band > job.band:
            yield line, len(line)
        elif band == job.band:
            yield line, bisect_left(line, (job.submitted_at, job.id))
