"""Which job is next: bands from urgent to low, then age."""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator
from itertools import islice

from ..state.durable import Durable
from ..state.ids import JobId
from ..state.jobs import Asked, Band, Job, Queued
from ..state.lines import Entry


def queue_order(durable: Durable, given_up: Collection[Asked] = (), until: Job | None = None) -> Iterator[Job]:
    """Eligible jobs in the order in which they are tried. A requeued job keeps its submit time and so its place.

    What is asked for in `given_up` is left out from the moment it stands there, at no cost for the jobs that wait with
    it. `until` is the job before which it ends.
    """
    for band, lines in durable.lines.of_band.items():
        if until is not None and band < until.band:
            return
        is_last = until is not None and band == until.band
        end = (until.age_since, until.id) if until is not None and is_last else None
        for _, job_id in _merged(lines, given_up, end):
            yield durable.jobs[job_id]


def _merged(lines: dict[Asked, list[Entry]], given_up: Collection[Asked], end: Entry | None) -> Iterator[Entry]:
    """The entries of several lines in order; a heap of the first of each that was not given yet."""
    heads = [(line[0], 0, number) for number, line in enumerate(lines.values())]
    heapq.heapify(heads)
    of_number = list(lines.items())
    while heads:
        entry, at, number = heads[0]
        asked, line = of_number[number]
        if end is not None and entry >= end:
            return
        if asked in given_up:
            heapq.heappop(heads)
            continue
        yield entry
        if at + 1 < len(line):
            heapq.heapreplace(heads, (line[at + 1], at + 1, number))
        else:
            heapq.heappop(heads)


def order_from(durable: Durable, after: tuple[Band, Entry] | None) -> Iterator[tuple[int, Job]]:
    """Waiting jobs behind a place in the order, or all, each with its own place, from 1."""
    place = 0
    for band, lines in durable.lines.of_band.items():
        if after is not None and band > after[0]:
            place += sum(map(len, lines.values()))
            continue
        begins = [bisect_right(line, after[1]) if after and band == after[0] else 0 for line in lines.values()]
        place += sum(begins)
        rests = [islice(line, begin, None) for line, begin in zip(lines.values(), begins, strict=True)]
        for _, job_id in heapq.merge(*rests):
            place += 1
            yield place, durable.jobs[job_id]


def position(durable: Durable, job: Job) -> int:
    """A waiting job's place in the order, from 1; 0 for a job that does not wait in it.

    A job that is not submitted yet is told the place that it would get.
    """
    return _count_ahead(durable, job) + 1 if isinstance(job.state, Queued) else 0


def jobs_ahead(durable: Durable, job: Job, limit: int) -> tuple[list[JobId], int]:
    """The nearest `limit` jobs ahead of a waiting job, nearest first, and how many there are in all."""
    if not isinstance(job.state, Queued):
        return [], 0
    nearest: list[JobId] = []
    for lines in reversed([lines for _, lines in _lines_ahead(durable, job)]):
        backwards = [map(line.__getitem__, range(length - 1, -1, -1)) for line, length in lines]
        merged = heapq.merge(*backwards, reverse=True)
        nearest.extend(job_id for _, job_id in islice(merged, limit - len(nearest)))
    return nearest, _count_ahead(durable, job)


def _count_ahead(durable: Durable, job: Job) -> int:
    return sum(length for _, lines in _lines_ahead(durable, job) for _, length in lines)


def _lines_ahead(durable: Durable, job: Job) -> Iterator[tuple[Band, list[tuple[list[Entry], int]]]]:
    """Band by band, highest first, each line that holds jobs ahead of this one, and how many of its jobs those are."""
    for band, lines in durable.lines.of_band.items():
        if band > job.band:
            yield band, [(line, len(line)) for line in lines.values()]
        elif band == job.band:
            yield band, [(line, bisect_left(line, (job.age_since, job.id))) for line in lines.values()]
