"""`top`: the GPUs as the scheduler pushes them, drawn on each change; it stays, marked stale, while that is away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError, invalid
from gpufleet.spelling import did_you_mean

from . import screen
from .async_client import AsyncClient, connected_async
from .errors import SIGNALLED
from .following.shell import Taken, follow
from .leaving import Left, until_told_to_leave
from .listing import print_devices
from .node_calls import nodes_as_typed
from .render.table import WIDTH
from .settings import Settings
from .top_view.fleet import SORTS, Fleet, Order
from .top_view.keys import KeyReader
from .top_view.picture import age_text, frame, layout_for, none_text, table, totals_text
from .top_view.view import View, Wish

PAGE_SIZE = 1000
OPEN, CLOSE = "\x1b[?1049h\x1b[?25l", "\x1b[?25h\x1b[?1049l"
END_OF_LINE, CLEAR = "\x1b[K", "\x1b[2J"
KEY_BYTES_MAX = 1024
ESCAPE_S = 0.05
"""What follows Esc within this belongs to one key."""
AGE_STEP_S = 1.0
"""How often the age of what is shown moves on when nothing else does."""
QUIET_S = 12.0
"""A sign of life comes every 10 s; only when there was none for longer is what is shown not what is."""
PLAIN = str.maketrans({"█": "#", "·": ".", "–": "-", "…": "~", "°": " ", "↑": "^", "↓": "v"})
"""For terminals that lack these."""


async def run_top(settings: Settings, user: str, nodes: Sequence[str], sort: str) -> int:
    """Stay until told to leave, or print once where there is no terminal; answers the exit code."""
    by_word = {sort.word: key for key, sort in SORTS.items()}
    if sort not in by_word:
        raise invalid("--sort", f'"{sort}" is none of {", ".join(by_word)}{did_you_mean(sort, by_word)}')
    order = Order(by_word[sort])
    async with connected_async(settings) as client:
        if user == "me":
            info = await client.call(client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
            user = info.user
        with nodes_as_typed():
            if settings.format in ("json", "jsonl", "name") or not (sys.stdout.isatty() and sys.stdin.isatty()):
                await _print_once(settings, client, order, user, nodes)
                return 0
            await client.call(client.scheduler.ListDevices, scheduler_pb2.ListDevicesRequest(nodes=nodes, page_size=1))
        top = _Top(client, settings, View(Fleet(order, user)), nodes)
        try:
            await until_told_to_leave(top.run())
        except Left as left:
            top.terminal.close()
            with contextlib.suppress(OSError):  # its window may be gone
                print("gpuctl: left. Come back with: gpuctl top", file=sys.stderr)
            return left.code
        finally:
            top.terminal.close()
    return 0


async def _print_once(settings: Settings, client: AsyncClient, order: Order, user: str, nodes: Sequence[str]) -> None:
    request = scheduler_pb2.ListDevicesRequest(nodes=nodes, page_size=PAGE_SIZE)
    found: dict[tuple[str, int], node_pb2.NodeDevice] = {}
    while True:
        page = await client.call(client.scheduler.ListDevices, request)
        found |= {(each.node, each.device.index): each for each in page.devices}
        if not page.next_page_token:
            break
        request.page_token = page.next_page_token
    fleet, now = Fleet(order, user), time.monotonic()
    fleet.put(list(found.values()), now)
    look = screen.look(settings.format)
    lines = (
        table(fleet.shown, layout_for(fleet.shown, look.width), look, now) if fleet.shown else [none_text(fleet.user)]
    )
    print_devices(settings.format, [found[gpu.node, gpu.index] for gpu in fleet.shown], lambda look: lines)


class _Feed:
    """The stream of devices, for `follow`. Each begins with all of them."""

    ends_with_stream = False

    def __init__(self, client: AsyncClient, nodes: Sequence[str], fleet: Fleet) -> None:
        self._client = client
        self._request = scheduler_pb2.WatchDevicesRequest(nodes=nodes)
        self._fleet = fleet
        self.changed = asyncio.Event()
        self.heard_at = time.monotonic()
        self.has_told = False

    def open(self) -> AsyncIterator[scheduler_pb2.WatchDevicesResponse]:
        """A new stream."""
        return self._client.scheduler.WatchDevices(self._request).__aiter__()

    async def ask(self) -> bool:
        """Whether the scheduler is there."""
        await self._client.call(self._client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        return False

    def take(self, message: scheduler_pb2.WatchDevicesResponse) -> Taken:
        """Take it in; the drawing follows."""
        self.heard_at = time.monotonic()
        if self._fleet.take(message, self.heard_at):
            self.has_told = True
            self.changed.set()
        is_news = message.is_whole or message.devices or message.removed_uuids
        return Taken.NEWS if is_news else Taken.SIGN_OF_LIFE

    def forgives(self, problem: GpufleetError) -> bool:
        """Nothing is refused that another try could mend."""
        return False


class _Terminal:
    """The screen and the keys of this program's terminal. However it ends, `close` puts them back."""

    def __init__(self) -> None:
        self._before: Any = None
        self._drawn: list[str] = []
        encoding = sys.stdout.encoding or "utf-8"
        self._is_plain = not encoding.lower().startswith("utf")

    def open(self) -> None:
        """Take it over."""
        self._before = termios.tcgetattr(sys.stdin)
        tty.setcbreak(sys.stdin)
        self._write(OPEN)
        self._drawn = []

    def close(self) -> None:
        """Put it back as it was."""
        before, self._before = self._before, None
        if before is not None:
            with contextlib.suppress(OSError, termios.error):  # its window may be gone, and nothing is to be put back
                termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
                self._write(CLOSE)

    def draw(self, lines: list[str]) -> None:
        """Show these lines; only those that differ are written."""
        parts = []
        if len(lines) != len(self._drawn):
            parts.append(CLEAR)
            self._drawn = [""] * len(lines)
        parts += [
            f"\x1b[{number};1H{line}{END_OF_LINE}"
            for number, (line, before) in enumerate(zip(lines, self._drawn, strict=True), start=1)
            if line != before
        ]
        if parts:
            self._drawn = lines
            self._write("".join(parts))

    def forget(self) -> None:
        """What is on the screen is not known any more: the next picture is drawn whole."""
        self._drawn = []

    def _write(self, text: str) -> None:
        text = text.translate(PLAIN) if self._is_plain else text
        sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", errors="replace"))
        sys.stdout.buffer.flush()


class _Top:
    """Follows, listens to the keys, and draws."""

    def __init__(self, client: AsyncClient, settings: Settings, view: View, nodes: Sequence[str]) -> None:
        self.terminal = _Terminal()
        self._client = client
        self._settings = settings
        self._view = view
        self._feed = _Feed(client, nodes, view.fleet)
        self._keys = KeyReader()
        self._is_away = False
        self._has_left = asyncio.Event()
        self._is_hung_up = False
        self._refreshing: asyncio.Task[None] | None = None
        self._escape: asyncio.TimerHandle | None = None
        self._nodes = nodes

    async def run(self) -> None:
        """Stay until q is pressed. Raises what the scheduler refuses for good, and Left when the window is closed."""
        loop = asyncio.get_running_loop()
        self.terminal.open()
        loop.add_reader(sys.stdin.fileno(), self._on_typed)
        loop.add_signal_handler(signal.SIGWINCH, self._on_resize)
        loop.add_signal_handler(signal.SIGTSTP, self._on_suspend)
        try:
            limits, translated = self._settings.time_outs.without_end(), self._client.translated
            following = follow(self._feed, limits, translated, on_cut_off=self._on_cut_off)
            await _first_of(following, self._draw_for_ever(), self._has_left.wait())
            if self._is_hung_up:
                raise Left(SIGNALLED + signal.SIGHUP)  # the end of the keys may be seen before the signal is
        finally:
            loop.remove_reader(sys.stdin.fileno())
            loop.remove_signal_handler(signal.SIGWINCH)
            loop.remove_signal_handler(signal.SIGTSTP)
            if self._refreshing is not None:
                self._refreshing.cancel()
                await asyncio.gather(self._refreshing, return_exceptions=True)

    async def _draw_for_ever(self) -> None:
        changed = self._feed.changed
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGE_STEP_S):
                    await changed.wait()
            changed.clear()
            self._draw()

    def _draw(self) -> None:
        try:
            size = os.get_terminal_size(sys.stdout.fileno())  # an exported COLUMNS does not follow the window
        except OSError:
            size = os.terminal_size((WIDTH, 24))
        now = time.monotonic()
        look = screen.look(self._settings.format)
        if not self._feed.has_told:
            self.terminal.draw([f"Asking {self._settings.address} …"])
            return
        self.terminal.draw(frame(self._view, look, size.columns, size.lines, self._head(now), now))

    def _head(self, now: float) -> str:
        age_s = now - self._feed.heard_at
        if self._is_away:
            return f"STALE: {self._settings.address} is away; this is {age_text(age_s)}"
        fleet = self._view.fleet
        parts = [totals_text(fleet.totals, fleet.count), f"by {fleet.order.word}", "h help"]
        if age_s >= QUIET_S:
            parts.insert(0, age_text(age_s))
        return " · ".join(parts)

    def _on_cut_off(self, is_cut_off: bool) -> None:
        self._is_away = is_cut_off
        self._feed.changed.set()

    def _on_resize(self) -> None:
        self.terminal.forget()
        self._feed.changed.set()

    def _on_suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stop as any program does, and take it again when told to go on."""
        self.terminal.close()
        os.kill(os.getpid(), signal.SIGSTOP)
        self.terminal.open()
        self._feed.changed.set()

    def _on_typed(self) -> None:
        try:
            typed = os.read(sys.stdin.fileno(), KEY_BYTES_MAX)
        except OSError:  # its window was closed
            typed = b""
        if not typed:
            self._is_hung_up = True
            self._has_left.set()
        if self._escape is not None:
            self._escape.cancel()
        self._press(self._keys.feed(typed))
        if self._keys.is_pending:
            loop = asyncio.get_running_loop()
            self._escape = loop.call_later(ESCAPE_S, lambda: self._press(self._keys.flush()))

    def _press(self, keys: list[str]) -> None:
        for key in keys:  # a key that is held down, or a fast hand, comes as several at once
            match self._view.press(key):
                case Wish.LEAVE:
                    self._has_left.set()
                case Wish.REFRESH:
                    self._refresh()
                case Wish.NOTHING:
                    pass
        if keys:
            self._feed.changed.set()

    def _refresh(self) -> None:
        """Have the GPUs read anew; the news come by the stream."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._ask_for_fresh(), name="top-refresh")

    async def _ask_for_fresh(self) -> None:
        request = scheduler_pb2.ListDevicesRequest(nodes=self._nodes, page_size=1, fresh=True)
        with contextlib.suppress(GpufleetError):  # whatever it is, the stream meets it, too, and tells
            await self._client.call(self._client.scheduler.ListDevices, request)


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of them to end, raise what it raised, and end the others."""
    running = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for each in done:
            each.result()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)
