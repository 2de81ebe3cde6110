"""The indexes of the durable state: what follows from its entities. They are never stored; `load` builds them again."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field, replace

from ..attempts import Attempt
from ..groups.group import GroupId
from ..groups.use import GroupHold
from ..ids import DeviceUuid, JobId, NodeName, RankKey, UserName
from ..jobs import Deferred, Divided, Finished, Held, Job, JobState, Queued, Running, Starting, Stopping
from ..sessions.session import ModelName
from ..shares import WHOLE_MILLI, DeviceShare
from ..specs import Asked
from ..units import Instant
from ..usage import UserHold
from .equal_jobs import EqualJobs
from .lines import Lines
from .slots import ClassSlots, SlotClass, is_in_backlog, slot_class, slot_of


@dataclass(slots=True)
class NodeHold:
    """What attempts hold on one node: whole devices, and shares of devices by the job that has each.

    `slots` are the slots that they are in, each with its live ranks. What a slot holds it holds once, and it is said to
    be the first one's. No two states of a hold have the same `version`; that of an empty one is 0.
    """

    devices: dict[DeviceUuid, JobId] = field(default_factory=dict)
    shares: dict[DeviceUuid, dict[JobId, DeviceShare]] = field(default_factory=dict)
    cpus: int = 0
    memory_bytes: int = 0
    ranks: dict[RankKey, None] = field(default_factory=dict)
    slots: dict[RankKey, dict[RankKey, None]] = field(default_factory=dict)
    version: int = field(default=0, compare=False)

    def device_uuids(self) -> set[DeviceUuid]:
        """Devices of which somebody holds anything."""
        return self.devices.keys() | self.shares.keys()


@dataclass(slots=True)
class ItemsLive:
    """The items of an array that have not ended: how many are in each state, and which stand for themselves."""

    counts: dict[type[JobState], int] = field(default_factory=dict)
    apart: dict[JobId, None] = field(default_factory=dict)

    @property
    def active(self) -> int:
        """Items that have an attempt: what the array's cap counts."""
        return sum(self.counts.get(state, 0) for state in (Starting, Running, Stopping))

    def count(self, state: JobState, number: int) -> None:
        """Count some in, or out with a negative number."""
        total = self.counts.get(type(state), 0) + number
        self.counts[type(state)] = total
        if not total:
            del self.counts[type(state)]


@dataclass(slots=True)
class Indexes:
    """Where each live job stands; `Durable` is these beside the entities that they follow from."""

    lines: Lines = field(default_factory=Lines)
    held: dict[JobId, None] = field(default_factory=dict)
    deferred: dict[JobId, None] = field(default_factory=dict)
    dependents: dict[JobId, dict[JobId, None]] = field(default_factory=dict)
    wakes: list[tuple[Instant, JobId]] = field(default_factory=list)
    preferring: dict[Asked, dict[JobId, None]] = field(default_factory=dict)
    """Jobs in line that prefer GPUs, by their class; for an array's items that never differed stands the array."""
    active: dict[JobId, type[JobState]] = field(default_factory=dict)
    gangs: dict[JobId, None] = field(default_factory=dict)
    services: dict[ModelName, dict[JobId, None]] = field(default_factory=dict)
    preemptible: dict[JobId, None] = field(default_factory=dict)
    claims: dict[JobId, dict[JobId, None]] = field(default_factory=dict)
    arrays: dict[JobId, ItemsLive] = field(default_factory=dict)
    holds: dict[NodeName, NodeHold] = field(default_factory=dict)
    hold_changes: int = 0
    holds_of_user: dict[UserName, UserHold] = field(default_factory=dict)
    holds_of_group: dict[GroupId, GroupHold] = field(default_factory=dict)
    slots: dict[SlotClass, ClassSlots] = field(default_factory=dict)
    backlogs: dict[SlotClass, dict[JobId, None]] = field(default_factory=dict)
    """Jobs that wait in nodes' backlogs, by their class."""

    def hold(self, node: NodeName) -> NodeHold:
        """What attempts hold on a node; an empty hold for a node without any."""
        return self.holds.get(node) or NodeHold()


def index(indexes: Indexes, job: Job) -> None:
    """Put a job that stands for itself in its places."""
    if job.array is not None:
        items = indexes.arrays.setdefault(job.array, ItemsLive())
        items.count(job.state, 1)
        items.apart[job.id] = None
    if job.spec.serves and not isinstance(job.state, Finished):
        indexes.services.setdefault(job.spec.serves, {})[job.id] = None
    match job.state:
        case Queued():
            indexes.lines.add(job)
        case Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt):
            indexes.active[job.id] = type(job.state)
            if attempt.is_gang:
                indexes.gangs[job.id] = None
            if isinstance(job.state, Running) and job.spec.is_preemptible:
                indexes.preemptible[job.id] = None
            if isinstance(job.state, Stopping) and job.state.claimant is not None:
                indexes.claims.setdefault(job.state.claimant, {})[job.id] = None
            indexes.holds_of_user.setdefault(job.user, UserHold()).add(
                job.spec.resources, len(attempt.ranks), attempt.placed_at
            )
            if job.group:
                group = indexes.holds_of_group.setdefault(job.group, GroupHold())
                group.total.add(job.spec.resources, len(attempt.ranks), attempt.placed_at)
                group.add(job.id, job.user, job.spec.resources.gpu_milli, attempt.placed_at)
            for key, rank in zip(attempt.keys(job.id), attempt.ranks, strict=True):
                if rank.exit is None:
                    _take(indexes, key, attempt)
            _count_in_class(indexes, job, attempt, 1)
        case Deferred() | Divided(rest=Deferred()):
            indexes.deferred[job.id] = None
        case Held() | Divided(rest=Held()):
            indexes.held[job.id] = None
        case Divided():
            pass
        case Finished():
            return
    if job.spec.prefers_gpus and job.is_waiting_in_line:
        indexes.preferring.setdefault(job.spec.asked, {})[job.id] = None
    for dependency in job.unmet:
        indexes.dependents.setdefault(dependency.job, {})[job.id] = None
    if job.wakes_at is not None:
        insort(indexes.wakes, (job.wakes_at, job.id))


def index_equals(indexes: Indexes, equal: EqualJobs) -> None:
    """Equal jobs wait, or are held; what differs by an attempt is not equal."""
    if equal.first.array is not None:
        index_alike(indexes, equal)
        return
    match equal.first.state:
        case Queued():
            indexes.lines.add_equals(equal)
        case Deferred():
            indexes.deferred.update(dict.fromkeys(equal.ids()))
        case _:
            indexes.held.update(dict.fromkeys(equal.ids()))
    if equal.first.spec.prefers_gpus and isinstance(equal.first.state, Queued):
        indexes.preferring.setdefault(equal.first.spec.asked, {}).update(dict.fromkeys(equal.ids()))
    for dependency in equal.first.unmet:
        indexes.dependents.setdefault(dependency.job, {}).update(dict.fromkeys(equal.ids()))
    wakes_at = equal.first.wakes_at
    if wakes_at is not None:
        indexes.wakes.extend((wakes_at, job_id) for job_id in equal.ids())
        indexes.wakes.sort()


def index_alike(indexes: Indexes, equal: EqualJobs) -> None:
    """Put the items of an array that never differed in their places. What they wait for is noted of the array alone."""
    assert equal.first.array is not None
    if isinstance(equal.first.state, Queued):
        indexes.lines.set_alike(equal)
    if equal.spans:
        indexes.arrays.setdefault(equal.first.array, ItemsLive()).count(equal.first.state, len(equal))


def unindex_alike(indexes: Indexes, equal: EqualJobs) -> None:
    """Take the items of an array that never differed out of their places."""
    assert equal.first.array is not None
    if isinstance(equal.first.state, Queued):
        indexes.lines.set_alike(replace(equal, spans=()))
    items = indexes.arrays[equal.first.array]
    items.count(equal.first.state, -len(equal))
    _drop_array_without_items(indexes, equal.first.array)


def _drop_array_without_items(indexes: Indexes, array: JobId) -> None:
    if not indexes.arrays[array].counts:
        del indexes.arrays[array]


def unindex(indexes: Indexes, job: Job) -> None:
    """Take a job that stands for itself, or is among plain equal ones, out of its places, as it stood there."""
    if job.array is not None:
        items = indexes.arrays[job.array]
        items.count(job.state, -1)
        del items.apart[job.id]
        _drop_array_without_items(indexes, job.array)
    if job.spec.serves and not isinstance(job.state, Finished):
        workers = indexes.services[job.spec.serves]
        del workers[job.id]
        if not workers:
            del indexes.services[job.spec.serves]
    match job.state:
        case Queued():
            indexes.lines.remove(job)
        case Starting(attempt=attempt) | Running(attempt=attempt) | Stopping(attempt=attempt):
            del indexes.active[job.id]
            indexes.gangs.pop(job.id, None)
            indexes.preemptible.pop(job.id, None)
            if isinstance(job.state, Stopping) and job.state.claimant is not None:
                victims = indexes.claims[job.state.claimant]
                del victims[job.id]
                if not victims:
                    del indexes.claims[job.state.claimant]
            hold = indexes.holds_of_user[job.user]
            hold.add(job.spec.resources, len(attempt.ranks), attempt.placed_at, -1)
            if not hold.jobs:
                del indexes.holds_of_user[job.user]
            if job.group:
                group = indexes.holds_of_group[job.group]
                group.total.add(job.spec.resources, len(attempt.ranks), attempt.placed_at, -1)
                group.drop(job.id)
                if not group.total.jobs:
                    del indexes.holds_of_group[job.group]
            for key, rank in zip(attempt.keys(job.id), attempt.ranks, strict=True):
                if rank.exit is None:
                    _give_back(indexes, key, attempt)
            _count_in_class(indexes, job, attempt, -1)
        case Deferred() | Divided(rest=Deferred()):
            del indexes.deferred[job.id]
        case Held() | Divided(rest=Held()):
            del indexes.held[job.id]
        case Divided():
            pass
        case Finished():
            return
    if job.spec.prefers_gpus and job.is_waiting_in_line:
        preferring = indexes.preferring[job.spec.asked]
        del preferring[job.id]
        if not preferring:
            del indexes.preferring[job.spec.asked]
    for dependency in job.unmet:
        waiting = indexes.dependents[dependency.job]
        del waiting[job.id]
        if not waiting:
            del indexes.dependents[dependency.job]
    if job.wakes_at is not None:
        del indexes.wakes[bisect_left(indexes.wakes, (job.wakes_at, job.id))]


def _count_in_class(indexes: Indexes, job: Job, attempt: Attempt, number: int) -> None:
    """Count an attempt in at the slots of its class, or out with −1."""
    of_class = None if attempt.is_gang else slot_class(job)
    if of_class is None or not attempt.ranks[0].placement.cpus:
        return  # what was found to have ended holds nothing, and nobody waits for it
    slots = indexes.slots.setdefault(of_class, ClassSlots())
    key = attempt.keys(job.id)[0]
    slots.count(slot_of(key, attempt), attempt.ranks[0].placement.node, number)
    if not slots.counts:
        del indexes.slots[of_class]
    if is_in_backlog(job):
        waiting = indexes.backlogs.setdefault(of_class, {})
        if number > 0:
            waiting[job.id] = None
        else:
            del waiting[job.id]
        if not waiting:
            del indexes.backlogs[of_class]


def _take(indexes: Indexes, key: RankKey, attempt: Attempt) -> None:
    placement = attempt.ranks[key.rank].placement
    hold = indexes.holds.setdefault(placement.node, NodeHold())
    hold.version = indexes.hold_changes = indexes.hold_changes + 1
    hold.ranks[key] = None
    of_slot = hold.slots.setdefault(slot_of(key, attempt), {})
    of_slot[key] = None
    if len(of_slot) > 1:
        _name_holder(hold, of_slot, attempt)
        return
    hold.cpus += placement.cpus
    hold.memory_bytes += placement.memory_bytes
    for device in placement.devices:
        beside = hold.shares.get(device.uuid, {})
        assert device.uuid not in hold.devices, f"device {device.uuid} is given twice: {key}"
        if device.share is None:
            assert not beside, f"device {device.uuid} is given whole beside shares of it: {key}"
            hold.devices[device.uuid] = key.job
        else:
            given = sum(share.milli for share in beside.values()) + device.share_milli
            assert key.job not in beside, f"device {device.uuid} is shared twice by job {key.job}"
            assert given <= WHOLE_MILLI, f"{given} thousandths of device {device.uuid} are given: {key}"
            hold.shares.setdefault(device.uuid, {})[key.job] = device.share


def _give_back(indexes: Indexes, key: RankKey, attempt: Attempt) -> None:
    placement = attempt.ranks[key.rank].placement
    hold = indexes.holds[placement.node]
    hold.version = indexes.hold_changes = indexes.hold_changes + 1
    del hold.ranks[key]
    slot = slot_of(key, attempt)
    of_slot = hold.slots[slot]
    del of_slot[key]
    if of_slot:
        _name_holder(hold, of_slot, attempt)
        return
    del hold.slots[slot]
    hold.cpus -= placement.cpus
    hold.memory_bytes -= placement.memory_bytes
    for device in placement.devices:
        if device.share is None:
            del hold.devices[device.uuid]
        else:
            del hold.shares[device.uuid][key.job]
            if not hold.shares[device.uuid]:
                del hold.shares[device.uuid]
    if not hold.ranks:
        del indexes.holds[placement.node]


def _name_holder(hold: NodeHold, of_slot: dict[RankKey, None], attempt: Attempt) -> None:
    """Whose the devices of a slot are said to be: those of the first of its attempts."""
    for device in attempt.ranks[0].placement.devices:
        hold.devices[device.uuid] = min(of_slot).job
