"""What a node does for a job before its command begins, told to who waits for it: its image, its environment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.async_client import AsyncClient

ASKED_EVERY_SECONDS = 2.0
"""A start that takes less than this is over before anything of it is told."""

LINES_A_PAGE = 1_000
TOLD_KIND = "SetupStateChanged"
SENTENCE_CHARS_MAX = 500


async def tell_setup(
    client: AsyncClient, job_id: int, is_starting: Callable[[], bool], say: Callable[[str], None], newest: int = 0
) -> int:
    """Say the lines of the job's story that tell how far its image and environment are, while it is starting.

    Those up to number `newest` are known; answers the number of the last one.
    """
    request = scheduler_pb2.GetStoryRequest(job_id=job_id, page_size=LINES_A_PAGE)
    while True:
        await asyncio.sleep(ASKED_EVERY_SECONDS)
        if not is_starting():
            return newest
        try:
            page = await client.call(client.scheduler.GetStory, request)
        except GpufleetError:
            continue  # whether the scheduler is there is told by whoever follows the job
        for line in page.lines:
            if line.sequence > newest and line.kind == TOLD_KIND:
                newest = line.sequence
                say(line.sentence.partition("\n")[0][:SENTENCE_CHARS_MAX])
        if page.next_page_token:
            request.page_token = page.next_page_token
