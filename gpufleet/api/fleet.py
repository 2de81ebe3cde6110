"""The fleet, for programs on asyncio."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar, Unpack, overload

from gpufleet.errors import GpufleetError, invalid
from gpufleet.fleet.async_client import AsyncClient
from gpufleet.fleet.client import connected
from gpufleet.fleet.named_jobs import each_once, only_id, read_selection
from gpufleet.fleet.notices import Notices
from gpufleet.fleet.settings import Settings
from gpufleet.fleet.submitting.estimating import estimated
from gpufleet.fleet.submitting.input_folder import described
from gpufleet.fleet.submitting.requests import in_options, outcome_unknown, request_of
from gpufleet.fleet.submitting.uploading import upload_what_goes_along
from gpufleet.net.channel import connect_async
from gpufleet.text.spelling import did_you_mean
from gpufleet.v1 import job_pb2, scheduler_pb2

from .job import AsyncJob
from .job_view import JobView
from .options import SubmitOptions, in_words, job_options

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

PAGE_SIZE = 1000
NOTICES = Notices(log.info, log.debug)


class AsyncFleet:
    """A fleet, to be used in one loop, and closed with `async with` or `close`. Made by `gpufleet.connect_async`.

    Its calls may be made at the same time. Each may raise GpufleetError.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        """Where the scheduler is and who asks."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._channel: Any = None
        self._client: AsyncClient | None = None

    @property
    def client(self) -> AsyncClient:
        """The scheduler's calls, for what has no method here. Connects at the first call, in the running loop."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop = loop
            self._channel = connect_async(self.settings.target())
            self._client = AsyncClient(self.settings, self._channel)
        return self._client

    @overload
    async def submit(
        self,
        command: Sequence[str] | str,
        *,
        request_id: str | None = None,
        dry_run: Literal[False] = False,
        **options: Unpack[SubmitOptions],
    ) -> AsyncJob: ...

    @overload
    async def submit(
        self,
        command: Sequence[str] | str,
        *,
        request_id: str | None = None,
        dry_run: Literal[True],
        **options: Unpack[SubmitOptions],
    ) -> JobView: ...

    async def submit(
        self,
        command: Sequence[str] | str,
        *,
        request_id: str | None = None,
        dry_run: bool = False,
        **options: Unpack[SubmitOptions],
    ) -> AsyncJob | JobView:
        """Submit a job, with its files and its folder; answers once the scheduler has stored it.

        `command` is a program and its arguments, or a line for the shell. `options` are those of `gpuctl submit` by
        their words: `time_limit="4h"` for `--time-limit 4h`; with `array` the answer is the array. The same
        `request_id` is never done twice. Raises GpufleetError where it is refused, and nothing was changed. With
        `dry_run` nothing is changed or uploaded: the answer is what the job would be, its id 0, and `why_it_waits`.
        """
        words = [command] if isinstance(command, str) else [str(each) for each in command]
        given: Mapping[str, Any] = options
        request = await asyncio.to_thread(self._prepared, words, given, request_id, dry_run)
        client = self.client
        try:
            answer = await client.call_again(client.scheduler.Submit, request)
        except GpufleetError as problem:
            raise in_words(in_options(outcome_unknown(problem, request.request_id))) from None
        for note in answer.notes:
            log.warning("job %d: %s", answer.job.id, note)
        return JobView(answer.job) if dry_run else AsyncJob(self, answer.job)

    def _prepared(
        self, command: Sequence[str], given: Mapping[str, Any], request_id: str | None, is_dry_run: bool
    ) -> scheduler_pb2.SubmitRequest:
        """The request, once all that goes along is uploaded."""
        try:
            options, folder = described(self.settings, estimated(self.settings, job_options(given), log.info))
            request = request_of(options, command, request_id=request_id or uuid.uuid4().hex, dry_run=is_dry_run)
            if not is_dry_run and (options.file or folder is not None):
                root = self.settings.config.settings.shared_root
                upload_what_goes_along(self.settings, options.file or (), folder, request.specs[0], NOTICES, root)
            elif folder is not None:
                from gpufleet.fleet.folders.sending import say_what_is_in

                say_what_is_in(folder, NOTICES)
        except GpufleetError as problem:
            raise in_words(problem) from None
        return request

    async def job(self, which: int | str = "last") -> AsyncJob:
        """A job by its id, `41.3` for an item of an array, `last` for your newest, or its name."""
        client = self.client
        job_id = which if isinstance(which, int) else await asyncio.to_thread(self._id_of, which)
        return AsyncJob(
            self, (await client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=job_id))).job
        )

    def _id_of(self, which: str) -> int:
        selection = read_selection([which])
        with connected(self.settings) as client:
            return only_id(client, selection)

    async def jobs(
        self,
        *,
        mine: bool = False,
        user: str = "",
        name: str = "",
        state: str | Sequence[str] = (),
        label: Mapping[str, str] | None = None,
        with_ended: bool = False,
        limit: int = PAGE_SIZE,
    ) -> list[AsyncJob]:
        """Jobs that wait or run, in the order of the queue, and with `with_ended` those that have ended behind them.

        An array is one job. `state` is one or several of queued, held, starting, running, stopping, succeeded, failed,
        cancelled, timed_out.
        """
        client = self.client
        if mine:
            user = (await client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())).user
        states = [_state(each) for each in ([state] if isinstance(state, str) else state) if each]
        request = scheduler_pb2.QueueRequest(
            user=user,
            name=name,
            labels=label or {},
            states=states,
            include_finished=with_ended or any(each >= job_pb2.JOB_STATE_SUCCEEDED for each in states),
            page_size=min(max(limit, 1), PAGE_SIZE),
        )
        found: list[job_pb2.Job] = []
        async for page in client.all_pages(client.scheduler.Queue, request):
            found = each_once([*found, *page.jobs])
            if len(found) >= limit:
                break
        return [AsyncJob(self, each) for each in found[:limit]]

    async def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T],
        *,
        in_order: bool = True,
        return_exceptions: bool = False,
        chunk_size: int = 1,
        python: str | None = None,
        **options: Unpack[SubmitOptions],
    ) -> AsyncGenerator[R, None]:
        """What the function gives for each item, each call a job of an array; see `Fleet.map`."""
        from .gathering import Calls

        calls = Calls(self, [(function, (item,), {}) for item in items], options, python, chunk_size)
        async for outcome in calls.run(in_order=in_order):
            if outcome.error is None:
                yield outcome.value
            elif return_exceptions:
                yield outcome.error  # type: ignore[misc]
            else:
                raise outcome.error

    async def close(self) -> None:
        """End the connection. Jobs go on."""
        channel, self._channel, self._client = self._channel, None, None
        if channel is not None and self._loop is asyncio.get_running_loop():
            await channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.settings.where}>"


def _state(word: str) -> job_pb2.JobState.ValueType:
    known = {
        name.removeprefix("JOB_STATE_").lower(): number
        for name, number in job_pb2.JobState.items()
        if number != job_pb2.JOB_STATE_UNSPECIFIED
    }
    found = known.get(word.lower().replace("-", "_"))
    if found is None:
        what = f'"{word}" is no state of a job{did_you_mean(word.lower(), known)}'
        raise invalid("state", what, next_step=f"Write one of: {', '.join(known)}.")
    return found
