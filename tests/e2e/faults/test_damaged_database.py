"""A scheduler whose database is damaged, as it starts and while it runs: it stops, and says so in plain sentences."""

from __future__ import annotations

from pathlib import Path

from gpufleet.v1 import history_pb2

from gpufleet.errors import Reason
from tests.e2e.client import refusal
from tests.e2e.fleet import Fleet
from tests.e2e.processes import DEADLINE_SECONDS
from tests.store.samples import behind_its_back


async def test_damage_that_a_read_meets_ends_the_scheduler_and_the_next_start_with_a_sentence(fleet: Fleet) -> None:
    scheduler = fleet.scheduler
    database = f"sqlite:///{scheduler.data / 'scheduler.db'}"
    await fleet.add_node("n1")
    async with fleet.client() as client:
        assert (await client.run("true")).exit.code == 0
        behind_its_back(database, "UPDATE finished_job SET payload = '{'")
        request = history_pb2.ListEndedJobsRequest()
        problem = await refusal(client.stub.ListEndedJobs(request, timeout=DEADLINE_SECONDS))
        assert problem.reason is Reason.STORE_CORRUPT and "finished_job 1: Job: not JSON" in problem.message
        assert await scheduler.ended() == 1
    said = _said(scheduler.log)
    assert "the store cannot be used: finished_job 1: Job: not JSON" in said and "gpuctl scheduler --verify" in said
    scheduler.spawn()
    assert await scheduler.ended() == 1
    assert "Traceback" not in _said(scheduler.log)
    behind_its_back(database, "DELETE FROM finished_job")
    await scheduler.start()


def _said(log: Path) -> str:
    text = log.read_text()
    assert "Traceback" not in text, text
    return text
