"""Which of the nodes and devices that fit a job gets.

Between nodes the tightest fit wins, so that wide jobs keep finding whole nodes, or, where the settings say so, the
idlest node; among equal whole devices the higher score, so that the idlest is used, and for shares the fullest device
that has room. Without telemetry, or when the job
asks for it, plain index order decides.
"""

import heapq
from dataclasses import dataclass, field

from ..state.ids import JobId, NodeName
from ..state.jobs import AllocationMethod, Asked, Job, PlacedDevice, Placement, Resources
from ..state.limits import NodeOrder
from ..state.units import Instant
from .fit import NOTHING, FreeDevice, Miss, NodeView, devices_that_fit, hold_of
from .shares import milli_left, share_of

Rank = tuple[float, float, float, str]
"""Sorts nodes: the least is taken."""


@dataclass(slots=True)
class _OfClass:
    """The nodes that can take one class of request: a heap of (rank, version of the view), and how far it has read."""

    heap: list[tuple[Rank, int]] = field(default_factory=list)
    changes_seen: int = 0


class Candidates:
    """Which nodes can take what, best first, as a pass goes on.

    Each class of request asks every node once; after that only the nodes that changed. So a pass costs classes × nodes
    and not jobs × nodes.
    """

    def __init__(self, views: dict[NodeName, NodeView], order: NodeOrder) -> None:
        self._views = views
        self.rank_of = _tightness if order is NodeOrder.FRAGMENTATION else _busyness
        self._of_class: dict[Asked, _OfClass] = {}
        self._changes = next(iter(views.values())).changes if views else []
        self._kept: dict[JobId, list[NodeView]] = {}
        for view in views.values():
            if view.kept_for is not None:
                self._kept.setdefault(view.kept_for, []).append(view)

    def place(self, job: Job, min_memory_bytes: int, ends_at: Instant | None) -> Placement | None:
        """Where a job goes now, or None when no node can take it now. `ends_at` as for `devices_that_fit`."""
        resources = job.spec.resources
        own = [
            (self.rank_of(view, resources), view)
            for view in self._kept.get(job.id, ())
            if not isinstance(devices_that_fit(view, resources, min_memory_bytes, job.id, ends_at), Miss)
        ]
        heap = self._fresh(job.spec.asked, min_memory_bytes, ends_at)
        if heap:
            own.append((heap[0][0], self._views[NodeName(heap[0][0][-1])]))
        if not own:
            return None
        _, view = min(own, key=lambda each: each[0])
        fitting = devices_that_fit(view, resources, min_memory_bytes, job.id, ends_at)
        assert not isinstance(fitting, Miss), f"node {view.node.name} changed and did not say so: {fitting}"
        return _placement_on(view, resources, fitting)

    def _fresh(self, asked: Asked, min_memory_bytes: int, ends_at: Instant | None) -> list[tuple[Rank, int]]:
        """The class's heap with a node on top that is as it was asked."""
        known = self._of_class.get(asked)
        if known is None:
            known = self._of_class[asked] = _OfClass()
            changed = list(self._views)
        else:
            changed = list(dict.fromkeys(self._changes[known.changes_seen :]))
        known.changes_seen = len(self._changes)
        for view in map(self._views.__getitem__, changed):
            if not isinstance(devices_that_fit(view, asked.resources, min_memory_bytes, None, ends_at), Miss):
                heapq.heappush(known.heap, (self.rank_of(view, asked.resources), view.version))
        while known.heap and known.heap[0][1] != self._views[NodeName(known.heap[0][0][-1])].version:
            heapq.heappop(known.heap)
        return known.heap


def take(view: NodeView, placement: Placement, job: JobId, ends_at: Instant | None) -> None:
    """Take a placement out of the view that the rest of the pass sees."""
    hold = hold_of(job, placement, ends_at)
    view.taken.append(hold)
    view.cpus -= placement.cpus
    view.memory_bytes -= placement.memory_bytes
    view.take(hold)
    view.note_change()


def _tightness(view: NodeView, resources: Resources) -> Rank:
    """Sorts the tightest fit first: fewest free devices left, then fewest CPUs left, then the name.

    A job without devices goes to nodes without devices first, a share to the device that it fills most.
    """
    free = len(view.free_devices())
    if resources.share_milli:
        room = {each.device.uuid: view.room(each) for each in view.devices if each.miss is None}
        return (milli_left(room, resources), free, view.cpus - resources.cpus, view.node.name)
    return (free - resources.gpus, len(view.node.info.devices), view.cpus - resources.cpus, view.node.name)


def _busyness(view: NodeView, resources: Resources) -> Rank:
    """Sorts the idlest node first: the least part of its devices in use, then of its CPUs, then the name.

    A job without devices goes to nodes without devices first, here too.
    """
    devices, cpus = len(view.node.info.devices), view.node.info.cpus
    cpus_in_use = 1 - view.cpus / cpus if cpus else 1.0
    if not resources.gpus:
        return (min(devices, 1), cpus_in_use, 0, view.node.name)
    idle = sum(1 for free in view.free_devices() if free.is_idle)
    return (1 - idle / devices, cpus_in_use, 0, view.node.name)


def _placement_on(view: NodeView, resources: Resources, fitting: list[FreeDevice]) -> Placement:
    if not resources.gpus:
        chosen, method = [], AllocationMethod.NONE
    elif resources.share_milli and not resources.pins:
        chosen, method = _fullest(view, resources, fitting), AllocationMethod.SHARE
    elif resources.pins:
        chosen, method = fitting, AllocationMethod.PINNED
    elif resources.ignores_telemetry or any(free.score is None for free in fitting):
        chosen, method = fitting[: resources.gpus], AllocationMethod.FALLBACK
    else:
        by_score = sorted(fitting, key=lambda free: (-(free.score or 0.0), free.device.index))
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
