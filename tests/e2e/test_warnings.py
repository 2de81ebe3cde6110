"""Warnings of jobs on a real scheduler and agent: who follows a job is told, and `--notify` hears of them."""

from __future__ import annotations

from gpufleet.v1 import job_pb2

from tests.e2e.client import span
from tests.e2e.fleet import Fleet


async def test_a_job_that_nears_its_time_limit_tells_so_to_who_follows_it(fleet: Fleet) -> None:
    await fleet.add_node("n1")
    async with fleet.client() as client:
        job = await client.submit("sleep", "600", time_limit=span(3))
        messages = await client.messages(job, follow=True)
        counts = [len(each.job.warnings) for each in messages if each.HasField("job")]
        assert {1, 2} <= set(counts)
        ended = await client.job(job)
        assert ended.state == job_pb2.JOB_STATE_TIMED_OUT
        said = [(each.kind, each.attempt, each.sentence[:20]) for each in ended.warnings]
        assert said == [
            ("TIME_LIMIT_NEAR", 1, "80 % of its time lim"),
            ("TIME_LIMIT_NEAR", 1, "90 % of its time lim"),
        ]
        assert [each for each in await client.story(job) if "of its time limit of 3s is over" in each]
