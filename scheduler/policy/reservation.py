"""What is kept for the first job of the order that cannot be placed, so that narrow jobs never starve a wide one.

EASY backfill (Lifka, "The ANL/IBM SP Scheduling System", 1995): there is one reservation in a pass. It names the nodes
on which the job fits soonest by enforced limits (time limit and grace of what runs there), the devices that it would
get, and from when. A job behind it may use what is kept only if its own limit and grace end before that. What has no
time limit is endless: a reservation that waits for such a job has no time, and nothing passes it.
"""

from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import groupby
from operator import itemgetter

from ..state.attempts import Attempt
from ..state.durable import Durable
from ..state.ids import DeviceUuid, JobId, NodeName, RankKey
from ..state.jobs import Job, Stopping
from ..state.shares import WHOLE_MILLI, DeviceShare
from ..state.specs import Resources
from ..state.units import NEVER, SECOND, Instant, Span, after
from .fit import (
    FreeDevice,
    NodeView,
    Outlook,
    RankHold,
    could_ever_hold,
    hold_of,
    memory_text,
    own_miss,
    wanted_devices,
)
from .gangs import Ranks
from .shares import memory_to_find_bytes, room_on, share_of

START_SPAN = Span(30 * SECOND)
"""What a launch may take: the limit of an attempt counts from its start, its devices from its placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedRoom:
    """What is kept on one node: whole devices, or of each of its devices a share beside what it waits for."""

    node: NodeName
    devices: frozenset[DeviceUuid]
    cpus: int
    memory_bytes: int
    shares: Mapping[DeviceUuid, DeviceShare] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What is kept for a job, on as many nodes as it has ranks.

    `begins_at` is when it all is free at the latest, by enforced limits; None where it waits for the jobs `endless`,
    which have no limit, or for the end of a `trouble` that no limit ends.
    """

    job: JobId
    kept: tuple[ReservedRoom, ...]
    begins_at: Instant | None
    endless: tuple[JobId, ...] = ()
    trouble: str = ""


def ends_by(job: Job, attempt: Attempt) -> Instant | None:
    """When an attempt of a job holds nothing any more, by enforced limits; None: nobody can say."""
    if isinstance(job.state, Stopping):
        return after(job.state.since, job.spec.grace)
    span = job.spec.run_span
    if span is None:
        return None
    begins = [
        after(attempt.placed_at, START_SPAN) if each.started_at is None else each.started_at for each in attempt.ranks
    ]
    return after(max(begins), span)


def ends_if_placed(job: Job, at: Instant) -> Instant | None:
    """The same for an attempt that is placed at an instant."""
    span = job.spec.run_span
    return None if span is None else after(after(at, START_SPAN), span)


Rank = tuple[bool, int, int, int]
"""How soon: the earlier, then the fewer devices that are free now, then the emptier. Without a time it comes last, and
there the more of its devices that are free."""


def reserve(
    views: dict[NodeName, NodeView],
    job: Job,
    ranks: Ranks,
    min_memory_bytes: int,
    at: Instant,
    holds: Callable[[NodeView], list[RankHold]],
) -> Reservation | None:
    """Keep room for a job that fits nowhere now; None when the nodes that are up could not hold it even when empty.

    `ranks` is what each of its ranks asks for, `holds` tells what is held on a node, and until when.
    """
    open_views = {
        name: view
        for name, view in views.items()
        if view.miss is None and view.kept_for in (None, job.id) and own_miss(view, ranks[0]) is None
    }
    search = _Search(job=job.id, min_memory_bytes=min_memory_bytes, at=at, holds=holds)
    parts = search.parts(open_views, ranks)
    if parts is None:
        return None
    soonest = _as_one(parts)
    if soonest.begins_at is None or len(ranks) == 1:
        return soonest
    # No part of a gang has to be there before the last one is: nodes that come free sooner stay open to others.
    latest = search.parts(open_views, ranks, soonest.begins_at)
    return soonest if latest is None else _as_one(latest)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Search:
    """What a search for room goes by: for whom, how much memory each device must have, from when, and what is held."""

    job: JobId
    min_memory_bytes: int
    at: Instant
    holds: Callable[[NodeView], list[RankHold]]

    def parts(
        self, views: dict[NodeName, NodeView], ranks: Ranks, by: Instant | None = None
    ) -> list[Reservation] | None:
        """A reservation for each rank, each on a node of its own; None where there are too few nodes.

        The soonest, or with `by` those that keep least of what is free now among all that begin by then.
        """
        left = dict(views)
        parts: list[Reservation] = []
        for rank, alike in groupby(ranks):
            count = len(list(alike))
            found = self._soonest(left, rank, count) if by is None else self._latest(left, rank, count, by)
            if len(found) < count:
                return None
            parts.extend(found)
            for part in found:
                del left[part.kept[0].node]
        return parts

    def _soonest(self, views: dict[NodeName, NodeView], resources: Resources, count: int) -> list[Reservation]:
        """So many reservations for a rank, each on a node of its own, the soonest first; fewer if no more nodes can."""
        floors = [
            (floor, number, view)
            for number, view in enumerate(views.values())
            if (floor := self._rank_at_best(view, resources)) is not None
        ]
        found: list[tuple[Rank, int, Reservation]] = []
        for floor, number, view in sorted(floors, key=itemgetter(0, 1)):
            if len(found) == count and found[-1][:2] < (floor, number):
                break
            made = _on_node(self, view, resources)
            if made is not None:
                insort(found, (made[0], number, made[1]), key=itemgetter(0, 1))
                del found[count:]
        return [reservation for _, _, reservation in found]

    def _latest(
        self, views: dict[NodeName, NodeView], resources: Resources, count: int, by: Instant
    ) -> list[Reservation]:
        """So many reservations for a rank that begin by a moment, of the fewest devices that are free now."""
        found: list[tuple[int, int, int, Reservation]] = []
        for number, view in enumerate(views.values()):
            floor = self._rank_at_best(view, resources)
            made = None if floor is None or floor[:2] > (False, by) else _on_node(self, view, resources, by)
            if made is not None and made[1].begins_at is not None and made[1].begins_at <= by:
                found.append((made[0][2], -made[1].begins_at, number, made[1]))
        return [reservation for *_, reservation in nsmallest(count, found, key=itemgetter(0, 1, 2))]

    def _rank_at_best(self, view: NodeView, resources: Resources) -> Rank | None:
        """A rank that the reservation on this node is never below, by counts alone; None: it has too few devices.

        So the nodes that may be the soonest are asked first, and most others not at all.
        """
        if len(view.devices) < resources.gpus:
            return None
        outlook = view.outlook
        if outlook is None or outlook.version != view.version:
            outlook = view.outlook = _outlook(view, self.holds(view))
        gpus = 0 if resources.share_milli else resources.gpus
        wanted = (gpus, resources.cpus, resources.memory_bytes)
        begins_at = outlook.soonest.get(wanted)
        if begins_at is None:
            begins_at = outlook.soonest[wanted] = _room_by_counts(view, outlook, *wanted)
        if begins_at == NEVER:
            return (True, 0, -(min(gpus, outlook.free_devices) if gpus else resources.gpus), -view.cpus)
        begins_at = max(begins_at, self.at)
        come_free = bisect_right(outlook.device_ends, begins_at) - outlook.free_devices
        return (False, begins_at, max(0, gpus - come_free), -view.cpus)


def _as_one(parts: list[Reservation]) -> Reservation:
    """What is kept on several nodes begins when the last of it is free."""
    if len(parts) == 1:
        return parts[0]
    begins = [part.begins_at for part in parts if part.begins_at is not None]
    return Reservation(
        job=parts[0].job,
        kept=tuple(kept for part in parts for kept in part.kept),
        begins_at=max(begins) if len(begins) == len(parts) else None,
        endless=tuple(sorted({job for part in parts for job in part.endless})),
        trouble=next((part.trouble for part in parts if part.trouble), ""),
    )


def _on_node(
    search: _Search, view: NodeView, resources: Resources, by: Instant | None = None
) -> tuple[Rank, Reservation] | None:
    """The reservation on this node and its rank; nothing when it could never hold it.

    Of what is free when it begins, or by `by`, it keeps what comes free last.
    """
    if could_ever_hold(view.node, resources, search.min_memory_bytes) is not None:
        return None
    holds, min_memory_bytes = search.holds(view), search.min_memory_bytes
    wanted = _candidates(view, resources, min_memory_bytes)
    if len(wanted) < resources.gpus:
        return None
    held_of: dict[DeviceUuid, list[RankHold]] = {}
    for hold in sorted(holds, key=_sooner):
        for uuid in (*hold.devices, *hold.shares):
            held_of.setdefault(uuid, []).append(hold)
    awaited_for = {each.device.uuid: _awaited(held_of.get(each.device.uuid, []), each, resources) for each in wanted}
    trouble_of = {each.device.uuid: _trouble(view, each, awaited_for, resources, min_memory_bytes) for each in wanted}

    def last_of(each: FreeDevice) -> RankHold | None:
        return max(awaited_for[each.device.uuid], key=_sooner, default=None)

    def awaited_by(devices: Sequence[FreeDevice]) -> list[RankHold]:
        """The holds that must end: of these devices, and so many more that there is room for the rest."""
        awaited = {id(hold): hold for each in devices for hold in awaited_for[each.device.uuid]}
        for hold in sorted(holds, key=_sooner):
            if _has_room(view, awaited.values(), resources):
                break
            awaited[id(hold)] = hold
        return list(awaited.values())

    by_end = sorted(wanted, key=lambda each: (_sooner(last_of(each)), each.miss is not None, each.device.index))
    chosen = by_end[: resources.gpus]
    awaited = given_back = awaited_by(chosen)
    trouble = next(filter(None, (trouble_of[each.device.uuid] for each in chosen)), "")
    begins_at = None if trouble else _begin(awaited, search.at)
    if begins_at is not None:
        until = (False, max(begins_at, by or begins_at))
        in_time = [each for each in by_end if not trouble_of[each.device.uuid] and _sooner(last_of(each)) <= until]
        latest_first = sorted(in_time, key=lambda each: (-_sooner(last_of(each))[1], each.device.index))
        chosen = latest_first[: resources.gpus]
        given_back = [hold for hold in holds if _sooner(hold) <= until]
        begins_at = _begin(awaited_by(chosen), search.at)
    free = sum(1 for each in chosen if not trouble_of[each.device.uuid] and not awaited_for[each.device.uuid])
    kept = ReservedRoom(
        node=view.node.name,
        devices=frozenset() if resources.share_milli else frozenset(each.device.uuid for each in chosen),
        shares={
            each.device.uuid: share_of(each.device, resources).less(_given_back(each, awaited_for[each.device.uuid]))
            for each in (chosen if resources.share_milli else ())
        },
        cpus=max(0, resources.cpus - sum(hold.cpus for hold in given_back)),
        memory_bytes=max(0, resources.memory_bytes - sum(hold.memory_bytes for hold in given_back)),
    )
    return (
        (True, 0, -free, -view.cpus) if begins_at is None else (False, begins_at, free, -view.cpus),
        Reservation(
            job=search.job,
            kept=(kept,),
            begins_at=begins_at,
            trouble=trouble,
            endless=tuple(sorted(hold.job for hold in awaited if hold.ends_at is None)),
        ),
    )


def _room_by_counts(view: NodeView, outlook: Outlook, gpus: int, cpus: int, memory_bytes: int) -> Instant:
    """When a node has so many devices, CPUs and bytes free, whichever they are; a moment that is past means now."""
    begins_at = outlook.device_ends[gpus - 1] if gpus else Instant(0)
    free_cpus, free_bytes = view.cpus, view.memory_bytes
    for end, hold in outlook.by_end:
        if free_cpus >= cpus and free_bytes >= memory_bytes:
            break
        free_cpus, free_bytes = free_cpus + hold.cpus, free_bytes + hold.memory_bytes
        begins_at = max(begins_at, end)
    return begins_at


def _outlook(view: NodeView, held: list[RankHold]) -> Outlook:
    """When what is held of a node comes free; true until the node changes."""
    ends = {uuid: NEVER if hold.ends_at is None else hold.ends_at for hold in held for uuid in hold.devices}
    return Outlook(
        version=view.version,
        free_devices=len(view.free_devices()),
        device_ends=sorted(ends.get(free.device.uuid, Instant(0)) for free in view.devices),
        by_end=sorted(((NEVER if hold.ends_at is None else hold.ends_at, hold) for hold in held), key=itemgetter(0)),
    )


def _hold_of_slot(durable: Durable, keys: list[RankKey]) -> RankHold:
    """What the attempts of a slot hold together, until the last has ended: each needs at most its longest run more."""
    first, *behind = (durable.jobs[key.job] for key in keys)
    assert first.attempt is not None
    ends_at = ends_by(first, first.attempt)
    for job in behind:
        ends_at = None if ends_at is None or job.spec.run_span is None else after(ends_at, job.spec.run_span)
    return hold_of(first.id, first.attempt.ranks[keys[0].rank].placement, ends_at)


def holds_on(durable: Durable, view: NodeView) -> list[RankHold]:
    """What the ranks hold that are live on a node, and what a pass has given away there."""
    if view.held is None:
        view.held = [_hold_of_slot(durable, sorted(of_slot)) for of_slot in durable.hold(view.node.name).slots.values()]
    return view.held + view.taken


def _begin(awaited: Collection[RankHold], at: Instant) -> Instant | None:
    """When these have ended, at an instant at the soonest; None where one has no end."""
    ends = [hold.ends_at for hold in awaited]
    return None if None in ends else max((at, *(end for end in ends if end is not None)))


def _awaited(there: list[RankHold], free: FreeDevice, resources: Resources) -> list[RankHold]:
    """The holds that must end until the device has what the request takes of it: the soonest to end, and no more.

    `there` are all holds of it, the soonest to end first.
    """
    uuid = free.device.uuid
    if not resources.share_milli:
        return there
    wanted = share_of(free.device, resources)
    for count in range(len(there)):
        left = (
            DeviceShare()
            if any(uuid in hold.devices for hold in there[count:])
            else room_on(free.device, _sum_on(uuid, there[count:]))
        )
        if left.holds(wanted):
            return there[:count]
    return there


def _sum_on(uuid: DeviceUuid, holds: Collection[RankHold]) -> DeviceShare:
    return DeviceShare(sum(hold.of(uuid).milli for hold in holds), sum(hold.of(uuid).memory_bytes for hold in holds))


def _given_back(free: FreeDevice, holds: Collection[RankHold]) -> DeviceShare:
    """What these give back of a device."""
    uuid = free.device.uuid
    if any(uuid in hold.devices for hold in holds):
        return DeviceShare(WHOLE_MILLI, free.device.memory_bytes)
    return _sum_on(uuid, holds)


def _trouble(
    view: NodeView,
    free: FreeDevice,
    awaited_for: Mapping[DeviceUuid, Collection[RankHold]],
    resources: Resources,
    min_memory_bytes: int,
) -> str:
    """Why the device may not be fit for the job even when no job of ours holds it; empty when it will be."""
    name = f"GPU {free.device.index} of node {view.node.name}"
    if free.miss is not None:
        return f"{name} is {free.miss.clause}"
    if free.has_foreign_process and not resources.allow_busy:
        return f"{name} is used by somebody outside gpufleet"
    if resources.share_milli:
        min_memory_bytes = memory_to_find_bytes(share_of(free.device, resources), resources)
    is_awaited = free.held_by is not None or awaited_for[free.device.uuid]
    if not is_awaited and not resources.ignores_telemetry and free.free_memory_bytes < min_memory_bytes:
        return f"{name} has less than {memory_text(min_memory_bytes)} free"
    return ""


def _sooner(hold: RankHold | None) -> tuple[bool, int]:
    """Sorts what is free first, then by when it comes free."""
    return (False, 0) if hold is None else (hold.ends_at is None, hold.ends_at or 0)


def _has_room(view: NodeView, given_back: Collection[RankHold], resources: Resources) -> bool:
    cpus = view.cpus + sum(hold.cpus for hold in given_back)
    memory_bytes = view.memory_bytes + sum(hold.memory_bytes for hold in given_back)
    return cpus >= resources.cpus and memory_bytes >= resources.memory_bytes


def keep(views: dict[NodeName, NodeView], reservation: Reservation) -> None:
    """Take what is reserved out of the view that the rest of the pass sees."""
    for kept in reservation.kept:
        view = views[kept.node]
        view.kept_devices = kept.devices
        view.kept_shares = kept.shares
        view.kept_for = reservation.job
        view.kept_until = reservation.begins_at
        view.kept_cpus = kept.cpus
        view.kept_memory_bytes = kept.memory_bytes
        view.note_change()


def let_go(views: dict[NodeName, NodeView]) -> None:
    """Keep nothing any more."""
    for view in views.values():
        view.kept_devices, view.kept_shares, view.kept_for, view.kept_until = frozenset(), {}, None, None
        view.kept_cpus = view.kept_memory_bytes = 0


def _candidates(view: NodeView, resources: Resources, min_memory_bytes: int) -> list[FreeDevice]:
    wanted = {device.uuid for device in wanted_devices(view.node.info.devices, resources)}
    return [
        free
        for free in view.devices
        if free.device.uuid in wanted
        and free.device.memory_bytes >= min_memory_bytes
        and (free.miss is None or free.miss.reason != "DEVICE_UNHEALTHY")
    ]
