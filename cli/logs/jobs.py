"""`logs`: the output of jobs, or the log of a program."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, Reason
from gpufleet.fleet.async_client import AsyncClient, connected_async
from gpufleet.fleet.exit_codes import OWN_FAILURE
from gpufleet.fleet.following.core import TimeOuts
from gpufleet.fleet.following.output import OutputFeed, OutputRequest, ProgramLogFeed, Writer
from gpufleet.fleet.following.shell import FollowingEnd, follow
from gpufleet.fleet.outcome import FINAL_STATES, end_in_words, exit_code_of, has_ended
from gpufleet.fleet.settings import Settings

from ..errors import first_of
from ..following.writers import Plain, Prefixed, Streams
from ..quitting import Left, until_told_to_leave
from .request import Workers, see_workers_come

Show = Callable[[OutputRequest], Coroutine[Any, Any, FollowingEnd]]


async def show_logs(
    settings: Settings, wanted: Sequence[OutputRequest], *, is_raw: bool, workers: Workers | None = None
) -> int:
    """Write the output of each; with --follow until each has ended, and no worker can come. Answers the exit code."""
    streams = Streams(passes_all=is_raw)
    follows = workers is not None or wanted[0].follow
    command = _command(wanted, workers)
    async with connected_async(settings) as client:

        async def show(each: OutputRequest) -> FollowingEnd:
            try:
                return await _show(client, each, _writer(streams, wanted, each, is_raw), settings.time_outs)
            except GpufleetError as problem:
                if problem.reason is not Reason.IS_AN_ARRAY:
                    raise
            ended = FollowingEnd.DONE
            async for item in _items_with_output(client, each):
                ended = await _show(client, item, _writer(streams, wanted, item, is_raw), settings.time_outs)
                if ended is not FollowingEnd.DONE:
                    break
            return ended

        try:
            work = _all_at_once(client, show, wanted, workers) if follows else _one_by_one(show, wanted)
            ends = await until_told_to_leave(work)
        except Left as left:
            if follows:
                streams.note(f"left. Come back with: {command}")
            return left.code
    if FollowingEnd.UNANSWERED in ends:
        limits = settings.time_outs
        waited_s = limits.unanswered_max * limits.connection_s
        streams.note(f"the scheduler did not answer for {waited_s:g} s; giving up. Come back with: {command}")
        return OWN_FAILURE
    if FollowingEnd.SESSION_OVER in ends:
        streams.note(f"the session reached its {settings.time_outs.session_s:g} s. Come back with: {command}")
        return OWN_FAILURE
    return 0


async def _show(client: AsyncClient, wanted: OutputRequest, writer: Writer, limits: TimeOuts) -> FollowingEnd:
    def on_cut_off(is_cut_off: bool) -> None:
        writer.note("the scheduler is away; going on when it is back" if is_cut_off else "the scheduler is back")

    if wanted.program:
        log = ProgramLogFeed(client, wanted, writer)
        return await follow(log, limits, client.translated, on_cut_off=on_cut_off)
    feed = OutputFeed(client, wanted, writer)
    try:
        ended = await follow(feed, limits, client.translated, on_cut_off=on_cut_off)
    finally:
        writer.finish()
    if feed.job is not None and ended is FollowingEnd.DONE:
        if wanted.follow and has_ended(feed.job) and exit_code_of(feed.job) != 0:
            writer.note(end_in_words(feed.job))
        if not _is_whole(feed.job, wanted):
            _tell_missing(feed.job, writer, is_any_stored=feed.has_output)
        elif not wanted.follow and not feed.has_output and sys.stderr.isatty():
            so_far = "" if has_ended(feed.job) else " so far"
            of_it = f"attempt {wanted.attempt} of job" if wanted.attempt else "job"
            writer.note(
                f"{of_it} {wanted.job_id} wrote nothing of what was asked for{so_far}; see: gpuctl job {wanted.job_id}"
            )
    return ended


async def _items_with_output(client: AsyncClient, array: OutputRequest) -> AsyncIterator[OutputRequest]:
    """The items of an array in the order of their indices: all that have begun, and to follow also those that will."""
    request = scheduler_pb2.ListArrayItemsRequest(job_id=array.job_id)
    async for page in client.all_pages(client.scheduler.ListArrayItems, request):
        for item in page.items:
            has_it = item.attempt_count >= max(1, array.attempt)
            if has_it or (array.follow and not array.attempt and item.state not in FINAL_STATES):
                yield replace(array, job_id=item.job_id, label=f"{array.job_id}.{item.index}")


def _is_whole(job: job_pb2.Job, wanted: OutputRequest) -> bool:
    """Whether nothing of what was asked for is known to be lost; what runs may still write all of it."""
    if not wanted.attempt:
        return job.output_is_complete or not has_ended(job)
    return all(each.output_is_complete for each in job.attempts if each.number == wanted.attempt and _is_over(each))


def _is_over(attempt: job_pb2.Attempt) -> bool:
    return attempt.HasField("end_time")


def _tell_missing(job: job_pb2.Job, writer: Writer, *, is_any_stored: bool) -> None:
    what = "is not complete" if is_any_stored else "is gone, if it wrote any: nothing of it is stored"
    writer.note(f"the output of job {job.id} {what}; see: gpuctl job {job.id}")


async def _one_by_one(show: Show, wanted: Sequence[OutputRequest]) -> list[FollowingEnd]:
    return [await show(each) for each in wanted]


async def _all_at_once(
    client: AsyncClient, show: Show, wanted: Sequence[OutputRequest], workers: Workers | None
) -> list[FollowingEnd]:
    tasks: list[asyncio.Task[FollowingEnd]] = []
    looking: asyncio.Task[None] | None = None

    async def shown(each: OutputRequest) -> FollowingEnd:
        ended = await show(each)
        if ended is not FollowingEnd.DONE and looking is not None:
            looking.cancel()
        return ended

    def followed() -> int:
        return sum(not task.done() for task in tasks)

    def begin(each: OutputRequest) -> None:
        tasks.append(group.create_task(shown(each)))

    try:
        async with asyncio.TaskGroup() as group:
            for each in wanted:
                begin(each)
            if workers is not None:
                known = [each.job_id for each in wanted]
                looking = group.create_task(see_workers_come(client, workers, known, begin, followed))
    except ExceptionGroup as problems:
        raise first_of(problems) from None
    return [task.result() for task in tasks]


def _writer(streams: Streams, wanted: Sequence[OutputRequest], each: OutputRequest, is_raw: bool) -> Writer:
    if (len(wanted) > 1 or each.label) and not is_raw:
        return Prefixed(streams, each.label or str(each.job_id))
    return Plain(streams, is_raw=is_raw)


def _command(wanted: Sequence[OutputRequest], workers: Workers | None) -> str:
    if workers is not None:
        return f"gpuctl logs -f {workers.flags}"
    first = wanted[0]
    if first.program:
        return f"gpuctl logs -f --program {first.program}{':' + first.node if first.node else ''}"
    which = " --setup" if first.of_setup else ""
    which += " --all-attempts" if first.all_attempts else f" --attempt {first.attempt}" if first.attempt else ""
    return f"gpuctl logs -f{which} {' '.join(str(each.job_id) for each in wanted)}"
