"""Plain EASY backfill (Lifka, 1995) on one pool of devices: in the order of submission, one reservation, by limits."""

import heapq
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

from .logs import Log, LoggedJob


def easy_starts(log: Log) -> list[int]:
    """When each job of the log starts, in seconds, in the log's order."""
    starts = [0] * len(log.jobs)
    queue: list[int] = []
    running: list[tuple[int, int]] = []  # (end by limit, job)
    ends: list[tuple[int, int]] = []  # (true end, job)
    free, arrived = log.devices, 0

    def start_what_fits(now: int) -> None:
        nonlocal free
        begun: list[int] = []
        shadow: int | None = None
        extra = 0
        for number in queue:
            job = log.jobs[number]
            if shadow is None and job.devices > free:
                shadow, extra = _reservation(log.jobs, running, free, job.devices)
                continue
            ends_in_time = shadow is None or now + job.limit <= shadow
            if job.devices > free or not (ends_in_time or job.devices <= extra):
                continue
            if not ends_in_time:
                extra -= job.devices
            free -= job.devices
            starts[number] = now
            begun.append(number)
            running.append((now + job.limit, number))
            heapq.heappush(ends, (now + job.run, number))
        for number in begun:
            queue.remove(number)

    while arrived < len(log.jobs) or ends:
        if ends and (arrived == len(log.jobs) or ends[0][0] <= log.jobs[arrived].submitted):
            now, number = heapq.heappop(ends)
            running = [each for each in running if each[1] != number]
            free += log.jobs[number].devices
        else:
            now = log.jobs[arrived].submitted
            queue.append(arrived)
            arrived += 1
        start_what_fits(now)
    return starts


def _reservation(jobs: Sequence[LoggedJob], running: list[tuple[int, int]], free: int, wanted: int) -> tuple[int, int]:
    """When so many devices are free at the latest, and how many more are then."""
    for end, those in groupby(sorted(running), key=itemgetter(0)):
        free += sum(jobs[number].devices for _, number in those)
        if free >= wanted:
            return end, free - wanted
    raise ValueError("a job asks for more devices than there are")
