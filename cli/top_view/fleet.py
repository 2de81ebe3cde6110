"""Which GPUs there are, which of them are shown, and in which order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpufleet.v1 import node_pb2, scheduler_pb2

from .gpu import Gpu, gpu_of

Key = tuple[bool | float | str, ...]


@dataclass(frozen=True, slots=True)
class Sort:
    """A way to sort: by `measure`, where None comes last; numbers from the largest on unless `smallest_first`."""

    word: str
    measure: Callable[[Gpu], float | str | None]
    smallest_first: bool = False


SORTS: dict[str, Sort] = {
    "n": Sort("node", lambda gpu: gpu.node, smallest_first=True),
    "s": Sort("load", lambda gpu: gpu.load_percent),
    "g": Sort("memory", lambda gpu: gpu.memory_share),
    "p": Sort("power", lambda gpu: gpu.power_w),
    "t": Sort("temperature", lambda gpu: gpu.temperature_c),
    "j": Sort("job", lambda gpu: gpu.job_id or None, smallest_first=True),
    "u": Sort("user", lambda gpu: min(gpu.users, default=None), smallest_first=True),
}
"""Key → order, in the order in which `,` and `.` go through them."""


@dataclass(frozen=True, slots=True)
class Order:
    """How the rows are sorted: a key of SORTS, the other way round or not."""

    key: str = "n"
    is_reversed: bool = False

    @property
    def word(self) -> str:
        """`load`, `load reversed`."""
        return SORTS[self.key].word + (" reversed" if self.is_reversed else "")

    def next(self, step: int) -> Order:
        """The order so many columns on, around the end."""
        keys = list(SORTS)
        return Order(keys[(keys.index(self.key) + step) % len(keys)], self.is_reversed)

    def sorted(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        """The GPUs in this order; those that do not tell come last, and equal ones stand by node and index."""
        sort = SORTS[self.key]
        falls = sort.smallest_first == self.is_reversed
        by_place = sorted(gpus, key=lambda gpu: (gpu.node, gpu.index))
        told = [gpu for gpu in by_place if sort.measure(gpu) is not None]
        silent = [gpu for gpu in by_place if sort.measure(gpu) is None]
        # `reverse` keeps equal ones in their places, too.
        return sorted(told, key=lambda gpu: sort.measure(gpu), reverse=falls) + silent  # type: ignore[arg-type,return-value]


@dataclass(frozen=True, slots=True)
class Totals:
    """What the shown GPUs do together; load and power are of those that tell it, by readings that are not old."""

    count: int
    free: int
    load_percent: float | None
    power_w: float


PIECES_MAX = 100
"""Pieces of one telling that are held back until the last has come: 200,000 GPUs."""


class Fleet:
    """The GPUs as they were told last. What is shown is worked out anew when it is asked for and something changed."""

    def __init__(self, order: Order, user: str = "") -> None:
        self._gpus: dict[tuple[str, int], Gpu] = {}
        self._places: dict[tuple[str, str], int] = {}
        self._pieces: list[scheduler_pb2.WatchDevicesResponse] = []
        self._order = order
        self.user = user
        """Whose GPUs are shown; empty for all."""
        self._filter: tuple[str, ...] = ()
        self._shown: list[Gpu] | None = None
        self._totals: Totals | None = None
        self.count = 0
        """GPUs in all, before the filter."""

    def take(self, message: scheduler_pb2.WatchDevicesResponse, now: float) -> bool:
        """What the scheduler told at this moment; whether it is taken in: a piece waits for the others.

        What was left of a stream that broke between two pieces goes with the first message of the next one.
        """
        if message.is_whole:
            self._pieces.clear()
        self._pieces.append(message)
        if message.has_more and len(self._pieces) < PIECES_MAX:
            return False
        for piece in self._pieces:
            self._take(piece, now)
        self._pieces.clear()
        return True

    def _take(self, message: scheduler_pb2.WatchDevicesResponse, now: float) -> None:
        if message.is_whole:
            self._gpus.clear()
            self._places.clear()
        if gone := set(message.removed_uuids):
            self._gpus = {place: gpu for place, gpu in self._gpus.items() if gpu.uuid not in gone}
            self._places = {where: index for where, index in self._places.items() if where[1] not in gone}
        self.put(message.devices, now)

    def put(self, devices: Sequence[node_pb2.NodeDevice], now: float) -> None:
        """Devices as they are at this moment. One that has another index now leaves its old place."""
        for device in devices:
            node, uuid, index = device.node, device.device.uuid, device.device.index
            before = self._gpus.get((node, self._places.get((node, uuid), index)))
            if before is not None and before.uuid == uuid and before.index != index:
                del self._gpus[node, before.index]
            self._places[node, uuid] = index
            self._gpus[node, index] = gpu_of(device, now)
        self._shown = None

    @property
    def order(self) -> Order:
        """How the rows are sorted."""
        return self._order

    @order.setter
    def order(self, order: Order) -> None:
        self._order = order
        self._shown = None

    def filter(self, text: str) -> None:
        """Show those that hold each of these words, in any case of letters."""
        self._filter = tuple(text.casefold().split())
        self._shown = None

    @property
    def shown(self) -> list[Gpu]:
        """The rows in their order."""
        if self._shown is None:
            mine = [gpu for gpu in self._gpus.values() if not self.user or self.user in gpu.users]
            self.count = len(mine)
            found = [gpu for gpu in mine if all(word in gpu.words for word in self._filter)]
            self._shown = self._order.sorted(found)
            self._totals = None
        return self._shown

    @property
    def totals(self) -> Totals:
        """The sums over the rows."""
        shown = self.shown
        if self._totals is None:
            read = [gpu for gpu in shown if gpu.old_since is None]
            loads = [gpu.load_percent for gpu in read if gpu.load_percent is not None]
            self._totals = Totals(
                count=len(shown),
                free=sum(gpu.is_free for gpu in shown),
                load_percent=sum(loads) / len(loads) if loads else None,
                power_w=sum(gpu.power_w or 0.0 for gpu in read),
            )
        return self._totals
