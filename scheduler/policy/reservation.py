"""What is kept for the first job of the order that cannot be placed, so that narrow jobs never starve a wide one.

There is one reservation in a pass. It names the node on which the job is nearest to fitting and the devices there that
it would get, free ones first; jobs behind it may use everything else. CPUs and memory that come free together with
those devices need not be kept as well.
"""

from dataclasses import dataclass

from ..state.durable import Durable
from ..state.ids import DeviceUuid, JobId, NodeName
from ..state.jobs import Job
from .fit import FreeDevice, NodeView, could_ever_hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is kept on a node for a job."""

    job: JobId
    node: NodeName
    devices: frozenset[DeviceUuid]
    cpus: int
    memory_bytes: int


def reserve(durable: Durable, views: dict[NodeName, NodeView], job: Job, min_memory_bytes: int) -> Reservation | None:
    """Keep room for a job that fits nowhere now; None when no node that is up could hold it even when empty."""
    resources = job.spec.resources
    best: tuple[tuple[int, int], NodeView, list[FreeDevice]] | None = None
    for view in views.values():
        if view.miss is not None or could_ever_hold(view.node, resources, min_memory_bytes) is not None:
            continue
        wanted = _candidates(view, job, min_memory_bytes)
        if len(wanted) < resources.gpus:
            continue
        free = sum(1 for each in wanted if _is_free(view, each))
        rank = (free, view.cpus)
        if best is None or rank > best[0]:
            best = (rank, view, wanted)
    if best is None:
        return None
    _, view, wanted = best
    nearest = sorted(wanted, key=lambda each: (not _is_free(view, each), each.device.index))[: resources.gpus]
    cpus, memory_bytes = _given_back(durable, view.node.name, {each.held_by for each in nearest})
    return Reservation(
        job=job.id,
        node=view.node.name,
        devices=frozenset(each.device.uuid for each in nearest),
        cpus=max(0, resources.cpus - cpus),
        memory_bytes=max(0, resources.memory_bytes - memory_bytes),
    )


def _given_back(durable: Durable, node: NodeName, holders: set[JobId | None]) -> tuple[int, int]:
    """CPUs and memory that come free on the node with the devices that are waited for."""
    placements = [
        rank.placement
        for holder in holders
        if holder is not None and (attempt := durable.jobs[holder].attempt) is not None
        for rank in attempt.ranks
        if rank.placement.node == node and rank.exit is None
    ]
    return sum(each.cpus for each in placements), sum(each.memory_bytes for each in placements)


def keep(views: dict[NodeName, NodeView], reservation: Reservation) -> None:
    """Take what is reserved out of the view that the rest of the pass sees."""
    view = views[reservation.node]
    view.kept_devices = reservation.devices
    view.kept_for = reservation.job
    view.kept_cpus = reservation.cpus
    view.kept_memory_bytes = reservation.memory_bytes


def _candidates(view: NodeView, job: Job, min_memory_bytes: int) -> list[FreeDevice]:
    resources = job.spec.resources
    pinned = {index for pins in resources.pins for index in pins.indices}
    models = [model.casefold() for model in resources.models]
    return [
        free
        for free in view.devices
        if free.device.memory_bytes >= min_memory_bytes
        and (free.miss is None or free.miss.reason != "DEVICE_UNHEALTHY")
        and (not pinned or free.device.index in pinned)
        and (not models or any(model in free.device.name.casefold() for model in models))
    ]


def _is_free(view: NodeView, free: FreeDevice) -> bool:
    return free.miss is None and free.held_by is None and free.device.uuid not in view.given
