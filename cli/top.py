"""`top`: reads the devices again and again, draws them, and stays, marked stale, while the scheduler is away."""

from __future__ import annotations

import asyncio
import math
import os
import re
import shutil
import sys
import termios
import time
import tty
from collections.abc import Sequence
from datetime import timedelta

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.spelling import did_you_mean
from gpufleet.units import format_duration

from . import screen
from .async_client import AsyncClient, connected_async
from .call_failures import may_pass
from .leaving import Left, until_told_to_leave
from .listing import print_devices
from .render.top import SORTS, sorted_devices, top_lines, totals
from .settings import Settings

READ_SECONDS = 1.0
"""Between two looks at the devices; agents tell them every 2 s."""

PAGE_SIZE = 1000
NO_GPU = "No GPU. See the nodes with: gpuctl nodes"
OPEN = "\x1b[?1049h\x1b[?25l"
CLOSE = "\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
KEY_BYTES_MAX = 1024
KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|.", re.DOTALL)
"""One key: a control sequence, or a character."""
SCROLLS: dict[str, int | str] = {
    "\x1b[A": -1,
    "k": -1,
    "\x1b[B": 1,
    "\x1b[5~": "-page",
    "\x1b[6~": "page",
    " ": "page",
    "\x1b[H": "top",
    "\x1b[F": "end",
}


async def run_top(settings: Settings, user: str, nodes: Sequence[str], sort: str) -> int:
    """Stay until told to leave, or print once where there is no terminal; answers the exit code."""
    by_word = {word: key for key, (word, _) in SORTS.items()}
    if sort not in by_word:
        raise invalid("--sort", f'"{sort}" is none of {", ".join(by_word)}{did_you_mean(sort, by_word)}')
    async with connected_async(settings) as client:
        reader = _Reader(client, user, nodes)
        if settings.format in ("json", "jsonl", "name") or not (sys.stdout.isatty() and sys.stdin.isatty()):
            await reader.read()
            devices = sorted_devices(reader.devices, by_word[sort])
            print_devices(settings.format, devices, lambda look: top_lines(devices, look) if devices else [NO_GPU])
            return 0
        view = _View(reader, settings, by_word[sort])
        try:
            await until_told_to_leave(view.run())
        except Left as left:
            return left.code
        finally:
            view.close()
    return 0


class _Reader:
    """The devices as they were read last."""

    def __init__(self, client: AsyncClient, user: str, nodes: Sequence[str]) -> None:
        self.devices: list[node_pb2.NodeDevice] = []
        self._client = client
        self._user = user
        self._nodes = nodes

    async def read(self) -> None:
        """Read all of them."""
        if self._user == "me":
            info = await self._client.call(self._client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
            self._user = info.user
        request = scheduler_pb2.ListDevicesRequest(nodes=self._nodes, page_size=PAGE_SIZE)
        found: dict[tuple[str, int], node_pb2.NodeDevice] = {}
        while True:
            page = await self._client.call(self._client.scheduler.ListDevices, request)
            found |= {(each.node, each.device.index): each for each in page.devices}
            if not page.next_page_token:
                break
            request.page_token = page.next_page_token
        self.devices = [each for each in found.values() if not self._user or each.user == self._user]


class _View:
    """A screen with keys."""

    def __init__(self, reader: _Reader, settings: Settings, sort: str) -> None:
        self._reader = reader
        self._settings = settings
        self._sort = sort
        self._first = 0
        self._drawn = ""
        self._changed = asyncio.Event()
        self._is_away = False
        self._read_at = time.monotonic()
        self._terminal: list[object] | None = None
        self._has_left = asyncio.Event()

    async def run(self) -> None:
        """Read and draw until q is pressed. What fails at first is told; later it is waited for."""
        await self._reader.read()
        loop = asyncio.get_running_loop()
        self._terminal = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        sys.stdout.write(OPEN)
        loop.add_reader(sys.stdin.fileno(), self._on_keys)
        reading = asyncio.create_task(self._read_for_ever())
        drawing = asyncio.create_task(self._draw_for_ever())
        leaving = asyncio.create_task(self._has_left.wait())
        try:
            done, _ = await asyncio.wait({reading, drawing, leaving}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            loop.remove_reader(sys.stdin.fileno())
            for task in (reading, drawing, leaving):
                task.cancel()
            await asyncio.gather(reading, drawing, leaving, return_exceptions=True)

    def close(self) -> None:
        """Put the terminal back."""
        if self._terminal is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._terminal)  # type: ignore[arg-type]
            self._terminal = None
            sys.stdout.write(CLOSE)
            sys.stdout.flush()

    async def _read_for_ever(self) -> None:
        while True:
            await asyncio.sleep(READ_SECONDS)
            try:
                await self._reader.read()
                self._is_away, self._read_at = False, time.monotonic()
            except GpufleetError as problem:
                if not may_pass(problem):
                    raise
                self._is_away = True
            self._changed.set()

    async def _draw_for_ever(self) -> None:
        while True:
            self._draw()
            await self._changed.wait()
            self._changed.clear()

    def _draw(self) -> None:
        size = shutil.get_terminal_size()
        look = screen.look(self._settings.format)
        title, *rows = top_lines(sorted_devices(self._reader.devices, self._sort), look)
        room = max(1, size.lines - 3)
        self._first = max(0, min(self._first, len(rows) - room))
        shown = rows[self._first : self._first + room]
        below = len(rows) - self._first - len(shown)
        foot = f"{self._first:,} above, {below:,} below" if len(rows) > room else ""
        lines = [self._head()[: size.columns], title, *shown, *([""] * (room - len(shown))), foot]
        body = f"{END_OF_LINE}\r\n".join(lines) + END_OF_LINE
        if body != self._drawn:
            self._drawn = body
            sys.stdout.write(HOME + body + END_OF_SCREEN)
            sys.stdout.flush()

    def _head(self) -> str:
        if self._is_away:
            age = format_duration(timedelta(seconds=math.floor(time.monotonic() - self._read_at)))
            return f"STALE: {self._settings.address} is away; this is of {age} ago"
        return f"{totals(self._reader.devices)} · by {SORTS[self._sort][0]} · q leaves"

    def _on_keys(self) -> None:
        typed = os.read(sys.stdin.fileno(), KEY_BYTES_MAX).decode(errors="replace")
        if not typed:
            self._has_left.set()
        for key in KEY.findall(typed):  # a key that is held down, or a fast hand, comes as several at once
            if key in ("q", "Q"):
                self._has_left.set()
            elif key in SORTS:
                self._sort, self._first = key, 0
            elif key in SCROLLS:
                self._scroll(SCROLLS[key])
        self._changed.set()

    def _scroll(self, by: int | str) -> None:
        page = max(1, shutil.get_terminal_size().lines - 4)
        match by:
            case int():
                self._first += by
            case "page" | "-page":
                self._first += page if by == "page" else -page
            case "top":
                self._first = 0
            case _:
                self._first = len(self._reader.devices)
