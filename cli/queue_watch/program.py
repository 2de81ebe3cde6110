"""`queue -w`: the queue drawn again on every change; it stays, marked stale, while the scheduler is away."""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import time
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any

from gpufleet.v1 import job_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.async_client import AsyncClient, connected_async, may_pass
from gpufleet.fleet.client import connected
from gpufleet.fleet.following.feeds import MessageKind
from gpufleet.fleet.following.job_updates import Changes
from gpufleet.fleet.following.shell import follow
from gpufleet.fleet.outcome import has_ended
from gpufleet.fleet.settings import Settings
from gpufleet.text.units import format_duration

from .. import screen
from ..full_screen.program import FullScreen
from ..full_screen.view import View
from ..jobs.queue_view import NODES_SHOWN_MAX, QueueRequest, print_queue
from ..printing import print_message
from ..quitting import stay
from .picture import STALE, QueueRows, Reading, frame

DRAW_PAUSE_S = 0.2
"""Changes that come faster are drawn together."""

AGE_STEP_S = 1.0
"""How often the ages on a terminal move on when nothing changes."""


async def watch_queue(settings: Settings, wanted: QueueRequest) -> int:
    """Stay until told to leave; answers the exit code."""
    with connected(settings) as client:
        me = client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest()).user
    async with connected_async(settings) as client_for_good:
        view = _view_for(settings)(client_for_good, settings, wanted, me if wanted.is_mine else wanted.user, me)
        return await stay(view.run(), view.close, "gpuctl queue -w")


def _view_for(settings: Settings) -> type[_JsonWatch] | type[_TableWatch]:
    if settings.format in ("json", "jsonl", "name"):
        return _JsonWatch
    return _ScreenWatch if sys.stdout.isatty() else _TableWatch


class ShownJobs:
    """Which jobs of a watch are shown: those that pass, and once more those that do so no more."""

    def __init__(self, wanted: QueueRequest) -> None:
        self._wanted = wanted
        self._shown: set[int] = set()

    def shows(self, job: job_pb2.Job) -> bool:
        """Whether a job that changed is shown."""
        passes = self._wanted.takes(job)
        is_shown = passes or job.id in self._shown
        self._shown.discard(job.id)
        if passes and not has_ended(job):
            self._shown.add(job.id)
        return is_shown


class _JsonWatch:
    """One object for each change."""

    def __init__(self, client: AsyncClient, settings: Settings, wanted: QueueRequest, user: str, me: str) -> None:
        self._client = client
        self._settings = settings
        self._filters = ShownJobs(wanted)
        self._user = user

    async def run(self) -> None:
        request = scheduler_pb2.WatchRequest(user=self._user, include_nodes=True)
        feed = Changes(self._client, request, self._take)
        await follow(feed, self._settings.time_outs.without_end(), self._client.translated)

    def close(self) -> None:
        """There is nothing to put back."""

    def _take(self, message: scheduler_pb2.WatchResponse) -> MessageKind:
        if message.event == scheduler_pb2.WATCH_EVENT_KEEPALIVE:
            return MessageKind.SIGN_OF_LIFE
        if message.HasField("job") and not self._filters.shows(message.job):
            return MessageKind.NEWS
        if self._settings.format != "name":
            print_message(message, "jsonl")
        elif message.HasField("job"):
            screen.print_lines([str(message.job.id)])
        return MessageKind.NEWS


class _TableWatch:
    """One table after the other, where there is no terminal: on each change."""

    def __init__(self, client: AsyncClient, settings: Settings, wanted: QueueRequest, user: str, me: str) -> None:
        self._client = client
        self._settings = settings
        self._wanted = wanted
        self._user = user
        self._changed = asyncio.Event()
        self._is_away = False
        self._reading = Reading(with_finished=wanted.with_finished)
        self._read_at = 0.0
        self._read_time = screen.local_now()

    async def run(self) -> None:
        await self._read()
        self._draw()
        await _both(self._follow(), self._read_for_ever())

    def close(self) -> None:
        """There is nothing to put back."""

    async def _follow(self) -> None:
        request = scheduler_pb2.WatchRequest(user=self._user, include_nodes=True, skip_snapshot=True)
        feed, limits = Changes(self._client, request, self._take), self._settings.time_outs.without_end()
        await follow(feed, limits, self._client.translated, on_cut_off=self._on_cut_off)

    def _take(self, message: scheduler_pb2.WatchResponse) -> MessageKind:
        if message.event == scheduler_pb2.WATCH_EVENT_KEEPALIVE:
            return MessageKind.SIGN_OF_LIFE
        self._changed.set()
        return MessageKind.NEWS

    def _on_cut_off(self, is_cut_off: bool) -> None:
        self._is_away = is_cut_off
        self._changed.set()

    async def _read_for_ever(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGE_STEP_S if self._is_away else None):  # it may be back before its stream
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self._read()
            except GpufleetError as problem:
                if not may_pass(problem):
                    raise
                self._is_away = True
            self._draw()
            await asyncio.sleep(DRAW_PAUSE_S)

    async def _read(self) -> None:
        self._reading.answer = await self._client.call(self._client.scheduler.Queue, self._wanted.request(self._user))
        nodes = scheduler_pb2.ListNodesRequest(page_size=NODES_SHOWN_MAX)
        self._reading.nodes = (await self._client.call(self._client.scheduler.ListNodes, nodes)).nodes
        self._read_at, self._read_time = time.monotonic(), screen.local_now()
        self._is_away = False

    def _draw(self) -> None:
        print_queue(self._settings, self._wanted, self._reading.answer, self._reading.nodes)
        print(flush=True)


class _ScreenWatch(_TableWatch):
    """The terminal, filled, with keys."""

    def __init__(self, client: AsyncClient, settings: Settings, wanted: QueueRequest, user: str, me: str) -> None:
        super().__init__(client, settings, wanted, user, me)
        self._rows = QueueRows(me)
        toggles = {"m": self._rows.toggle_mine_first, "n": self._toggle_nodes}
        self._view = View(self._rows, toggles=toggles)
        self._screen = FullScreen(self._view, self._picture, self._refresh)
        self._is_shown = False

    async def run(self) -> None:
        await self._read()
        self._draw()
        self._is_shown = True
        await self._screen.run(_both(self._follow(), self._read_for_ever()))

    def close(self) -> None:
        """Put the terminal back, with the last picture left on it."""
        self._screen.terminal.close()
        if self._is_shown:
            self._is_shown = False
            with contextlib.suppress(OSError):  # its window may be gone
                print_queue(self._settings, self._wanted, self._reading.answer, self._reading.nodes)

    def _draw(self) -> None:
        self._rows.put(self._reading.answer.jobs, self._read_time)
        self._screen.changed()

    async def _refresh(self) -> None:
        self._changed.set()

    def _toggle_nodes(self) -> None:
        self._reading.with_nodes = not self._reading.with_nodes

    def _picture(self, columns: int, lines: int) -> list[str]:
        look, now = screen.look(self._settings.format), screen.local_now()
        return frame(self._view, self._reading, self._head(now), now, look, columns, lines)

    def _head(self, now: datetime) -> str:
        if self._is_away:
            age = format_duration(timedelta(seconds=math.floor(time.monotonic() - self._read_at)))
            return f"{STALE}: {self._settings.where} is away; this is of {self._read_time:%H:%M:%S}, {age} ago"
        return f"{now:%H:%M:%S}"


async def _both(*works: Coroutine[Any, Any, None]) -> None:
    """Each to its end, or until one of them fails."""
    async with asyncio.TaskGroup() as group:
        for work in works:
            group.create_task(work)
