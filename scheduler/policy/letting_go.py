"""What the pass would do if some jobs had let go of what they hold; it is the pass itself that is asked.

What a job was measured to use of a device's memory is free then, whatever it had asked for.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

from ..state.attempts import PlacedDevice, Placement
from ..state.ids import DeviceUuid, JobId
from ..state.jobs import Job
from ..state.nodes import DeviceSample
from ..state.state import State
from ..state.units import Instant
from .fit import FreeDevice, NodeView
from .node_cache import NodeCache
from .order.queue import queue_order
from .owners import as_its_users
from .placement_pass import PlacementPass
from .reservation import holds_on
from .shares import shares_in


def would_be_placed(state: State, job: Job, gone: Collection[Job], at: Instant) -> bool:
    """Whether the pass would place a waiting job if these had let go: all who stand before it are tried first."""
    job, known = as_its_users(state.durable, job), NodeCache()
    known.brought_up_to(state, at)
    ids = {each.id for each in gone}
    views = {name: _without(state, view, ids) for name, view in known.views.items()}
    trial = PlacementPass(state, views, at)
    for each in gone:
        if _placements(each):
            trial.caps.take(each, -1)
    for each in trial.in_order(queue_order(state, at, trial.given_up, job), job):
        if trial.place(each) is None:
            trial.keep_for(each)
    return trial.place(job) is not None


def would_have_room(state: State, job: Job, gone: Collection[Job], at: Instant) -> bool:
    """Whether a waiting job could have what these hold, if they let go of it for this job and nobody else."""
    nodes = {placement.node for each in gone for placement in _placements(each)}
    job, known = as_its_users(state.durable, job), NodeCache()
    known.brought_up_to(state, at)
    ids = {each.id for each in gone}
    trial = PlacementPass(state, {name: _without(state, known.views[name], ids) for name in sorted(nodes)}, at)
    for each in gone:
        if _placements(each):
            trial.caps.take(each, -1)
    return trial.place(job) is not None


def measured_memory(state: State, job: Job) -> int:
    """Memory of GPUs that a job uses by their newest samples, in bytes; what nothing was read of counts as it asked."""
    total = 0
    for placement in _placements(job):
        live = state.live.nodes.get(placement.node)
        for device in placement.devices:
            sample = None if live is None else live.samples.get(device.uuid)
            measured = _measured(sample, job.id)
            if measured is None and sample is not None and device.share is None:
                measured = sample.memory_used_bytes
            total += device.share_memory_bytes if measured is None else measured
    return total


def _placements(job: Job) -> list[Placement]:
    return [] if job.attempt is None else [rank.placement for rank in job.attempt.ranks if rank.exit is None]


def _measured(sample: DeviceSample | None, job: JobId) -> int | None:
    """What the processes of a job use of a device; None where that cannot be read."""
    own = [] if sample is None else [each.memory_bytes for each in sample.processes if each.job == job]
    return sum(each for each in own if each is not None) if own and None not in own else None


def _without(state: State, view: NodeView, gone: Collection[JobId]) -> NodeView:
    """A node as it is once these jobs have let go."""
    holding = {key.job for key in state.durable.hold(view.node.name).ranks}
    jobs = [state.durable.jobs[job_id] for job_id in sorted(holding & set(gone))]
    freed = [(job.id, each) for job in jobs for each in _placements(job) if each.node == view.node.name]
    if not freed:
        return view
    shares = dict(view.shares)
    of_device: dict[DeviceUuid, list[tuple[JobId, PlacedDevice]]] = {}
    for job_id, placement in freed:
        for uuid, share in shares_in(placement).items():
            left = shares.pop(uuid).less(share)
            if left.milli:
                shares[uuid] = left
        for device in placement.devices:
            of_device.setdefault(device.uuid, []).append((job_id, device))
    return replace(
        view,
        cpus=view.cpus + sum(placement.cpus for _, placement in freed),
        memory_bytes=view.memory_bytes + sum(placement.memory_bytes for _, placement in freed),
        shares=shares,
        held=[hold for hold in holds_on(state.durable, view) if hold.job not in gone],
        devices=[
            _freed(each, of_device[uuid], is_shared=uuid in shares) if (uuid := each.device.uuid) in of_device else each
            for each in view.devices
        ],
    )


def _freed(free: FreeDevice, let_go: Iterable[tuple[JobId, PlacedDevice]], *, is_shared: bool) -> FreeDevice:
    """A device that these have let go of; `is_shared`: others still have shares of it."""
    sample = free.sample
    if sample is None or sample.memory_free_bytes is None:
        return replace(free, held_by=None)
    foreign_bytes = sum(each.memory_bytes or 0 for each in sample.processes if each.is_foreign)
    most = max(0, free.device.memory_bytes - foreign_bytes)
    free_bytes = most
    if is_shared:
        used = ((_measured(sample, job), device.share_memory_bytes) for job, device in let_go)
        free_bytes = min(most, sample.memory_free_bytes + sum(asked if read is None else read for read, asked in used))
    return replace(free, held_by=None, sample=replace(sample, memory_free_bytes=free_bytes))
