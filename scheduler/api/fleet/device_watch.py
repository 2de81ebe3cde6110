"""WatchDevices: all devices first, then those that changed, together at most once in an interval."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import NamedTuple

from gpufleet.v1 import scheduler_pb2

from gpufleet.errors import invalid

from ...clock import is_set_within
from ...engine import Engine
from ...state.ids import DeviceUuid, NodeName
from ...state.units import MILLISECOND, SECOND, Span
from ...wire.validate import check_nodes, span_of
from ..answers import Calls
from .device_board import DeviceBoard

INTERVAL_DEFAULT, INTERVAL_MIN, INTERVAL_MAX = Span(SECOND), Span(100 * MILLISECOND), Span(60 * SECOND)
KEEPALIVE_SECONDS = 10.0
DEVICES_PER_MESSAGE = 2_000
"""What a message holds, so that it stays far below what a client takes; the rest follows at once."""
NODES_PER_LOOK = 20
"""Nodes whose devices are made anew between two looks at everything else: a whole picture is long."""

Request = scheduler_pb2.WatchDevicesRequest
Response = scheduler_pb2.WatchDevicesResponse


class DeviceCalls(Calls):
    """The servicer's part; one RPC."""

    engine: Engine
    board: DeviceBoard
    one_stream: Callable[[], AbstractContextManager[None]]

    async def WatchDevices(self, request: Request) -> AsyncIterator[Response]:
        """Devices and what changes of them."""
        interval = span_of(request.interval) if request.HasField("interval") else INTERVAL_DEFAULT
        if not INTERVAL_MIN <= interval <= INTERVAL_MAX:
            next_step = 'leave it out for 1 s, or write: "interval": "2s"'
            raise invalid("interval", "must be 0.1 s to 60 s", next_step=next_step)
        check_nodes(request.nodes, self.engine.view.durable.nodes, "nodes")
        with self.one_stream():
            reader = DeviceReader(self.engine, self.board, frozenset(map(NodeName, request.nodes)))
            async for response in reader.messages(interval / SECOND):
                yield response


class SentNode(NamedTuple):
    """What somebody was told of a node last: by which number it was made, and its devices."""

    number: int
    uuids: tuple[DeviceUuid, ...]


NOTHING_TOLD = SentNode(0, ())


class DeviceReader:
    """One who watches. While they take nothing, only the names of the nodes that changed are kept for them."""

    def __init__(self, engine: Engine, board: DeviceBoard, only: frozenset[NodeName]) -> None:
        self._engine = engine
        self._board = board
        self._only = only
        self._changed: set[NodeName] = set()
        self._told: dict[NodeName, SentNode] = {}
        self._wakeup = asyncio.Event()

    async def messages(self, interval_seconds: float) -> AsyncIterator[Response]:
        """What they are told, for ever."""
        loop = asyncio.get_running_loop()
        keepalive_seconds = max(KEEPALIVE_SECONDS, interval_seconds)
        self._board.join(self._on_news)
        try:
            self._changed.update(self._only or self._engine.view.durable.nodes)
            told_at = looked_at = loop.time()
            async for response in self._news(is_whole=True):
                yield response
            while True:
                await asyncio.sleep(max(0.0, looked_at + interval_seconds - loop.time()))
                await is_set_within(self._wakeup, told_at + keepalive_seconds - loop.time())
                looked_at = loop.time()
                async for response in self._news(is_keepalive=looked_at >= told_at + keepalive_seconds):
                    told_at = looked_at
                    yield response
        finally:
            self._board.leave(self._on_news)

    def _on_news(self, name: NodeName) -> None:
        if not self._only or name in self._only:
            self._changed.add(name)
            self._wakeup.set()

    async def _news(self, *, is_whole: bool = False, is_keepalive: bool = False) -> AsyncIterator[Response]:
        """What changed since they were told last, each piece of it with whether another one follows."""
        piece: Response | None = None
        async for following in self._pieces(is_whole=is_whole, is_keepalive=is_keepalive):
            if piece is not None:
                piece.has_more = True
                yield self._timed(piece)
            piece = following
        if piece is not None:
            yield self._timed(piece)

    async def _pieces(self, *, is_whole: bool, is_keepalive: bool) -> AsyncIterator[Response]:
        """The pieces; none when nothing changed, unless it is the whole or a sign of life.

        What changes while a message is being sent is told with the next one, or with the next news.
        """
        changed, self._changed = sorted(self._changed), set()
        self._wakeup.clear()
        response = Response(is_whole=is_whole)
        gone: set[DeviceUuid] = set()
        for place, name in enumerate(changed):
            if place % NODES_PER_LOOK == NODES_PER_LOOK - 1:
                await asyncio.sleep(0)
            shown = self._board.of(name)
            known = self._told.pop(name, NOTHING_TOLD)
            if shown.devices:
                self._told[name] = SentNode(shown.number, tuple(shown.devices))
            gone.update(set(known.uuids).difference(shown.devices))
            response.devices.extend(shown.since(known.number, self._engine.now()))
            if len(response.devices) >= DEVICES_PER_MESSAGE:
                yield response
                response = Response()
                is_whole = is_keepalive = False
        if gone:
            response.removed_uuids.extend(sorted(gone))
            self._tell_again(response, gone)
        if is_whole or is_keepalive or response.devices or response.removed_uuids:
            yield response

    def _tell_again(self, response: Response, gone: set[DeviceUuid]) -> None:
        """A machine may have another node's name now: what is gone from the one node is still there on the other."""
        names = [name for name, told in self._told.items() if not gone.isdisjoint(told.uuids)]
        known = {(each.node, each.device.uuid) for each in response.devices}
        for name in sorted(names):
            for device in self._board.of(name).since(0, self._engine.now()):
                if device.device.uuid in gone and (name, device.device.uuid) not in known:
                    response.devices.append(device)

    def _timed(self, response: Response) -> Response:
        response.view_time.FromMicroseconds(self._engine.now())
        return response
