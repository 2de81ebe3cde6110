"""The devices as everybody who watches them sees them: a node's are made anew once after each news of it, for all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gpufleet.v1 import node_pb2

from ...engine import Engine
from ...links import Links
from ...listeners import Listeners
from ...policy.fit import NodeChanges, node_view
from ...state.ids import DeviceUuid, NodeName
from ...state.units import MILLISECOND, SECOND, Instant, Span
from ...watching import ChangeHub
from ...wire.convert_nodes import device_now

AGE_ERROR_MAX = Span(250 * MILLISECOND)
"""By so much, at most, the age of a reading may be told wrong: so often it is written anew, for all who watch."""
OLD_READING = Span(5 * SECOND)
"""A reading that becomes older than this is told again, so that who watches learns that it does."""

Listener = Callable[[NodeName], None]


@dataclass(slots=True)
class DeviceShown:
    """A device as it was made last, which change made it so, and when it was read, None without a sample."""

    device: node_pb2.NodeDevice
    changed_at: int
    taken_at: Instant | None
    is_old: bool


@dataclass(slots=True, kw_only=True)
class NodeShown:
    """The devices of a node as they were made last, by index; `aged_at` is when the ages in them were right."""

    number: int = 0
    devices: dict[DeviceUuid, DeviceShown] = field(default_factory=dict)
    aged_at: Instant = Instant(0)

    def age(self, now: Instant) -> None:
        """Tell the age that each reading has now."""
        self.aged_at = now
        for shown in self.devices.values():
            if shown.taken_at is not None:
                shown.device.sample.age.FromMicroseconds(max(0, now - shown.taken_at))

    def since(self, number: int, now: Instant) -> Iterator[node_pb2.NodeDevice]:
        """The devices that changed after a number. They are shared: who keeps one copies it."""
        if now - self.aged_at > AGE_ERROR_MAX:
            self.age(now)
        return (shown.device for shown in self.devices.values() if shown.changed_at > number)


NO_NODE = NodeShown()


class DeviceBoard:
    """Shared by all who watch devices. Without them it holds nothing and hears of nothing."""

    def __init__(self, engine: Engine, changes: ChangeHub, links: Links) -> None:
        self._engine = engine
        self._changes = changes
        self._links = links
        self._listeners: Listeners[Listener] = Listeners()
        self._shown: dict[NodeName, NodeShown] = {}
        self._outdated: set[NodeName] = set()
        self._number = 0

    def join(self, listener: Listener) -> None:
        """Tell somebody of each node of which there is news, from now on."""
        if not self._listeners:
            self._changes.node_listeners.add(self._on_news)
            self._links.beat_listeners.add(self._on_news)
        self._listeners.add(listener)

    def leave(self, listener: Listener) -> None:
        """They are gone."""
        self._listeners.discard(listener)
        if not self._listeners:
            self._changes.node_listeners.discard(self._on_news)
            self._links.beat_listeners.discard(self._on_news)
            self._shown.clear()
            self._outdated.clear()

    def _on_news(self, name: NodeName) -> None:
        self._outdated.add(name)
        for listener in self._listeners:
            listener(name)

    def of(self, name: NodeName) -> NodeShown:
        """A node's devices as they are now; none of a node that is gone."""
        before = self._shown.get(name, NO_NODE)
        if before is not NO_NODE and name not in self._outdated:
            return before
        self._outdated.discard(name)
        if name not in self._engine.view.durable.nodes:
            self._shown.pop(name, None)
            return NO_NODE
        self._number += 1
        shown = self._shown[name] = self._made(name, before)
        return shown

    def _made(self, name: NodeName, before: NodeShown) -> NodeShown:
        """The node's devices; each of which nothing is new stays what it was."""
        now, view = self._engine.now(), self._engine.view
        seen = node_view(view, view.durable.nodes[name], now, NodeChanges())
        made = NodeShown(number=self._number, aged_at=now)
        for free in seen.devices:
            device = device_now(free, seen, view, now)
            taken_at = None if free.sample is None else free.sample.taken_at
            is_old = taken_at is not None and now - taken_at > OLD_READING
            known = before.devices.get(free.device.uuid)
            changed_at = self._number
            if known is not None and known.is_old == is_old and _says_the_same(known.device, device):
                changed_at = known.changed_at
            made.devices[free.device.uuid] = DeviceShown(device, changed_at, taken_at, is_old)
        made.age(now)
        return made


def _says_the_same(before: node_pb2.NodeDevice, now: node_pb2.NodeDevice) -> bool:
    """Whether only the ages of the readings, which are taken out of both, and the sums of the last beat differed."""
    for device in (before, now):
        if device.HasField("sample"):
            device.sample.ClearField("age")
            device.sample.ClearField("summary")
    return before == now
