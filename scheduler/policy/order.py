"""Which job is next: bands from urgent to low, then age."""

from collections.abc import Iterator

from ..state.durable import Durable
from ..state.ids import JobId
from ..state.jobs import Held, Job, Queued


def queue_order(durable: Durable) -> Iterator[Job]:
    """Eligible jobs in the order in which they are tried. A requeued job keeps its submit time and so its place."""
    for line in durable.queue.values():
        for _, job_id in line:
            yield durable.jobs[job_id]


def position(durable: Durable, job: Job) -> int:
    """A waiting job's place in the order, from 1; 0 for a job that does not wait in it."""
    if not isinstance(job.state, Queued):
        return 0
    ahead = 0
    for band, line in durable.queue.items():
        if band == job.band:
            return ahead + line.index((job.submitted_at, job.id)) + 1
        ahead += len(line)
    return 0


def jobs_ahead(durable: Durable, job: Job, limit: int) -> tuple[list[JobId], int]:
    """The nearest `limit` jobs ahead of a waiting job, nearest first, and how many there are in all."""
    if isinstance(job.state, Held) or not isinstance(job.state, Queued):
        return [], 0
    ahead: list[JobId] = []
    for each in queue_order(durable):
        if each.id == job.id:
            break
        ahead.append(each.id)
    return ahead[::-1][:limit], len(ahead)
