"""The rows of `top`: a device's newest reading in the words that are shown, which of them are, and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.v1 import node_pb2, scheduler_pb2

from gpufleet.text.cleaning import clean
from gpufleet.text.units import format_size

from ..full_screen.view import Order, Sort, Sorts
from ..render.table import ABSENT

OLD_S = 5.0
"""A reading that was older than this when it was told is shown with its age, and is in no sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU; None is what it does not tell. `old_since` is when it was read, where that is long ago."""

    uuid: str
    node: str
    index: int
    model: str
    load_percent: int | None
    memory_share: float | None
    memory: str
    power_w: float | None
    temperature_c: int | None
    clock_mhz: int | None
    fan_percent: int | None
    throttle: str
    job_id: int
    job: str
    user: str
    users: frozenset[str]
    is_free: bool
    is_healthy: bool
    old_since: float | None
    words: str
    """What a filter looks at, in small letters."""


def gpu_of(device: node_pb2.NodeDevice, now: float) -> Gpu:
    """The row of a device that is told at this moment, in seconds on any clock that runs on."""
    sample, facts = device.sample, device.device
    total_bytes = sample.memory_total_bytes or facts.memory_bytes
    has_memory = sample.HasField("memory_used_bytes")
    held = [each.job_id for each in device.shares]
    users = dict.fromkeys(filter(None, (device.user, *(each.user for each in device.shares))))
    others = "foreign" if device.is_used_by_others else ""
    job = str(device.job_id) if device.job_id else ",".join(map(str, held)) or others
    node, model, user = clean(device.node), clean(short_model(facts.name)), clean(",".join(users))
    age_s = sample.age.ToMilliseconds() / 1000 if device.HasField("sample") else 0.0
    state = "unhealthy" if not facts.is_healthy else "free" if device.is_free else ""
    return Gpu(
        uuid=facts.uuid,
        node=node,
        index=facts.index,
        model=model,
        load_percent=sample.utilization_percent if sample.HasField("utilization_percent") else None,
        memory_share=sample.memory_used_bytes / total_bytes if has_memory and total_bytes else None,
        memory=_memory(sample.memory_used_bytes, total_bytes) if has_memory else "",
        power_w=sample.power_mw / 1000 if sample.HasField("power_mw") else None,
        temperature_c=sample.temperature_c if sample.HasField("temperature_c") else None,
        clock_mhz=sample.clock_sm_mhz if sample.HasField("clock_sm_mhz") else None,
        fan_percent=sample.fan_percent if sample.HasField("fan_percent") else None,
        throttle=clean(",".join(sample.throttle_reasons)),
        job_id=device.job_id or min(held, default=0),
        job=job or ABSENT,
        user=user or ABSENT,
        users=frozenset(users),
        is_free=device.is_free,
        is_healthy=facts.is_healthy,
        old_since=now - age_s if age_s > OLD_S else None,
        words=f"{node}:{facts.index} {clean(facts.name)} {job} {user} {state}".casefold(),
    )


def short_model(name: str) -> str:
    """The model without its maker, which takes more room than it tells."""
    return name.removeprefix("NVIDIA ").removeprefix("AMD ").removeprefix("gpufleet ")


def _memory(used_bytes: int, total_bytes: int) -> str:
    """`88GB/141GB`; the first half alone where there is no room for both."""
    return f"{format_size(used_bytes)}/{format_size(total_bytes)}"


SORTS: Sorts[Gpu] = {
    "n": Sort("node", lambda gpu: gpu.node, smallest_first=True),
    "s": Sort("load", lambda gpu: gpu.load_percent),
    "g": Sort("memory", lambda gpu: gpu.memory_share),
    "p": Sort("power", lambda gpu: gpu.power_w),
    "t": Sort("temperature", lambda gpu: gpu.temperature_c),
    "j": Sort("job", lambda gpu: gpu.job_id or None, smallest_first=True),
    "u": Sort("user", lambda gpu: min(gpu.users, default=None), smallest_first=True),
}


@dataclass(frozen=True, slots=True)
class Totals:
    """What the shown GPUs do together; load and power are of those that tell it, by readings that are not old."""

    count: int
    free: int
    load_percent: float | None
    power_w: float


PIECES_MAX = 100
"""Pieces of one update that are held back until the last has come: 200,000 GPUs."""


class Fleet:
    """The GPUs as they were told last. What is shown is worked out anew when it is asked for and something changed."""

    def __init__(self, order: Order[Gpu], user: str = "") -> None:
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
    def order(self) -> Order[Gpu]:
        """How the rows are sorted."""
        return self._order

    @order.setter
    def order(self, order: Order[Gpu]) -> None:
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
            found.sort(key=lambda gpu: (gpu.node, gpu.index))
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
