"""A job, for programs on asyncio: what is known of it, its output, its end, and what it left."""

from __future__ import annotations

import asyncio
import logging
import signal as signals
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

from gpufleet.errors import GpufleetError, Reason, invalid
from gpufleet.fleet.async_client import AsyncClient, may_pass
from gpufleet.fleet.client import connected
from gpufleet.fleet.following.core import TimeOuts
from gpufleet.fleet.following.job_updates import Ends
from gpufleet.fleet.following.output import OutputFeed, OutputRequest
from gpufleet.fleet.following.shell import FollowingEnd, follow
from gpufleet.fleet.inside.executing import Executed, execute
from gpufleet.fleet.inside.forwarding import Forwarding, check_may_forward
from gpufleet.fleet.inside.ports import listening, read_ports
from gpufleet.fleet.left_parts import left_parts
from gpufleet.fleet.named_jobs import NamedJob
from gpufleet.fleet.outcome import has_ended
from gpufleet.fleet.results import Brought, bring_all
from gpufleet.fleet.settings import Settings
from gpufleet.jobs.runs import SIGNAL_MAX
from gpufleet.text.spelling import did_you_mean
from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from .job_view import JobFile, JobView
from .output_lines import LINES_READ_AHEAD, Lines, PacedFeed

log = logging.getLogger(__name__)

STORED_SECONDS_MAX = 300.0
"""How long what an ended job left is waited for."""
ASKED_AGAIN_SECONDS_MIN = 0.02
ASKED_AGAIN_SECONDS_MAX = 0.5

STREAMS = {"stdout": job_pb2.STREAM_STDOUT, "stderr": job_pb2.STREAM_STDERR}


class HasJobs(Protocol):
    """The fleet that a job is of."""

    settings: Settings

    @property
    def client(self) -> AsyncClient: ...

    async def job(self, which: int | str) -> AsyncJob: ...


class AsyncJob(JobView):
    """A job of an `AsyncFleet`. Each call may raise GpufleetError."""

    def __init__(self, fleet: HasJobs, record: job_pb2.Job) -> None:
        super().__init__(record)
        self._fleet = fleet

    async def refresh(self) -> AsyncJob:
        """Ask what is known of it now."""
        client = self._client
        self.record = (await client.call(client.scheduler.GetJob, scheduler_pb2.GetJobRequest(job_id=self.id))).job
        return self

    async def wait(self, timeout_s: float | None = None, *, check: bool = False) -> int:
        """Its exit code, once it has ended; of an array the highest of its items'.

        Raises TimeoutError after `timeout_s`, and with `check` JobFailed where it did not succeed. A scheduler that is
        away is waited for, as long as gpuctl would. No job ends because nobody waits.
        """
        await self._end(timeout_s)
        if check and self.exit_code:
            raise self.failed()
        return self.exit_code or 0

    async def _end(self, timeout_s: float | None) -> None:
        ends = Ends(self._client, [self.id], self._see)
        async with asyncio.timeout(timeout_s):
            if not await _have_ended(ends):
                await stay(self._client, follow_ends(self._client, ends))

    def _see(self, record: job_pb2.Job) -> None:
        self.record = record

    async def logs(
        self,
        *,
        follow: bool = False,
        tail: int | None = None,
        rank: int | None = None,
        stream: Literal["stdout", "stderr"] | None = None,
        attempt: int = 0,
        setup: bool = False,
    ) -> AsyncGenerator[str, None]:
        """What it writes, line by line with their ends, both streams as they come; of several ranks each as `[1] …`.

        With `follow` to its end, through lost connections; else what there is. `tail` is the newest so many lines. With
        `setup` it is what makes the job's environment, of rank 0 where none is named; following ends as it runs.
        """
        if stream is not None and stream not in STREAMS:
            raise invalid("stream", f"{stream!r:.40} is not stdout or stderr", next_step="Leave it out for both.")
        if setup and stream is not None:
            raise invalid("stream", "what makes an environment has one stream alone", next_step="Leave it out.")
        wanted = OutputRequest(
            job_id=self.id,
            follow=follow,
            tail_lines=tail,
            rank=rank,
            attempt=attempt,
            stream=STREAMS[stream] if stream else job_pb2.STREAM_UNSPECIFIED,
            of_setup=setup,
        )
        lines = Lines(LINES_READ_AHEAD)
        feed = PacedFeed(OutputFeed(self._client, wanted, lines, on_job=self._see), lines)
        reading = asyncio.create_task(stay(self._client, follow_feed(self._client, feed)))
        reading.add_done_callback(lambda done: lines.finish())
        try:
            async for line in lines.all():
                yield line
            await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def files(self) -> list[JobFile]:
        """What it left of what `download` chooses: of a job that has ended all of it, once that is stored.

        Of an array what all of its items left.
        """
        answer = await all_left_by(self._client, self.record)
        left = [(None, ranked) for ranked in answer.ranks]
        return [
            JobFile(file.path, file.size_bytes, file.is_executable, ranked.rank, ranked.attempt, item)
            for item, ranked in [*left, *((each.index, ranked) for each in answer.items for ranked in each.ranks)]
            for file in ranked.files
        ]

    async def download(self, path: str = "", target: str | Path = ".", *, rank: int | None = None) -> list[Path]:
        """Bring here a file, a folder or, without a path, all that it left, once it has ended; answers where they lie.

        A target that is a folder, or ends with /, gets the file under its name. What was cut goes on where it was. Each
        rank of a job on several nodes, but for one `rank`, and each item of an array gets a folder in the target:
        `rank-0`, `item-1`. Where files of some are missing it raises FILE_NOT_FOUND, and the others are there.
        """
        place, named = str(target), NamedJob.of(self.record)
        settings = self._fleet.settings
        found: list[Path] = []

        def note(brought: Brought) -> None:
            for problem in brought.left.problems:
                log.warning("not among what %s left: %s", brought.part.words, problem)
            found.extend(where for _, where in brought.places)

        def work() -> list[Path]:
            with connected(settings) as client:
                bring_all(client, left_parts(client, named, rank), path, place, note)
            return found

        return await asyncio.to_thread(work)

    async def cancel(self, reason: str = "") -> None:
        """Stop it: SIGTERM, then SIGKILL when its grace is over. One that has ended stays as it is."""
        client = self._client
        request = scheduler_pb2.CancelRequest(jobs=self._selector(), reason=reason)
        await client.call_again(client.scheduler.Cancel, request)

    async def signal(self, signal: str | int) -> None:
        """Send each process of it a signal: `USR1`, `SIGINT`, or a number. Raises JOB_NOT_RUNNING where none runs."""
        client = self._client
        request = scheduler_pb2.SignalJobRequest(
            jobs=self._selector(), signal=_number_of(signal), request_id=uuid.uuid4().hex
        )
        answer = await client.call_again(client.scheduler.SignalJob, request)
        if not any(each.changed for each in answer.changes):
            raise GpufleetError(Reason.JOB_NOT_RUNNING, f"job {self.id} has no process to send it to")

    async def hold(self) -> None:
        """Keep it from starting until it is released."""
        await self._update("is_held", is_held=True)

    async def release(self) -> None:
        """Let it start."""
        await self._update("is_held", is_held=False)

    async def requeue(self, reason: str = "") -> None:
        """Take it off its node and queue it again, in its old place."""
        client = self._client
        request = scheduler_pb2.RequeueJobRequest(jobs=self._selector(), reason=reason)
        await client.call_again(client.scheduler.RequeueJob, request)

    async def items(self) -> list[AsyncJob]:
        """The items of an array as jobs, in the order of their indices."""
        client = self._client
        request = scheduler_pb2.ListArrayItemsRequest(job_id=self.id, page_size=1000)
        pages = [page async for page in client.all_pages(client.scheduler.ListArrayItems, request)]
        ids = [item.job_id for page in pages for item in page.items]
        return [await self._fleet.job(job_id) for job_id in ids]

    async def exec(self, command: Sequence[str] | str, *, given: bytes = b"", rank: int = 0) -> Executed:
        """Run another command in the running job, and answer how it ended and what it wrote, in bytes.

        As `gpuctl exec`: on the job's node, as its user, in its folder, with its environment and GPUs. A command that
        is one text is a line for the shell. `given` is its standard input. It ends with the job, and when this is left.
        It may write 64 MiB. Raises JOB_NOT_RUNNING, MESSAGE_TOO_LARGE.

            print((await job.exec("nvidia-smi")).stdout.decode())
        """
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else [str(each) for each in command]
        return await execute(self._client, self.id, argv, given, rank)

    @asynccontextmanager
    async def forward(self, port: int, *, local: int = 0, rank: int = 0) -> AsyncGenerator[int, None]:
        """A port of this machine that leads to one of the running job, as long as the block lasts; its number.

        As `gpuctl forward`: at 127.0.0.1, by default at any that is free; `local` names it. While the job does not
        listen, connections are reset. Raises PORT_TAKEN, JOB_FINISHED, NOT_YOUR_JOB.

            async with job.forward(8888) as port:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
        """
        (pair,) = read_ports([f"{port}:{local}"])
        await check_may_forward(self._client, (await self.refresh()).record)
        with listening([pair]) as ports:
            async with Forwarding(self._client, self.id, rank, log.warning).serve(ports):
                yield ports[0].local

    async def _update(self, field: str, **values: Any) -> None:
        client = self._client
        request = scheduler_pb2.UpdateJobRequest(jobs=self._selector(), **values)
        request.update_mask.paths.append(field)
        await client.call_again(client.scheduler.UpdateJob, request)

    def _selector(self) -> scheduler_pb2.JobSelector:
        return scheduler_pb2.JobSelector(job_ids=[self.id])

    @property
    def _client(self) -> AsyncClient:
        return self._fleet.client


def patience_of(settings: Settings) -> TimeOuts:
    """How long a scheduler that is away is waited for; a job that is there is waited for without an end."""
    return replace(settings.time_outs, session_s=float("inf"))


async def all_left_by(client: AsyncClient, job: job_pb2.Job) -> files_pb2.ListFilesResponse:
    """What a job left; of one that has ended once nothing of it is still coming, or after STORED_SECONDS_MAX."""
    until, pause_s = time.monotonic() + STORED_SECONDS_MAX, ASKED_AGAIN_SECONDS_MIN
    while True:
        request, answer = files_pb2.ListFilesRequest(job_id=job.id), files_pb2.ListFilesResponse()
        while True:
            page = await client.call_again(client.scheduler.ListFiles, request)
            answer.MergeFrom(page)
            request.page_token = page.next_page_token
            if not request.page_token:
                break
        ranks = [*answer.ranks, *(rank for item in answer.items for rank in item.ranks)]
        is_coming = any(each.state == files_pb2.RESULTS_STATE_COMING for each in ranks)
        if not is_coming or not has_ended(job) or time.monotonic() > until:
            return answer
        await asyncio.sleep(pause_s)
        pause_s = min(pause_s * 2, ASKED_AGAIN_SECONDS_MAX)


async def follow_ends(client: AsyncClient, ends: Ends) -> FollowingEnd:
    """Return when all have ended, or nobody answers."""
    return await follow(ends.feed, patience_of(client.settings), client.translated, on_cut_off=_tell_cut_off)


async def follow_feed(client: AsyncClient, feed: PacedFeed) -> FollowingEnd:
    """Return at the end of the output, or when nobody answers."""
    return await follow(feed, patience_of(client.settings), client.translated, on_cut_off=_tell_cut_off)


async def _have_ended(ends: Ends) -> bool:
    """Whether all have ended, as far as the scheduler says so now: one that is away is waited for by who follows."""
    try:
        return await ends.read_records()
    except GpufleetError as problem:
        if not may_pass(problem):
            raise
        return False


async def stay(client: AsyncClient, following: Any) -> None:
    """Follow to the end. Raises SCHEDULER_UNREACHABLE where that did not come."""
    if await following is not FollowingEnd.DONE:
        limits = client.settings.time_outs
        why = f"the scheduler did not answer for {limits.unanswered_max * limits.connection_s:g} s; the job goes on"
        raise GpufleetError(Reason.SCHEDULER_UNREACHABLE, why, next_step="See why with: gpuctl doctor")


def _tell_cut_off(is_cut_off: bool) -> None:
    log.warning("the scheduler is away; waiting for it" if is_cut_off else "the scheduler is back")


def _number_of(signal: str | int) -> int:
    if isinstance(signal, int):
        number = int(signal)
    else:
        name = signal.upper() if signal.upper().startswith("SIG") else f"SIG{signal.upper()}"
        known = signals.Signals.__members__
        if name not in known:
            why = f'there is no signal "{signal}"{did_you_mean(name, known)}'
            raise invalid("signal", why, next_step="See the names with: kill -l")
        number = int(known[name])
    if not 1 <= number <= SIGNAL_MAX:
        raise invalid("signal", f"{number} is not from 1 to {SIGNAL_MAX}", next_step="See the numbers with: kill -l")
    return number
