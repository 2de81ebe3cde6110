"""Carrying out what `core.py` decides, for one feed, with grpc and asyncio."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Generic, TypeVar

import grpc

from gpufleet.errors import GpufleetError, Reason

from ..async_client import is_told_to_end, may_pass, understood
from .core import Action, Follower, TimeOuts
from .feeds import Feed, MessageKind

M = TypeVar("M")

WAITING_MESSAGES_MAX = 64
"""Messages read ahead of a slow terminal; of at most 256 KiB each. Then the scheduler is made to wait."""


class FollowingEnd(Enum):
    """Why following ended."""

    DONE = auto()
    UNANSWERED = auto()
    SESSION_OVER = auto()


@dataclass(frozen=True, slots=True)
class _Message(Generic[M]):
    stream: int
    content: M


@dataclass(frozen=True, slots=True)
class _Lost:
    stream: int
    problem: Exception | None


@dataclass(frozen=True, slots=True)
class _Answer:
    question: int
    is_done: bool
    problem: Exception | None


async def follow(
    feed: Feed[M],
    limits: TimeOuts,
    translate: Callable[[grpc.RpcError], GpufleetError],
    on_cut_off: Callable[[bool], None] = lambda is_cut_off: None,
    clock: Callable[[], float] = time.monotonic,
    since: float | None = None,
) -> FollowingEnd:
    """Follow the feed to its end, or until a time-out; raises what the scheduler refuses for good.

    Whatever a stream or a question ends with comes back here: what may pass is tried again by the time-outs, and
    anything else, a fault of this program too, is raised as it is.
    `on_cut_off` is told when the scheduler is away, and when it is back. The session lasts `since` then, by the clock,
    where it began before this.
    """
    shell = _Shell(feed, limits, translate, on_cut_off, clock, clock() if since is None else since)
    try:
        return await shell.run()
    finally:
        await shell.close()


class _Shell(Generic[M]):
    def __init__(
        self,
        feed: Feed[M],
        limits: TimeOuts,
        translate: Callable[[grpc.RpcError], GpufleetError],
        on_cut_off: Callable[[bool], None],
        clock: Callable[[], float],
        since: float,
    ) -> None:
        self._feed: Feed[M] = feed
        self._translate = translate
        self._on_cut_off = on_cut_off
        self._clock = clock
        self._core = Follower(limits, since)
        self._arrivals: asyncio.Queue[_Message[M] | _Lost | _Answer] = asyncio.Queue(WAITING_MESSAGES_MAX)
        self._reader: asyncio.Task[None] | None = None
        self._question: asyncio.Task[None] | None = None
        self._stream = 0
        self._asked = 0
        self._was_cut_off = False

    async def run(self) -> FollowingEnd:
        actions = self._core.begin(self._clock())
        while True:
            for action in actions:
                ended = await self._carry_out(action)
                if ended is not None:
                    return ended
            arrival = await self._next_arrival()
            decided = self._decide(arrival, self._clock())
            if isinstance(decided, FollowingEnd):
                return decided
            actions = decided
            self._tell()

    async def _carry_out(self, action: Action) -> FollowingEnd | None:
        match action:
            case Action.OPEN:
                await self._open()
                return None
            case Action.ASK:
                await self._ask()
                return None
            case Action.GIVE_UP_UNANSWERED:
                return FollowingEnd.UNANSWERED
            case Action.GIVE_UP_SESSION:
                return FollowingEnd.SESSION_OVER

    def _decide(self, arrival: _Message[M] | _Lost | _Answer | None, now: float) -> list[Action] | FollowingEnd:
        match arrival:
            case None:
                return self._core.time_passed(now)
            case _Message():
                return self._on_message(arrival, now)
            case _Lost():
                return self._on_lost(arrival, now)
            case _Answer():
                return self._on_answer(arrival, now)

    def _on_message(self, arrival: _Message[M], now: float) -> list[Action] | FollowingEnd:
        if arrival.stream != self._stream:
            return []
        taken = self._feed.take(arrival.content)
        if taken is MessageKind.END:
            return FollowingEnd.DONE
        if taken is MessageKind.BROKEN:
            self._stream += 1  # what else this stream brings fits even less
            return self._core.broke(now)
        if taken is MessageKind.DOUBT:
            return self._core.doubted(now)
        return self._core.heard(now, is_news=taken is MessageKind.NEWS)

    def _on_lost(self, arrival: _Lost, now: float) -> list[Action] | FollowingEnd:
        if arrival.stream != self._stream:
            return []
        if arrival.problem is not None and not self._is_passing(arrival.problem):
            raise arrival.problem
        if arrival.problem is None and self._feed.ends_with_stream:
            return FollowingEnd.DONE
        return self._core.broke(now)

    def _is_passing(self, problem: Exception) -> bool:
        return may_pass(problem) or (isinstance(problem, GpufleetError) and self._feed.forgives(problem))

    def _on_answer(self, arrival: _Answer, now: float) -> list[Action] | FollowingEnd:
        if arrival.question != self._asked:
            return []
        if arrival.is_done:
            return FollowingEnd.DONE
        if arrival.problem is None:
            return self._core.answered(now)
        if not may_pass(arrival.problem):
            raise arrival.problem
        return []

    async def _next_arrival(self) -> _Message[M] | _Lost | _Answer | None:
        try:
            return self._arrivals.get_nowait()
        except asyncio.QueueEmpty:
            pass
        wait_s = self._core.wake_at() - self._clock()
        try:
            async with asyncio.timeout(max(wait_s, 0.0)):
                return await self._arrivals.get()
        except TimeoutError:
            return None

    async def _open(self) -> None:
        await _end(self._reader)
        self._stream += 1
        self._reader = asyncio.create_task(self._read(self._stream))

    async def _read(self, stream: int) -> None:
        problem: Exception | None = None
        try:
            async for message in self._feed.open():
                if message is None:  # so grpc.aio hands on what it cannot decode
                    raise _unreadable()
                await self._arrivals.put(_Message(stream, message))
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as failure:
            if is_told_to_end():
                raise
            problem = understood(failure, self._translate)
        await self._arrivals.put(_Lost(stream, problem))

    async def _ask(self) -> None:
        await _end(self._question)
        self._asked += 1
        self._question = asyncio.create_task(self._answer(self._asked))

    async def _answer(self, question: int) -> None:
        is_done = False
        problem: Exception | None = None
        try:
            is_done = await self._feed.ask()
        except (Exception, asyncio.CancelledError, BaseExceptionGroup) as failure:
            if is_told_to_end():
                raise
            problem = understood(failure, self._translate)
        await self._arrivals.put(_Answer(question, is_done, problem))

    def _tell(self) -> None:
        is_cut_off = self._core.is_cut_off(self._clock())
        if is_cut_off != self._was_cut_off:
            self._was_cut_off = is_cut_off
            self._on_cut_off(is_cut_off)

    async def close(self) -> None:
        await _end(self._reader)
        await _end(self._question)


def _unreadable() -> GpufleetError:
    return GpufleetError(
        Reason.UNKNOWN,
        "the scheduler sent a message that this gpuctl cannot read",
        next_step="Compare versions with: gpuctl version",
    )


async def _end(task: asyncio.Task[None] | None) -> None:
    if task is not None and not task.done():
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
