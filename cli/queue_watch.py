"""`queue -w`: the queue drawn again on every change; it stays, marked stale, while the scheduler is away."""

from __future__ import annotations

import asyncio
import math
import shutil
import sys
import time
from datetime import datetime, timedelta

from gpufleet.v1 import job_pb2, node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.units import format_duration

from . import screen
from .async_client import AsyncClient, connected_async
from .call_failures import may_pass
from .client import connected
from .following.changes import Changes
from .following.shell import Taken, follow
from .leaving import Left, until_told_to_leave
from .outcome import has_ended
from .queue_view import NODES_SHOWN_MAX, Wanted, print_queue, whose
from .render.as_json import print_message
from .render.jobs import watch_screen
from .settings import Settings

DRAW_PAUSE_S = 0.2
"""Changes that come faster are drawn together."""

AGE_STEP_S = 1.0
"""How often the ages on a terminal move on when nothing changes."""

ALTERNATE_SCREEN = "\x1b[?1049h\x1b[?25l"
NORMAL_SCREEN = "\x1b[?25h\x1b[?1049l"
HOME = "\x1b[H"
END_OF_LINE = "\x1b[K"
END_OF_SCREEN = "\x1b[J"


async def watch_queue(settings: Settings, wanted: Wanted) -> int:
    """Stay until told to leave; answers the exit code."""
    with connected(settings) as client:
        user = whose(client, wanted)
    async with connected_async(settings) as client_for_good:
        watch = _JsonWatch if settings.format in ("json", "jsonl", "name") else _ScreenWatch
        view = watch(client_for_good, settings, wanted, user)
        try:
            await until_told_to_leave(view.run())
        except Left as left:
            view.close()
            print("gpuctl: left. Come back with: gpuctl queue -w", file=sys.stderr)
            return left.code
        except BaseException:
            view.close()
            raise
    return 0


class Filters:
    """Which jobs of a watch are shown: those that pass, and once more those that do so no more."""

    def __init__(self, wanted: Wanted) -> None:
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

    def __init__(self, client: AsyncClient, settings: Settings, wanted: Wanted, user: str) -> None:
        self._client = client
        self._settings = settings
        self._filters = Filters(wanted)
        self._user = user

    async def run(self) -> None:
        request = scheduler_pb2.WatchRequest(user=self._user, include_nodes=True)
        feed = Changes(self._client, request, self._take)
        await follow(feed, self._settings.time_outs.without_end(), self._client.translated)

    def close(self) -> None:
        """There is nothing to put back."""

    def _take(self, message: scheduler_pb2.WatchResponse) -> Taken:
        if message.event == scheduler_pb2.WATCH_EVENT_KEEPALIVE:
            return Taken.SIGN_OF_LIFE
        if message.HasField("job") and not self._filters.shows(message.job):
            return Taken.NEWS
        if self._settings.format != "name":
            print_message(message, "jsonl")
        elif message.HasField("job"):
            screen.print_lines([str(message.job.id)])
        return Taken.NEWS


class _ScreenWatch:
    """A screen, or one table after the other where there is no terminal."""

    def __init__(self, client: AsyncClient, settings: Settings, wanted: Wanted, user: str) -> None:
        self._client = client
        self._settings = settings
        self._wanted = wanted
        self._user = user
        self._is_terminal = sys.stdout.isatty()
        self._is_open = False
        self._changed = asyncio.Event()
        self._is_away = False
        self._answer = scheduler_pb2.QueueResponse()
        self._nodes: list[node_pb2.Node] = []
        self._read_at: float | None = None
        self._read_time = screen.local_now()

    async def run(self) -> None:
        await self._read()
        if self._is_terminal:
            self._is_open = True
            sys.stdout.write(ALTERNATE_SCREEN)
        request = scheduler_pb2.WatchRequest(user=self._user, include_nodes=True, skip_snapshot=True)
        feed = Changes(self._client, request, self._take)
        async with asyncio.TaskGroup() as group:
            group.create_task(
                follow(
                    feed, self._settings.time_outs.without_end(), self._client.translated, on_cut_off=self._on_cut_off
                )
            )
            group.create_task(self._draw_for_ever())

    def close(self) -> None:
        """Put the terminal back, with the last picture left on it."""
        if self._is_open:
            self._is_open = False
            sys.stdout.write(NORMAL_SCREEN)
            sys.stdout.flush()
            print_queue(self._settings, self._wanted, self._answer, self._nodes)

    def _take(self, message: scheduler_pb2.WatchResponse) -> Taken:
        if message.event == scheduler_pb2.WATCH_EVENT_KEEPALIVE:
            return Taken.SIGN_OF_LIFE
        self._changed.set()
        return Taken.NEWS

    def _on_cut_off(self, is_cut_off: bool) -> None:
        self._is_away = is_cut_off
        self._changed.set()

    async def _draw_for_ever(self) -> None:
        self._draw()
        while True:
            was_changed = await self._wait_for_change()
            if was_changed:
                try:
                    await self._read()
                except GpufleetError as problem:
                    if not may_pass(problem):
                        raise
                    self._is_away = True
            if was_changed or self._is_terminal:
                self._draw()
            await asyncio.sleep(DRAW_PAUSE_S)

    async def _wait_for_change(self) -> bool:
        try:
            async with asyncio.timeout(AGE_STEP_S):
                await self._changed.wait()
        except TimeoutError:
            return self._is_away and self._read_at is not None  # try again: it may be back before its stream is
        self._changed.clear()
        return True

    async def _read(self) -> None:
        request = self._wanted.request(self._user)
        self._answer = await self._client.call(self._client.scheduler.Queue, request)
        nodes = scheduler_pb2.ListNodesRequest(page_size=NODES_SHOWN_MAX)
        self._nodes = list((await self._client.call(self._client.scheduler.ListNodes, nodes)).nodes)
        self._read_at = time.monotonic()
        self._read_time = screen.local_now()
        self._is_away = False

    def _draw(self) -> None:
        if not self._is_terminal:
            print_queue(self._settings, self._wanted, self._answer, self._nodes)
            print(flush=True)
            return
        size = shutil.get_terminal_size()
        look = screen.look(self._settings.format)
        now = screen.local_now()
        head, with_finished = self._head(now), self._wanted.with_finished
        lines = watch_screen(self._answer, self._nodes, now, look, size.lines, head=head, with_finished=with_finished)
        body = "".join(line + END_OF_LINE + "\r\n" for line in lines[:-1]) + "".join(lines[-1:]) + END_OF_LINE
        sys.stdout.write(HOME + body + END_OF_SCREEN)
        sys.stdout.flush()

    def _head(self, now: datetime) -> str:
        age_s = 0.0 if self._read_at is None else time.monotonic() - self._read_at
        if self._is_away:
            age = format_duration(timedelta(seconds=math.floor(age_s)))
            return f"STALE: {self._settings.address} is away; this is of {self._read_time:%H:%M:%S}, {age} ago"
        return f"{self._settings.address} · {now:%H:%M:%S} · Ctrl-C leaves"
