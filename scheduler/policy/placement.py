"""Which of the nodes and devices that fit a job gets.

Between nodes the tightest fit wins, so that wide jobs keep finding whole nodes, or, where the settings say so, the
idlest node; among equal whole devices the higher score, so that the idlest is used. Without telemetry, or when the job
asks for it, plain index order decides.
"""

from ..state.ids import JobId, NodeName
from ..state.jobs import AllocationMethod, PlacedDevice, Placement, Resources
from ..state.limits import NodeOrder
from ..state.units import Instant
from .fit import FreeDevice, Miss, NodeView, devices_that_fit, hold_of

Rank = tuple[float, float, float, str]
"""Sorts nodes: the least is taken."""


def place(
    views: dict[NodeName, NodeView],
    resources: Resources,
    min_memory_bytes: int,
    job: JobId | None,
    order: NodeOrder,
    ends_at: Instant | None = None,
) -> Placement | None:
    """Where a request goes now, or None when no node can take it now. `ends_at` as for `devices_that_fit`."""
    rank_of = _tightness if order is NodeOrder.FRAGMENTATION else _busyness
    best: tuple[Rank, NodeView, list[FreeDevice]] | None = None
    for view in views.values():
        fitting = devices_that_fit(view, resources, min_memory_bytes, job, ends_at)
        if isinstance(fitting, Miss):
            continue
        rank = rank_of(view, resources)
        if best is None or rank < best[0]:
            best = (rank, view, fitting)
    if best is None:
        return None
    _, view, fitting = best
    return _placement_on(view, resources, fitting)


def take(view: NodeView, placement: Placement, job: JobId, ends_at: Instant | None) -> None:
    """Take a placement out of the view that the rest of the pass sees."""
    view.taken.append(hold_of(job, placement, ends_at))
    view.cpus -= placement.cpus
    view.memory_bytes -= placement.memory_bytes
    view.given.update(device.uuid for device in placement.devices)


def _tightness(view: NodeView, resources: Resources) -> Rank:
    """Sorts the tightest fit first: fewest free devices left, then fewest CPUs left, then the name.

    A job without devices goes to nodes without devices first.
    """
    free = len(view.free_devices())
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
        devices=tuple(_as_placed(free) for free in sorted(chosen, key=lambda free: free.device.index)),
        cpus=resources.cpus,
        memory_bytes=resources.memory_bytes,
        method=method,
    )


def _as_placed(free: FreeDevice) -> PlacedDevice:
    sample = free.sample
    return PlacedDevice(
        index=free.device.index,
        uuid=free.device.uuid,
        name=free.device.name,
        memory_free_bytes=None if sample is None else sample.memory_free_bytes,
        utilization_percent=None if sample is None else sample.utilization_percent,
        score=free.score,
    )
