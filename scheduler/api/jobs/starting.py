"""Waiting until it is known that a job runs: a start is told some milliseconds late, and output may come before it."""

import asyncio
from contextlib import suppress

from ...engine import Engine
from ...state.ids import JobId
from ...state.jobs import Starting
from ...watching import ChangeHub


async def until_started(engine: Engine, changes: ChangeHub, job_id: JobId, seconds_max: float) -> None:
    """Wait as long as a job is being started, but not longer than this; what it is then the caller finds out."""
    changed = asyncio.Event()
    changes.follow_job(job_id, changed)
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds_max):
                while (job := engine.view.durable.jobs.get(job_id)) and isinstance(job.state, Starting):
                    changed.clear()
                    await changed.wait()
    finally:
        changes.unfollow_job(job_id, changed)
