"""The people of a drill: they submit until they are answered, change their minds, follow, lose the line and come back.

Everything that they asked and were told goes to a log of their own, a JSON object a line; `reading.py` reads it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import grpc.aio
from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import Code, GpufleetError
from gpufleet.net.status import from_rpc_error
from tests.drills.kinds import BANDS, Wish, draw
from tests.e2e.client import Client, select

CALL_SECONDS_MAX = 10.0
PAUSE_SECONDS = (0.05, 0.5)
RESIDENT_SECONDS, RESIDENTS_OVERLAP_SECONDS = 70.0, 15.0

SHORT_SECONDS = 2.0
"""Towards the end nothing is submitted that takes longer than is left, or than this."""

FOLLOWER_SECONDS = (1.0, 20.0)
"""A follower's line breaks after such a time, again and again."""

COMES_AND_GOES = frozenset({Code.UNAVAILABLE, Code.CANCELLED, Code.DEADLINE_EXCEEDED})
"""What a person has to expect while programs and links fail; everything else is answered for good."""

ANSWERS = frozenset({Code.FAILED_PRECONDITION, Code.NOT_FOUND})
"""What may be answered to a request that came too late."""

T = TypeVar("T")


class Place(NamedTuple):
    """One output of a job."""

    attempt: int
    rank: int
    stream: job_pb2.Stream.ValueType


class Diary:
    """The log of one person."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def write(self, what: str, **facts: object) -> None:
        """Note something; `ns` is CLOCK_BOOTTIME, the clock of the jobs."""
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._file.write(json.dumps({"what": what, "ns": now, **facts}) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Person:
    """One user, by a token of their own."""

    def __init__(self, name: str, client: Client, seed: int, folder: Path, stamps: Path, python: str) -> None:
        self.name = name
        self._python = python
        self._client = client
        self._rng = random.Random(f"drill {seed} {name}")
        self._folder = folder
        self._stamps = stamps
        self._diary = Diary(folder / f"{name}.jsonl")
        self._number = 0
        self._is_going_home = False
        self._tasks: set[asyncio.Task[None]] = set()
        self.jobs: list[int] = []

    async def work(self, seconds: float, between_seconds: float) -> None:
        """Submit jobs for so long, this far apart on average; what follows from them goes on by itself."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            wish = draw(self._rng, self.jobs, max(SHORT_SECONDS, end - time.monotonic()))
            self._start(self._live_through(wish))
            await asyncio.sleep(self._rng.expovariate(1 / between_seconds))

    async def keep_busy(self, node: str, seconds: float) -> None:
        """Have something long on this node for so long, so that whatever happens to it happens to somebody."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            wish = Wish(
                kind="resident", seconds=min(RESIDENT_SECONDS, left), nodelist=(node,), band=job_pb2.BAND_URGENT
            )
            self._start(self._live_through(replace(wish, lines=int(wish.seconds * 20), followers=1)))
            await asyncio.sleep(min(RESIDENT_SECONDS - RESIDENTS_OVERLAP_SECONDS, left))

    async def go_home(self) -> None:
        """Let go of what is held; return once all submits are answered. Followers go on."""
        self._is_going_home = True
        for job in list(self.jobs):
            await self._release(job)

    async def probe(self, node: str, gpus: int, cpus: int) -> None:
        """Submit a job of all that a node has, and return once it has ended."""
        first = await self._submit(Wish(kind="probe", seconds=0.1, gpus=gpus, cpus=cpus, nodelist=(node,)))
        if first is not None:
            await self._follow(first, 0)

    async def leave(self, seconds: float) -> None:
        """Give everything that still goes on so long, then end it."""
        try:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=seconds)
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        finally:
            self._diary.close()

    # --- one job

    def _start(self, doing: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (problem := task.exception()) is not None:
            self._diary.write("surprise", text=f"{type(problem).__name__}: {problem}"[:2000])

    async def _live_through(self, wish: Wish) -> None:
        first = await self._submit(wish)
        if first is None:
            return
        ids = range(first, first + wish.count)
        self.jobs.extend(ids)
        for job in ids:
            for number in range(wish.followers):
                self._start(self._follow(job, number))
        if wish.is_held and self._is_going_home:  # the answer came late
            await self._release(first)
        if wish.moved_after is not None:
            await asyncio.sleep(wish.moved_after)
            await self._update(first, "band", band=self._rng.choice(BANDS))
        if wish.release_after is not None:
            await asyncio.sleep(wish.release_after)
            await self._release(first)
        if wish.requeue_after is not None:
            await asyncio.sleep(wish.requeue_after)
            request = scheduler_pb2.RequeueJobRequest(jobs=select(first))
            await self._insist(lambda: self._client.stub.RequeueJob(request, timeout=CALL_SECONDS_MAX))
        if wish.cancel_after is not None:
            await asyncio.sleep(wish.cancel_after)
            for job in range(first, first + wish.count + wish.items):
                self._diary.write("cancels", job=job)
            await self._insist(
                lambda: self._client.stub.Cancel(
                    scheduler_pb2.CancelRequest(jobs=select(first)), timeout=CALL_SECONDS_MAX
                )
            )

    async def _submit(self, wish: Wish) -> int | None:
        self._number += 1
        request_id = f"{self.name}-{self._number}"
        spec = self._client.spec(
            *wish.argv(self._python, self._stamps), env={"DRILLS_VALUE": f"of {self.name}"}, **wish.fields()
        )
        if wish.begins_in:
            spec.begin_time.FromNanoseconds(time.time_ns() + int(wish.begins_in * 1e9))
        if wish.share_milli:
            spec.devices[0].share.milli = wish.share_milli
        request = scheduler_pb2.SubmitRequest(specs=[spec], count=wish.count, request_id=request_id)
        self._diary.write(
            "asks",
            request=request_id,
            kind=wish.kind,
            count=wish.count,
            items=wish.items,
            active_max=wish.active_max,
            is_requeueable=wish.is_requeueable,
            retries=wish.retries,
            is_held=wish.is_held,
            has_time_limit=bool(wish.time_limit),
            share_milli=wish.share_milli,
            after=wish.after,
        )
        first: int | None = None
        # Now and then somebody asks again although they were answered.
        for _ in range(self._rng.choice((1, 1, 1, 2))):
            answer = await self._insist(lambda: self._client.stub.Submit(request, timeout=CALL_SECONDS_MAX))
            if isinstance(answer, GpufleetError):
                self._diary.write("refused", request=request_id, reason=answer.reason.name)
                return None
            first = answer.first_job_id
            self._diary.write("answered", request=request_id, first=first, count=answer.count)
        return first

    async def _release(self, job: int) -> None:
        self._diary.write("releases", job=job)
        await self._update(job, "is_held", is_held=False)

    async def _update(self, job: int, field: str, **fields: Any) -> None:
        request = scheduler_pb2.UpdateJobRequest(jobs=select(job), **fields)
        request.update_mask.paths.append(field)
        await self._insist(lambda: self._client.stub.UpdateJob(request, timeout=CALL_SECONDS_MAX))

    async def _insist(self, call: Callable[[], Awaitable[T]]) -> T | GpufleetError:
        """Ask until there is an answer; a refusal is one. What means a bug is noted."""
        while True:
            try:
                return await call()
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                if error.code not in COMES_AND_GOES:
                    if error.code not in ANSWERS:
                        self._diary.write("surprise", text=f"{error.reason.name}: {error}"[:2000])
                    return error
            await asyncio.sleep(self._rng.uniform(*PAUSE_SECONDS))

    # --- following

    async def _follow(self, job: int, number: int) -> None:
        """Get every byte of a job, over as many connections as it takes."""
        name = f"{self.name}-{job}-{number}"
        rng = random.Random(f"{self._rng.random()} {name}")
        folder = self._folder / "followed" / name
        folder.mkdir(parents=True)
        self._diary.write("follows", name=name, job=job)
        have: dict[Place, int] = {}
        while True:
            positions = [scheduler_pb2.StreamPosition(**key._asdict(), offset=at) for key, at in have.items()]
            request = scheduler_pb2.StreamOutputRequest(job_id=job, attempt=0, follow=True, positions=positions)
            call = self._client.stub.StreamOutput(request, timeout=rng.uniform(*FOLLOWER_SECONDS))
            try:
                async for message in call:
                    self._take(folder, name, have, message)
                    if message.is_end:
                        self._diary.write("got the end", name=name)
                        return
            except grpc.aio.AioRpcError as problem:
                error = from_rpc_error(problem)
                if error.code not in COMES_AND_GOES:
                    self._diary.write("problem", name=name, text=f"{error.reason.name}: {error}"[:2000])
                    return
            finally:
                with suppress(Exception):
                    call.cancel()
            await asyncio.sleep(rng.uniform(*PAUSE_SECONDS))

    def _take(self, folder: Path, name: str, have: dict[Place, int], message: Any) -> None:
        if message.HasField("gap"):
            self._diary.write("problem", name=name, text=f"a gap: {message.gap}")
        if not message.data:
            return
        key = Place(message.attempt, message.rank, message.stream)
        if message.offset != have.get(key, 0):
            text = f"{key}: offset {message.offset} behind {have.get(key, 0)} bytes"
            self._diary.write("problem", name=name, text=text)
        with (folder / ".".join(map(str, key))).open("ab") as file:
            file.write(message.data)
        have[key] = message.offset + len(message.data)
