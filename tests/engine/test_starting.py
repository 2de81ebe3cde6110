"""What is meant for a job that runs waits until it is known that it does."""

from __future__ import annotations

import asyncio

from scheduler.api.jobs.starting import until_started
from scheduler.engine import Changes
from scheduler.state.ids import JobId
from scheduler.state.jobs import Running, Starting
from scheduler.watching import ChangeHub
from tests.core.fleet import spec
from tests.engine.harness import DEADLINE_SECONDS, Harness


class Hubbed(Harness):
    """An engine whose changes are told to a hub."""

    def __init__(self) -> None:
        super().__init__()
        self.hub = ChangeHub(self.store.term)
        self.engine._publish = self._publish

    def _publish(self, changes: Changes) -> None:
        self.hub.publish(changes)


async def test_what_waits_for_a_start_goes_on_when_that_is_told() -> None:
    harness = Hubbed()
    async with harness.running():
        node = await harness.join(gpus=1)
        job = await harness.submit(spec(gpus=1))
        assert isinstance(harness.job(job).state, Starting)
        waiting = asyncio.create_task(until_started(harness.engine, harness.hub, job, DEADLINE_SECONDS))
        await harness.poke()
        assert not waiting.done()
        await harness.started(node, job)
        await asyncio.wait_for(waiting, DEADLINE_SECONDS)
        assert isinstance(harness.job(job).state, Running)
        assert not harness.hub._waiting


async def test_nothing_waits_for_a_job_that_is_not_being_started_nor_longer_than_it_may() -> None:
    harness = Hubbed()
    async with harness.running():
        held = await harness.submit(held=True)
        await until_started(harness.engine, harness.hub, held, DEADLINE_SECONDS)
        await until_started(harness.engine, harness.hub, JobId(99), DEADLINE_SECONDS)
        await harness.join(gpus=1)
        starting = await harness.submit(spec(gpus=1))
        assert isinstance(harness.job(starting).state, Starting)
        await until_started(harness.engine, harness.hub, starting, 0.01)
        assert not harness.hub._waiting
