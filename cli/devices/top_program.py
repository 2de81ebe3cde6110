"""`top`: the GPUs as the scheduler pushes them, drawn on each change; it stays, marked stale, while that is away."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.errors import GpufleetError
from gpufleet.fleet.async_client import AsyncClient, connected_async
from gpufleet.fleet.following.feeds import Feed, MessageKind
from gpufleet.fleet.following.shell import follow
from gpufleet.fleet.reading import check_known
from gpufleet.fleet.settings import Settings

from .. import screen
from ..full_screen.program import FullScreen
from ..full_screen.view import Order, View
from ..nodes.node_calls import nodes_as_typed
from ..printing import print_devices
from ..quitting import stay
from ..top_view.fleet import SORTS, Fleet, Gpu
from ..top_view.picture import age_text, frame, layout_for, none_text, table, totals_text

PAGE_SIZE = 1000
QUIET_S = 12.0
"""A sign of life comes every 10 s; only when there was none for longer is what is shown not what is."""


async def run_top(settings: Settings, user: str, nodes: Sequence[str], sort: str) -> int:
    """Stay until told to leave, or print once where there is no terminal; answers the exit code."""
    by_word = {sort.word: key for key, sort in SORTS.items()}
    check_known("--sort", sort, by_word, f"is none of {', '.join(by_word)}")
    order = Order(SORTS, by_word[sort])
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
        return await stay(top.run(), top.screen.terminal.close, "gpuctl top")


async def _print_once(
    settings: Settings, client: AsyncClient, order: Order[Gpu], user: str, nodes: Sequence[str]
) -> None:
    request = scheduler_pb2.ListDevicesRequest(nodes=nodes, page_size=PAGE_SIZE)
    found: dict[tuple[str, int], node_pb2.NodeDevice] = {}
    async for page in client.all_pages(client.scheduler.ListDevices, request):
        found |= {(each.node, each.device.index): each for each in page.devices}
    fleet, now = Fleet(order, user), time.monotonic()
    fleet.put(list(found.values()), now)
    look = screen.look(settings.format)
    lines = (
        table(fleet.shown, layout_for(fleet.shown, look.width), look, now) if fleet.shown else [none_text(fleet.user)]
    )
    print_devices(settings.format, [found[gpu.node, gpu.index] for gpu in fleet.shown], lambda look: lines)


class _Feed(Feed[scheduler_pb2.WatchDevicesResponse]):
    """The stream of devices, for `follow`. Each begins with all of them."""

    def __init__(self, client: AsyncClient, nodes: Sequence[str], fleet: Fleet, on_change: Callable[[], None]) -> None:
        self._client = client
        self._request = scheduler_pb2.WatchDevicesRequest(nodes=nodes)
        self._fleet = fleet
        self._on_change = on_change
        self.heard_at = time.monotonic()
        self.has_told = False

    def open(self) -> AsyncIterator[scheduler_pb2.WatchDevicesResponse]:
        """A new stream."""
        return self._client.scheduler.WatchDevices(self._request).__aiter__()

    async def ask(self) -> bool:
        """Whether the scheduler is there."""
        await self._client.call(self._client.scheduler.GetServerInfo, scheduler_pb2.GetServerInfoRequest())
        return False

    def take(self, message: scheduler_pb2.WatchDevicesResponse) -> MessageKind:
        """Take it in; the drawing follows."""
        self.heard_at = time.monotonic()
        if self._fleet.take(message, self.heard_at):
            self.has_told = True
            self._on_change()
        is_news = message.is_whole or message.devices or message.removed_uuids
        return MessageKind.NEWS if is_news else MessageKind.SIGN_OF_LIFE


class _Top:
    """Follows the GPUs and says what is drawn of them."""

    def __init__(self, client: AsyncClient, settings: Settings, view: View[Fleet], nodes: Sequence[str]) -> None:
        self.screen = FullScreen(view, self._picture, self._ask_for_fresh)
        self._client = client
        self._settings = settings
        self._view = view
        self._feed = _Feed(client, nodes, view.rows, self.screen.changed)
        self._is_away = False
        self._nodes = nodes

    async def run(self) -> None:
        """Stay until q is pressed. Raises what the scheduler refuses for good, and Left when the window is closed."""
        limits, translated = self._settings.time_outs.without_end(), self._client.translated
        await self.screen.run(follow(self._feed, limits, translated, on_cut_off=self._on_cut_off))

    def _picture(self, columns: int, lines: int) -> list[str]:
        if not self._feed.has_told:
            return [f"Asking {self._settings.where} …"]
        now = time.monotonic()
        return frame(self._view, screen.look(self._settings.format), columns, lines, self._head(now), now)

    def _head(self, now: float) -> str:
        age_s = now - self._feed.heard_at
        if self._is_away:
            return f"STALE: {self._settings.where} is away; this is {age_text(age_s)}"
        fleet = self._view.rows
        parts = [totals_text(fleet.totals, fleet.count), f"by {fleet.order.word}", "h help"]
        if age_s >= QUIET_S:
            parts.insert(0, age_text(age_s))
        return " · ".join(parts)

    def _on_cut_off(self, is_cut_off: bool) -> None:
        self._is_away = is_cut_off
        self.screen.changed()

    async def _ask_for_fresh(self) -> None:
        """Have the GPUs read anew; the news come by the stream."""
        request = scheduler_pb2.ListDevicesRequest(nodes=self._nodes, page_size=1, fresh=True)
        with contextlib.suppress(GpufleetError):  # whatever it is, the stream meets it, too, and tells
            await self._client.call(self._client.scheduler.ListDevices, request)
