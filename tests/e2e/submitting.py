"""Many submits at once, each repeated until it is acknowledged, and what must be true of them afterwards."""

from __future__ import annotations

import asyncio
import random
import signal

import grpc.aio
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Code
from gpufleet.net.status import from_rpc_error
from tests.e2e.client import Client
from tests.e2e.fleet import Fleet
from tests.e2e.processes import until

RUNS = "echo $GPUFLEET_JOB_ID.$GPUFLEET_ATTEMPT >> runs"
"""A script that tells by itself, outside of everything that is tested, that it ran."""


LATE_SUBMITS = 10
"""So many are submitted to a scheduler that is stopped already, before each kill."""


class Submitter:
    """Submits jobs, each under a request id of its own, again and again until each is acknowledged."""

    def __init__(self, client: Client, script: str) -> None:
        self._client = client
        self._script = script
        self.ids: dict[str, int] = {}
        self.tries = 0

    async def submit(self, request_id: str) -> None:
        request = scheduler_pb2.SubmitRequest(
            specs=[self._client.spec("sh", "-c", self._script, name=request_id)], request_id=request_id
        )
        while True:
            self.tries += 1
            try:
                answer = await self._client.stub.Submit(request, timeout=30)
            except grpc.aio.AioRpcError as problem:
                assert from_rpc_error(problem).code in (Code.UNAVAILABLE, Code.CANCELLED), problem
                await asyncio.sleep(random.uniform(0.01, 0.1))
                continue
            known = self.ids.setdefault(request_id, answer.first_job_id)
            assert known == answer.first_job_id, "one request, two jobs"
            return


async def each_ran_once(client: Client, fleet: Fleet, submitter: Submitter, count: int) -> None:
    """All jobs are there, each ended well, and each attempt ran once; a second one has its reason in the story."""
    assert len(set(submitter.ids.values())) == count

    async def are_done() -> bool:
        counts = (await client.queue(page_size=1)).counts
        return not (counts.queued or counts.starting or counts.running or counts.stopping)

    await until("all jobs have ended", are_done)
    listed = await client.queue(include_finished=True, page_size=1000)
    jobs = list(listed.jobs)
    while listed.next_page_token:
        listed = await client.queue(include_finished=True, page_size=1000, page_token=listed.next_page_token)
        jobs += listed.jobs
    assert {job.spec.name: job.id for job in jobs} == submitter.ids
    assert len(jobs) == count
    assert {job.state for job in jobs} == {job_pb2.JOB_STATE_SUCCEEDED}
    ran = (fleet.work / "runs").read_text().split()
    assert len(ran) == len(set(ran)), "an attempt ran twice"
    assert {int(run.partition(".")[0]) for run in ran} == set(submitter.ids.values())
    for job in jobs:
        own = sorted(int(run.partition(".")[2]) for run in ran if run.startswith(f"{job.id}."))
        if own != [1]:
            kinds = await client.kinds(job.id)
            assert {"AttemptVoided", "AttemptEnded"} & set(kinds), (job.id, own, kinds)
        assert job.attempt_count == own[-1]


async def kill_while_submitting(fleet: Fleet, client: Client, submitter: Submitter, count: int, kills: int) -> None:
    """Submit so many jobs, and kill the scheduler while some are acknowledged and others are on their way.

    A scheduler that is stopped answers nothing: what is submitted then is in flight at the kill, however fast it was.
    """
    numbers = iter(range(count))
    tasks: list[asyncio.Task[None]] = []

    def submit(some: int) -> None:
        tasks.extend(asyncio.create_task(submitter.submit(f"request-{next(numbers)}")) for _ in range(some))

    submit(count - kills * LATE_SUBMITS)
    for kill in range(1, kills + 1):
        some = (count - kills * LATE_SUBMITS) * kill // (kills + 1)
        await until(f"{some} are acknowledged", lambda some=some: len(submitter.ids) >= some)
        fleet.scheduler.signal(signal.SIGSTOP)
        submit(LATE_SUBMITS)
        tries = submitter.tries + LATE_SUBMITS
        await until("the late ones are on their way", lambda tries=tries: submitter.tries >= tries)
        fleet.scheduler.kill()
        assert len(submitter.ids) < count, "all were acknowledged before the kill"
        await fleet.scheduler.start()
    await asyncio.gather(*tasks)
