"""`wait`: stay until jobs have ended, and give the highest of their exit codes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from gpufleet.errors import UnavailableError
from gpufleet.fleet.async_client import AsyncClient, connected_async
from gpufleet.fleet.exit_codes import OWN_FAILURE
from gpufleet.fleet.following.job_updates import Ends
from gpufleet.fleet.following.shell import FollowingEnd, follow
from gpufleet.fleet.outcome import end_in_words, exit_code_of
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import counted

from ..printing import print_message
from ..quitting import Left, until_told_to_leave
from ..render.results import results_in_words
from ..screen import say

RESULTS_ASKED_AGAIN_SECONDS = 0.5


async def wait_for(settings: Settings, job_ids: Sequence[int]) -> int:
    """Wait for all of them and answer the exit code."""
    ended: dict[int, job_pb2.Job] = {}

    def on_end(job: job_pb2.Job) -> None:
        ended[job.id] = job
        _tell_end(job, settings.format)

    async with connected_async(settings) as client:
        ends = Ends(client, job_ids, on_end)

        async def stay() -> FollowingEnd:
            if await ends.read_records():
                return FollowingEnd.DONE
            if sys.stderr.isatty():
                say(f"waiting for {counted(len(ends.waiting), 'job')}; Ctrl-C leaves, and no job ends by it")
            return await follow(ends.feed, settings.time_outs, client.translated, on_cut_off=_tell_cut_off)

        async def stay_for_results() -> FollowingEnd:
            why = await stay()
            if why is FollowingEnd.DONE:
                for job in ended.values():
                    await results_of(client, job)
            return why

        try:
            why = await until_told_to_leave(stay_for_results())
        except Left as left:
            say(_come_back("left", ends.waiting))
            return left.code
    if why is FollowingEnd.DONE:
        return _code(ended)
    limits = settings.time_outs
    reason = (
        f"the scheduler did not answer for {limits.unanswered_max * limits.connection_s:g} s; giving up"
        if why is FollowingEnd.UNANSWERED
        else f"waited for {limits.session_s:g} s, the session time-out"
    )
    say(_come_back(reason, ends.waiting))
    return OWN_FAILURE


async def results_of(client: AsyncClient, job: job_pb2.Job) -> None:
    """Stay until what an ended job left is stored or lost, and say so where it is not all there."""
    if not job.spec.results:
        return
    request = scheduler_pb2.GetJobRequest(job_id=job.id)
    while True:
        try:
            now = (await client.call_again(client.scheduler.GetJob, request)).job
        except UnavailableError:
            _tell_cut_off(True)  # its node keeps what it left until the scheduler is back
            continue
        if now.results.state != files_pb2.RESULTS_STATE_COMING:
            break
        await asyncio.sleep(RESULTS_ASKED_AGAIN_SECONDS)
    if now.results.state not in (files_pb2.RESULTS_STATE_STORED, files_pb2.RESULTS_STATE_UNSPECIFIED):
        say(f"what job {job.id} left is {results_in_words(now)}")


def _code(ended: dict[int, job_pb2.Job]) -> int:
    return max((exit_code_of(job) for job in ended.values()), default=0)


def _tell_end(job: job_pb2.Job, form: str) -> None:
    if form in ("json", "jsonl"):
        print_message(job, form)
    elif exit_code_of(job) != 0 or sys.stderr.isatty():
        say(end_in_words(job))


def _come_back(why: str, waiting: Sequence[int]) -> str:
    named = " ".join(map(str, waiting[:10])) + (" …" if len(waiting) > 10 else "")
    goes_on = f"job {named} goes on" if len(waiting) == 1 else f"{len(waiting)} jobs go on"
    return f"{why}; {goes_on}. Wait again with: gpuctl wait {named}"


def _tell_cut_off(is_cut_off: bool) -> None:
    say("the scheduler is away; waiting for it" if is_cut_off else "the scheduler is back")
