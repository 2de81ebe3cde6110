"""Which of the nodes and devices that fit a job gets.

Between nodes the tightest fit wins, so that wide jobs keep finding whole nodes, or, where the settings say so, the
idlest node; among equal whole devices the higher score, so that the idlest is used, and for shares the fullest device
that has room. Without telemetry, or when the job
asks for it, plain index order decides. A job that may use what is kept for another gets that first, so that what is not
kept stays for those that may not.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from operator import itemgetter

from ..state.attempts import AllocationMethod, PlacedDevice, Placement
from ..state.ids import DeviceUuid, JobId, NodeName
from ..state.jobs import Job
from ..state.limits import NodeOrder
from ..state.nodes import NodeInfo
from ..state.specs import Asked, Resources
from ..state.units import Instant
from .fit import NOTHING, FreeDevice, Miss, NodeChanges, NodeView, could_ever_hold, devices_that_fit, hold_of
from .shares import milli_left, share_of

Rank = tuple[float, float, float, str]
"""Sorts nodes alike for every class of request: the least that fits is taken. The name comes last."""

Ranking = Callable[[NodeView], Rank]


@dataclass(slots=True)
class _RankedNodes:
    """Nodes from the least rank on, each with its kind; only those that have what `takes` asks for, or a free CPU.

    `is_by_count`: a rank begins with the count of free devices.
    """

    rank: Ranking
    takes: Callable[[NodeView], bool]
    is_by_count: bool = False
    is_used: bool = True
    entries: list[tuple[Rank, int, NodeView]] = field(default_factory=list)
    ranks: dict[NodeName, Rank] = field(default_factory=dict)

    def fill(self, nodes: Iterator[tuple[int, NodeView]]) -> None:
        """Put these nodes in line and no others."""
        self.entries = sorted((self.rank(view), kind, view) for kind, view in nodes if self._takes(view))
        self.ranks = {view.node.name: rank for rank, _, view in self.entries}

    def drop(self, name: NodeName) -> None:
        """Take a node out, if it is in."""
        rank = self.ranks.pop(name, None)
        if rank is not None:
            del self.entries[bisect_left(self.entries, (rank,))]

    def add(self, kind: int, view: NodeView) -> None:
        """Put a node in its place, if it belongs here."""
        if self._takes(view):
            rank = self.ranks[view.node.name] = self.rank(view)
            insort(self.entries, (rank, kind, view))

    def _takes(self, view: NodeView) -> bool:
        # What asks for GPUs may ask for no CPU.
        return view.miss is None and (view.cpus > 0 or self.takes is not _any) and self.takes(view)


@dataclass(slots=True)
class _ClassRefusals:
    """What one class of request was told: which kinds of nodes could ever hold it, which versions of nodes refused."""

    could_hold: dict[int, bool] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)


class Candidates:
    """Which node takes a job, best first, as a pass goes on and from pass to pass.

    The order of the nodes is the same for all classes of request (but for shares), so that they stand in line once, and
    only those that changed change their place (`NodeView.note_change`). A class goes down the line to the first node
    that takes it. It asks each version of a node once: who refused, has refused until it changes. Most nodes are passed
    by at a glance, by counts of what is free and by their kind; nodes that differ by names alone are of one kind.
    """

    def __init__(self, views: dict[NodeName, NodeView], changes: NodeChanges, order: NodeOrder) -> None:
        self._views = views
        self._order = order
        self._lines: dict[_Ordered, _RankedNodes] = {}
        self._changes = changes
        self._kinds: dict[NodeInfo, int] = {}
        self._kind_of: dict[NodeName, tuple[NodeInfo, int]] = {}
        self._kept: dict[NodeName, JobId] = {}
        self._asking: dict[tuple[Asked, int], _ClassRefusals] = {}
        self._asked: dict[tuple[Asked, int], _ClassRefusals] = {}
        self._fill()

    def begin_pass(self) -> None:
        """Forget the classes, and the lines, that no job of the last pass needed."""
        self._asked, self._asking = self._asking, {}
        self._lines = {key: line for key, line in self._lines.items() if line.is_used}
        for line in self._lines.values():
            line.is_used = False

    def rank_of(self, view: NodeView, resources: Resources) -> Rank:
        """What sorts the nodes for such a request."""
        return self._line_for(resources).rank(view)

    def place(self, job: Job, min_memory_bytes: int, ends_at: Instant | None) -> Placement | None:
        """Where a job goes now, or None when no node can take it now. `ends_at` as for `devices_that_fit`."""
        view = next(self.nodes_for(job, min_memory_bytes, ends_at), None)
        if view is None:
            return None
        return placement_on(view, job.spec.resources, min_memory_bytes, job.id, ends_at)

    def nodes_for(self, job: Job, min_memory_bytes: int, ends_at: Instant | None) -> Iterator[NodeView]:
        """The nodes that can take a job now, best first. Nothing may change before the last that is wanted is told."""
        self._catch_up()
        resources = job.spec.resources
        line = self._line_for(resources)
        own = sorted(
            (line.rank(view), view)
            for view in (self._views[name] for name, claimant in self._kept.items() if claimant == job.id)
            if not isinstance(devices_that_fit(view, resources, min_memory_bytes, job.id, ends_at), Miss)
        )
        lent = self._lent(line, job, min_memory_bytes, ends_at)
        yield from lent.values()
        for rank, view in self._fitting(line, job.spec.asked, min_memory_bytes, ends_at):
            while own and own[0][0] <= rank:
                yield own.pop(0)[1]
            if self._kept.get(view.node.name) != job.id and view.node.name not in lent:
                yield view
        yield from (view for _, view in own)

    def _lent(
        self, line: _RankedNodes, job: Job, min_memory_bytes: int, ends_at: Instant | None
    ) -> dict[NodeName, NodeView]:
        """The nodes on which what is kept for another is enough for a job that has ended before, best first."""
        resources = job.spec.resources
        if ends_at is None or not resources.gpus or resources.share_milli:
            return {}
        kept = (self._views[name] for name, claimant in self._kept.items() if claimant != job.id)
        able = [
            (line.rank(view), view)
            for view in kept
            if len(view.kept_devices) >= resources.gpus and view.is_open_to(job.id, ends_at)
            if _lends(view, devices_that_fit(view, resources, min_memory_bytes, job.id, ends_at), resources.gpus)
        ]
        return {view.node.name: view for _, view in sorted(able, key=itemgetter(0))}

    def _fitting(
        self, line: _RankedNodes, asked: Asked, min_memory_bytes: int, ends_at: Instant | None
    ) -> Iterator[tuple[Rank, NodeView]]:
        """The nodes of a line that anybody of the class can have."""
        key = (asked, min_memory_bytes)
        told = self._asking.get(key)
        if told is None:
            told = self._asking[key] = self._asked.pop(key) if key in self._asked else _ClassRefusals()
        resources = asked.resources
        gpus, cpus, memory_bytes = resources.gpus, resources.cpus, resources.memory_bytes
        could_hold, refused = told.could_hold, told.refused
        begin = bisect_left(line.entries, ((gpus,),)) if line.is_by_count else 0
        for rank, kind, view in islice(line.entries, begin, None):
            if view.cpus < cpus or view.memory_bytes < memory_bytes or view.version in refused:
                continue
            could = could_hold.get(kind)
            if could is None:
                could = could_hold[kind] = could_ever_hold(view.node, unnamed(resources), min_memory_bytes) is None
            if not could:
                continue
            if isinstance(devices_that_fit(view, resources, min_memory_bytes, None, ends_at), Miss):
                refused.add(view.version)
            else:
                yield rank, view
        if len(refused) > 2 * len(self._views):
            refused &= {view.version for view in self._views.values()}

    def _line_for(self, resources: Resources) -> _RankedNodes:
        """The line of such requests; where their ranks differ by what is asked for, there is one for each."""
        share = (resources.gpus, resources.share_milli, resources.min_memory_bytes)
        key: _Ordered = share if resources.share_milli else bool(resources.gpus)
        line = self._lines.get(key)
        if line is None:
            line = self._lines[key] = _line_of(resources, self._order)
            line.fill((self.kind(view), view) for view in self._views.values())
        line.is_used = True
        return line

    def _fill(self) -> None:
        for line in self._lines.values():
            line.fill((self.kind(view), view) for view in self._views.values())
        self._kept = {name: view.kept_for for name, view in self._views.items() if view.kept_for is not None}
        self._changes.names.clear()

    def _catch_up(self) -> None:
        """Put the nodes that changed where they belong now."""
        if len(self._changes.names) > len(self._views) // 4:
            self._fill()  # sorting all at once costs less than finding each its place
        for name in self._changes.names:
            view = self._views.get(name)
            self._kept.pop(name, None)
            for line in self._lines.values():
                line.drop(name)
                if view is not None:
                    line.add(self.kind(view), view)
            if view is None:
                self._kind_of.pop(name, None)
            elif view.kept_for is not None:
                self._kept[name] = view.kept_for
        self._changes.names.clear()

    def kind(self, view: NodeView) -> int:
        """A number that nodes share which could ever hold the same."""
        name, info = view.node.name, view.node.info
        known = self._kind_of.get(name)
        if known is None or known[0] is not info:
            known = self._kind_of[name] = (info, self._kinds.setdefault(_without_names(info), len(self._kinds)))
        return known[1]


def _lends(view: NodeView, fitting: list[FreeDevice] | Miss, gpus: int) -> bool:
    """Whether enough of the devices that fit are kept."""
    if isinstance(fitting, Miss):
        return False
    return sum(1 for free in fitting if free.device.uuid in view.kept_devices) >= gpus


def _without_names(info: NodeInfo) -> NodeInfo:
    """What `could_ever_hold` may read of a node: all but what tells equal machines apart."""
    devices = tuple(replace(device, uuid=DeviceUuid(""), pci_bus_id="") for device in info.devices)
    return replace(info, hostname="", advertise_address="", devices=devices)


def unnamed(resources: Resources) -> Resources:
    """The request without what names nodes: the same of every node of a kind."""
    if resources.pins or resources.nodelist or resources.exclude or resources.kept_away:
        return replace(resources, pins=(), nodelist=(), exclude=(), kept_away=())
    return resources


def candidates_of(views: dict[NodeName, NodeView], order: NodeOrder) -> Candidates:
    """The candidates of views that were made together."""
    return Candidates(views, next((view.changes for view in views.values()), NodeChanges()), order)


def take(view: NodeView, placement: Placement, job: JobId, ends_at: Instant | None) -> None:
    """Take a placement out of the view that the rest of the pass sees."""
    hold = hold_of(job, placement, ends_at)
    view.taken.append(hold)
    view.cpus -= placement.cpus
    view.memory_bytes -= placement.memory_bytes
    view.take(hold)
    view.note_change()


_Ordered = bool | tuple[int, int, int | None]
"""What requests have in common that go down the same line: devices or none, or shares of devices that are alike."""


def _line_of(resources: Resources, order: NodeOrder) -> _RankedNodes:
    is_tight = order is NodeOrder.FRAGMENTATION
    if not resources.gpus:
        return _RankedNodes(_tightness if is_tight else _busyness_of_cpus, takes=_any)
    if resources.share_milli:
        return _RankedNodes(
            partial(_tightness_of_shares, resources) if is_tight else _busyness, takes=lambda view: bool(view.devices)
        )
    return _RankedNodes(
        _tightness if is_tight else _busyness, takes=lambda view: bool(view.free_devices()), is_by_count=is_tight
    )


def _any(view: NodeView) -> bool:
    return True


def _tightness(view: NodeView) -> Rank:
    """Sorts the tightest fit first: fewest free devices left, then fewest CPUs left, then the name.

    A job without devices goes to nodes without devices first.
    """
    return (len(view.free_devices()), len(view.node.info.devices), view.cpus, view.node.name)


def _tightness_of_shares(resources: Resources, view: NodeView) -> Rank:
    """The same for shares of devices: a share goes to the device that it fills most."""
    room = {each.device.uuid: view.room(each) for each in view.devices if each.miss is None}
    return (milli_left(room, resources), len(view.free_devices()), view.cpus, view.node.name)


def _busyness(view: NodeView) -> Rank:
    """Sorts the idlest node first: the least part of its devices in use, then of its CPUs, then the name."""
    idle = sum(1 for free in view.free_devices() if free.is_idle)
    return (1 - idle / len(view.node.info.devices), _cpus_in_use(view), 0, view.node.name)


def _busyness_of_cpus(view: NodeView) -> Rank:
    """The same by CPUs alone. A job without devices goes to nodes without devices first, here too."""
    return (min(len(view.node.info.devices), 1), _cpus_in_use(view), 0, view.node.name)


def _cpus_in_use(view: NodeView) -> float:
    return 1 - view.cpus / view.node.info.cpus if view.node.info.cpus else 1.0


def placement_on(
    view: NodeView, resources: Resources, min_memory_bytes: int, job: JobId, ends_at: Instant | None
) -> Placement:
    """What a node that can take a request gives of the devices that fit: the pinned, the best by score, or the first.

    The arguments are those of `devices_that_fit`.
    """
    fitting = devices_that_fit(view, resources, min_memory_bytes, job, ends_at)
    assert not isinstance(fitting, Miss), f"node {view.node.name} changed and did not say so: {fitting}"
    if not resources.gpus:
        chosen, method = [], AllocationMethod.NONE
    elif resources.share_milli and not resources.pins:
        chosen, method = _fullest(view, resources, fitting), AllocationMethod.SHARE
    elif resources.pins:
        chosen, method = fitting, AllocationMethod.PINNED
    elif resources.ignores_telemetry or any(free.score is None for free in fitting):
        kept_first = sorted(fitting, key=lambda free: free.device.uuid not in view.kept_devices)
        chosen, method = kept_first[: resources.gpus], AllocationMethod.FALLBACK
    else:
        kept = view.kept_devices
        by_score = sorted(
            fitting, key=lambda free: (free.device.uuid not in kept, -(free.score or 0.0), free.device.index)
        )
        chosen, method = by_score[: resources.gpus], AllocationMethod.SCORE
    return Placement(
        node=view.node.name,
        agent_id=view.node.agent_id,
        boot_id=view.node.boot_id,
        devices=tuple(_as_placed(free, resources) for free in sorted(chosen, key=lambda free: free.device.index)),
        cpus=resources.cpus,
        memory_bytes=resources.memory_bytes,
        method=method,
    )


def _fullest(view: NodeView, resources: Resources, fitting: list[FreeDevice]) -> list[FreeDevice]:
    """The devices of which least is free, so that whole ones stay whole; then by score, then by index."""
    order = sorted(fitting, key=lambda free: (view.room(free).milli, -(free.score or 0.0), free.device.index))
    return order[: resources.gpus]


def _as_placed(free: FreeDevice, resources: Resources) -> PlacedDevice:
    sample = free.sample
    share = share_of(free.device, resources) if resources.share_milli else NOTHING
    return PlacedDevice(
        index=free.device.index,
        uuid=free.device.uuid,
        name=free.device.name,
        memory_free_bytes=None if sample is None else sample.memory_free_bytes,
        utilization_percent=None if sample is None else sample.utilization_percent,
        score=free.score,
        share_milli=share.milli,
        share_memory_bytes=share.memory_bytes,
    )
