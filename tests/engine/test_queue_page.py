"""A page of the queue, put together while jobs end."""

from __future__ import annotations

from gpufleet.v1 import scheduler_pb2

from scheduler.api.jobs.queue_page import each_once, finished_rows, live_rows
from tests.engine.harness import Harness


async def test_a_job_that_ends_while_its_page_is_read_is_listed_once_as_it_ended() -> None:
    request = scheduler_pb2.QueueRequest(include_finished=True)
    harness = Harness()
    async with harness.running():
        first = await harness.submit(count=3)
        live = list(live_rows(harness.engine, request, None))
        await harness.cancel(first + 1)
        rows = each_once([*live, *await finished_rows(harness.engine, request, None, 10)])
    assert [row.job.id for row in rows] == [first, first + 2, first + 1]
    assert [row.job.is_finished for row in rows] == [False, False, True]
