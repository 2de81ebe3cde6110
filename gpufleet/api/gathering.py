"""Makes calls on the fleet, as arrays, and brings back what each gave as its job ends."""

from __future__ import annotations

import asyncio
import json
import logging
import pickle
import tempfile
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc

from gpufleet.errors import GpufleetError, Reason, UnavailableError, invalid
from gpufleet.fleet.async_client import AsyncClient
from gpufleet.fleet.following.job_updates import Ends
from gpufleet.fleet.outcome import end_in_words, exit_code_of
from gpufleet.v1 import files_pb2, job_pb2, scheduler_pb2

from .failures import RemoteTraceback, TaskFailed
from .job import all_left_by, follow_ends, stay
from .job_view import JobView
from .options import job_options
from .tasks import FOLDER, LEFT, Call, Lot, command_of, lots, mismatch, write

log = logging.getLogger(__name__)

FETCHED_AT_ONCE = 16
"""Ended jobs whose files are brought here at the same time."""
TRIES_MAX = 5
"""Of one file that is cut; each goes on where the one before it stood."""
UNPICKLED_HERE_BYTES_MAX = 1_000_000
"""What is larger is unpickled on another thread, so that the loop goes on."""
CANCELLED_AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call gave: a value, or an error."""

    number: int
    value: Any = None
    error: BaseException | None = None


class TakesJobs(Protocol):
    """The fleet that the calls are made on."""

    @property
    def client(self) -> AsyncClient: ...

    @property
    def submit(self) -> Callable[..., Coroutine[Any, Any, JobView]]: ...


class Calls:
    """Calls that are made on the fleet, each once: `submit`, then `run` brings what they gave.

    A call that cannot be pickled has all of them refused, with `refuse_each` itself alone: it gave that error then.
    """

    def __init__(
        self,
        fleet: TakesJobs,
        calls: Sequence[Call],
        options: Mapping[str, Any],
        python: str | None = None,
        chunk_size: int = 1,
        at_once: int = 0,
        *,
        refuse_each: bool = False,
    ) -> None:
        if chunk_size < 1:
            raise invalid("chunk_size", f"{chunk_size} is less than 1", next_step="Leave it out.")
        for name in ("array", "nodes"):
            if options.get(name) is not None:
                raise invalid(name, "the calls are an array of their own, each on one node", next_step="Leave it out.")
        job_options(options)  # what is wrong is told before anything is pickled
        self._fleet = fleet
        self._calls = calls
        self._options = dict(options)
        self._python = python
        self._chunk_size = chunk_size
        self._at_once = at_once
        self._refuse_each = refuse_each
        self._refused: list[Outcome] = []
        self._jobs: dict[int, tuple[Lot, int]] = {}
        """Of each job that has not been gathered, its lot and its index there."""
        self._first_ids: list[int] = []
        self._is_submitted = False

    async def submit(self) -> None:
        """Submit all of them. Raises GpufleetError; then those that were submitted are cancelled."""
        self._is_submitted = True
        try:
            making = iter(lots(self._calls, self._refuse if self._refuse_each else None))
            while (lot := await asyncio.to_thread(next, making, None)) is not None:
                await self._submit(lot)
        except BaseException:
            await self.cancel()
            raise

    def _refuse(self, number: int, problem: GpufleetError) -> None:
        self._refused.append(Outcome(number, error=problem))

    async def _submit(self, lot: Lot) -> None:
        count = lot.job_count(self._chunk_size)
        at_once = f"%{self._at_once}" if self._at_once else ""
        options = {"name": "map", **self._options, "array": f"0-{count - 1}{at_once}"}
        options["file"] = [*_several(options.get("file"))]
        options["download"] = [*_several(options.get("download")), f"/{LEFT}/**"]
        with tempfile.TemporaryDirectory(prefix="gpufleet-calls-") as folder:
            await asyncio.to_thread(write, lot, Path(folder), self._chunk_size)
            options["file"].append(f"{folder}={FOLDER}")
            submitting = asyncio.create_task(
                self._fleet.submit(command_of(self._python, options.get("cwd")), **options)
            )
            try:
                job = await asyncio.shield(submitting)
            except asyncio.CancelledError:
                with suppress(Exception):  # it may be stored already, and only the answer says what is to be cancelled
                    self._first_ids.append((await submitting).id)
                raise
        self._first_ids.append(job.id)
        self._jobs |= {job.id + 1 + index: (lot, index) for index in range(count)}

    async def run(self, *, in_order: bool) -> AsyncGenerator[Outcome, None]:
        """What each gave. Left early, it cancels what has not ended."""
        if not self._is_submitted:
            await self.submit()
        ended: asyncio.Queue[job_pb2.Job | None] = asyncio.Queue()
        gathered: asyncio.Queue[list[Outcome] | BaseException] = asyncio.Queue()
        left = len(self._calls)
        gathered.put_nowait(self._refused)
        work = asyncio.create_task(self._gather(ended, gathered))
        kept: dict[int, Outcome] = {}
        next_number = 0
        try:
            while left:
                given = await gathered.get()
                if isinstance(given, BaseException):
                    raise given
                left -= len(given)
                for outcome in given:
                    if not in_order:
                        yield outcome
                    else:
                        kept[outcome.number] = outcome
                while in_order and next_number in kept:
                    yield kept.pop(next_number)
                    next_number += 1
        finally:
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
            if self._jobs:
                await self.cancel()

    async def cancel(self) -> None:
        """Cancel what has not ended, whole arrays at a time. Those that cannot be reached go on, and it is told."""
        client = self._fleet.client
        ids, self._first_ids = self._first_ids, []
        self._jobs.clear()
        for start in range(0, len(ids), CANCELLED_AT_ONCE):
            jobs = scheduler_pb2.JobSelector(job_ids=ids[start : start + CANCELLED_AT_ONCE])
            request = scheduler_pb2.CancelRequest(jobs=jobs, reason="nobody waits for it any more")
            try:
                await asyncio.shield(client.call_again(client.scheduler.Cancel, request))
            except GpufleetError as problem:
                log.warning("jobs %s could not be cancelled: %s", ids, problem.message)

    async def _gather(
        self, ended: asyncio.Queue[job_pb2.Job | None], gathered: asyncio.Queue[list[Outcome] | BaseException]
    ) -> None:
        """Fetch what each job left as it ends."""
        client = self._fleet.client
        ends = Ends(client, list(self._jobs), ended.put_nowait)
        fetchers = [asyncio.create_task(self._fetch_all(ended, gathered)) for _ in range(FETCHED_AT_ONCE)]
        try:
            await stay(client, follow_ends(client, ends))
            for _ in fetchers:
                ended.put_nowait(None)
            await asyncio.gather(*fetchers)
        except Exception as problem:
            gathered.put_nowait(problem)
        finally:
            for each in fetchers:
                each.cancel()
            await asyncio.gather(*fetchers, return_exceptions=True)

    async def _fetch_all(
        self, ended: asyncio.Queue[job_pb2.Job | None], gathered: asyncio.Queue[list[Outcome] | BaseException]
    ) -> None:
        while (job := await ended.get()) is not None:
            try:
                gathered.put_nowait(await self._outcomes(job))
                self._jobs.pop(job.id, None)
            except Exception as problem:
                gathered.put_nowait(problem)
                return

    async def _outcomes(self, job: job_pb2.Job) -> list[Outcome]:
        """What the calls of a job gave."""
        lot, index = self._jobs[job.id]
        numbers = range(index * self._chunk_size, min((index + 1) * self._chunk_size, len(lot.calls)))
        if len(numbers) == 1 and job.attempt_count == 1 and (at_once := await self._first_left(job, numbers[0])):
            return [Outcome(lot.numbers[numbers[0]], *await _read(at_once, job))]
        left = await self._left_by(job)
        outcomes = []
        for number in numbers:
            file = left.get(f"{LEFT}/{number}")
            if file is None:
                outcomes.append(Outcome(lot.numbers[number], error=_failed(job)))
                continue
            data = await self._bytes_of(job, file)
            outcomes.append(Outcome(lot.numbers[number], *await _read(data, job)))
        return outcomes

    async def _first_left(self, job: job_pb2.Job, number: int) -> bytes:
        """What a call left, asked for at once; nothing where that is not stored yet, or more is to be asked."""
        client = self._fleet.client
        data = bytearray()
        try:
            async for piece in client.scheduler.DownloadFile(
                files_pb2.DownloadFileRequest(job_id=job.id, path=f"{LEFT}/{number}")
            ):
                data += piece.data
        except grpc.RpcError:
            return b""
        return bytes(data)

    async def _left_by(self, job: job_pb2.Job) -> dict[str, files_pb2.FolderEntry]:
        """The files that a job left, by path; none where it never ran."""
        if not job.attempt_count:
            return {}
        answer = await all_left_by(self._fleet.client, job)
        for problem in (each for ranked in answer.ranks for each in ranked.problems):
            log.warning("not among what job %d left: %s", job.id, problem)
        return {file.path: file for ranked in answer.ranks for file in ranked.files}

    async def _bytes_of(self, job: job_pb2.Job, file: files_pb2.FolderEntry) -> bytes:
        """What is in a file that a job left."""
        client = self._fleet.client
        data = bytearray()
        for left in range(TRIES_MAX, 0, -1):
            request = files_pb2.DownloadFileRequest(job_id=job.id, path=file.path, offset=len(data), rank=0)
            try:
                async for piece in client.scheduler.DownloadFile(request):
                    if piece.offset != len(data):
                        raise GpufleetError(Reason.CONFLICT, "a piece came that does not follow the one before it")
                    data += piece.data
            except grpc.RpcError as problem:
                error = client.translated(problem)
                if left == 1 or not isinstance(error, UnavailableError):
                    raise error from None
                continue
            if len(data) == file.size_bytes:
                break
        return bytes(data)


async def _read(data: bytes, job: job_pb2.Job) -> tuple[Any, BaseException | None]:
    """The value and the error of what a call left."""
    large = len(data) > UNPICKLED_HERE_BYTES_MAX
    found = await asyncio.to_thread(_outcome, data, job) if large else _outcome(data, job)
    return found.value, found.error


def _outcome(data: bytes, job: job_pb2.Job) -> Outcome:
    """What a call left, read. It comes from a job of ours: who can write into that can run as us anyway."""
    line, _, body = data.partition(b"\n")
    head: dict[str, Any] = {}
    error: Exception
    try:
        head = json.loads(line)
        if head["kind"] == "value":
            return Outcome(0, pickle.loads(body))
        if head["kind"] == "python":
            ranks = job.attempts[-1].ranks if job.attempts else ()
            return Outcome(0, error=mismatch(head, ranks[0].node if ranks else ""))
        error = pickle.loads(body)
        if not isinstance(error, Exception):
            raise TypeError("it would end this program")  # SystemExit, KeyboardInterrupt: the call's end is not ours
    except (Exception, SystemExit) as problem:  # an exit while it is unpickled would end the loop, and all other calls
        why = head.get("what") or f"what it gave cannot be read here: {type(problem).__name__}: {problem}"
        error = TaskFailed(job.id, exit_code_of(job), str(why), f"See its output with: gpuctl logs {job.id}")
    if isinstance(error, ModuleNotFoundError):
        error.add_note("It is not on the node. Modules beside your program go along with it: upload='.'")
    if text := head.get("traceback"):
        error.__cause__ = RemoteTraceback(f"on the node, job {job.id}:\n{text}")
    return Outcome(0, error=error)


def _failed(job: job_pb2.Job) -> TaskFailed:
    """The error of a call that left nothing."""
    sentence = end_in_words(job)
    if job.state == job_pb2.JOB_STATE_SUCCEEDED:
        sentence += ", but what its call gave is not there; a call that ends its process by os._exit leaves nothing"
    return TaskFailed(job.id, exit_code_of(job), sentence, f"See its output with: gpuctl logs {job.id}")


def _several(given: Any) -> list[Any]:
    return [] if given is None else [given] if isinstance(given, (str, Path)) else list(given)
