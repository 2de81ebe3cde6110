"""What is kept for the first job of the order that cannot be placed, so that narrow jobs never starve a wide one.

There is one reservation in a pass. It names the node on which the job is nearest to fitting and the devices there that
it would get, free ones first; jobs behind it may use everything else.
"""

from dataclasses import dataclass

from ..state.ids import DeviceUuid, JobId, NodeName
from ..state.jobs import Job
from .fit import FreeDevice, NodeView, could_ever_hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is kept on a node for a job."""

    job: JobId
    node: NodeName
    devices: frozenset[DeviceUuid]


def reserve(views: dict[NodeName, NodeView], job: Job, min_memory_bytes: int) -> Reservation | None:
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
    return Reservation(job=job.id, node=view.node.name, devices=frozenset(each.device.uuid for each in nearest))


def keep(views: dict[NodeName, NodeView], reservation: Reservation, job: Job) -> None:
    """Take what is reserved out of the view that the rest of the pass sees."""
    view = views[reservation.node]
    view.kept_devices = reservation.devices
    view.kept_for = reservation.job
    view.kept_cpus = job.spec.resources.cpus
    view.kept_memory_bytes = job.spec.resources.memory_bytes


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
