"""What becomes of calls whose program leaves before they are submitted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.api.gathering import Calls
from gpufleet.api.job_view import JobView


class SlowFleet:
    """A fleet that answers a submit when it is told to, and knows what it was asked to cancel."""

    def __init__(self) -> None:
        self.cancelled: list[int] = []
        self.was_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.client: Any = SimpleNamespace(call_again=self._call, scheduler=SimpleNamespace(Cancel=None))

    async def submit(self, command: list[str], **options: object) -> JobView:
        self.was_asked.set()
        await self.may_answer.wait()
        return JobView(job_pb2.Job(id=41))

    async def _call(self, method: object, request: scheduler_pb2.CancelRequest) -> None:
        self.cancelled += request.jobs.job_ids


async def test_what_was_being_submitted_when_the_program_left_is_cancelled_once_it_is_known() -> None:
    fleet = SlowFleet()
    left = asyncio.create_task(Calls(fleet, [(abs, (-1,), {})], {}).submit())
    await fleet.was_asked.wait()
    left.cancel()
    fleet.may_answer.set()
    with pytest.raises(asyncio.CancelledError):
        await left
    assert fleet.cancelled == [41]
