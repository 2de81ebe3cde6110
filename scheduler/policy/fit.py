"""Whether a node can hold a request, and why not.

The same filter functions serve three questions: can it hold it now (a pass), could it ever (a submit), and what does
each node say (an explanation). A filter answers None for "yes" or a `Miss` that says why not.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import reduce

from ..state.attempts import Placement
from ..state.ids import DeviceUuid, JobId, NodeName
from ..state.limits import Limits, ScoreWeights
from ..state.live import NodeLive, silent_from
from ..state.nodes import Device, DeviceSample, JobAccounts, Node, NodeContainers
from ..state.shares import DeviceShare, share_text
from ..state.specs import Resources
from ..state.state import State
from ..state.units import GB, MB, SECOND, Instant
from .owners import takes_jobs_of
from .shares import memory_to_find_bytes, room_on, share_of, shares_in

LARGEST_DEVICE_SHARE = 0.9
"""The default for free memory is never more than this part of the largest device."""

NODE_OF_ANOTHER = "NODE_OF_ANOTHER"
"""The reason of a node that takes jobs of its owner alone, which is another user."""

NO_ENGINE = "NO_ENGINE"
"""The reason of a node that runs no containers."""

NODE_CANNOT_START = "NODE_CANNOT_START"
"""The reason of a node that refused a job for want of what this job alone needs."""

IDLE_UTILIZATION_PERCENT, IDLE_MEMORY_SHARE = 30, 0.5
"""A device is idle below this utilisation and below this part of its memory in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """Why a node, or a device, cannot take a request: a stable reason and one clause for people.

    `is_lasting`: not even an empty node could. `nearness` tells misses of one reason apart: the higher, the nearer.
    """

    reason: str
    clause: str
    is_lasting: bool = False
    nearness: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FreeDevice:
    """A device with all that choosing needs to know. `miss` is why nobody can have it now."""

    device: Device
    sample: DeviceSample | None
    held_by: JobId | None
    miss: Miss | None
    weights: ScoreWeights = ScoreWeights()

    @property
    def free_memory_bytes(self) -> int:
        """Free memory by its newest sample; all of it where there is no telemetry."""
        if self.sample is None or self.sample.memory_free_bytes is None:
            return self.device.memory_bytes
        return self.sample.memory_free_bytes

    @property
    def has_foreign_process(self) -> bool:
        """Whether somebody who is not one of our attempts uses it."""
        return self.sample is not None and any(process.is_foreign for process in self.sample.processes)

    def is_short_of_memory(self, default_min_bytes: int) -> bool:
        """Whether less of its memory is free than a job finds that does not say how much it needs.

        Of a small device nobody expects more than 90 % of its own, as of the largest one.
        """
        return self.free_memory_bytes < min(default_min_bytes, int(self.device.memory_bytes * LARGEST_DEVICE_SHARE))

    @property
    def is_idle(self) -> bool:
        """Whether little of it is used, by anybody; a device without telemetry counts as idle."""
        if self.sample is None:
            return True
        used_bytes = self.device.memory_bytes - self.free_memory_bytes
        is_little_used = (self.sample.utilization_percent or 0) < IDLE_UTILIZATION_PERCENT
        return is_little_used and used_bytes < IDLE_MEMORY_SHARE * self.device.memory_bytes

    @property
    def score(self) -> float | None:
        """Its free share of memory and its idle share, weighted (0.6 and 0.4 unless set); None without telemetry.

        It is 0 to 1: weights that are more than 1 together are parts of their sum.
        """
        if self.sample is None or self.sample.memory_free_bytes is None or not self.device.memory_bytes:
            return None
        busy = self.sample.utilization_percent or 0
        free_share, idle_share = self.sample.memory_free_bytes / self.device.memory_bytes, (100 - busy) / 100
        weighted = self.weights.free_memory * free_share + self.weights.idleness * idle_share
        return weighted / max(1.0, self.weights.free_memory + self.weights.idleness)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankHold:
    """What one rank holds of a node, and until when at the latest; `ends_at` None: nobody can say."""

    job: JobId
    ends_at: Instant | None
    cpus: int
    memory_bytes: int
    devices: frozenset[DeviceUuid]
    shares: Mapping[DeviceUuid, DeviceShare] = field(default_factory=dict)

    def of(self, device: DeviceUuid) -> DeviceShare:
        """What it holds of a device in shares."""
        return self.shares.get(device, NOTHING)


NOTHING = DeviceShare()


def hold_of(job: JobId, placement: Placement, ends_at: Instant | None) -> RankHold:
    """What a placement holds."""
    return RankHold(
        job=job,
        ends_at=ends_at,
        cpus=placement.cpus,
        memory_bytes=placement.memory_bytes,
        devices=frozenset(device.uuid for device in placement.devices if device.share is None),
        shares=shares_in(placement),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """When what is held of a version of a node comes free: its devices, soonest first, and the holds by their ends.

    `soonest` is when, by counts alone, there is room for so many devices, CPUs and bytes, for those who have asked.
    """

    version: int
    free_devices: int
    device_ends: list[Instant]
    by_end: list[tuple[Instant, RankHold]]
    soonest: dict[tuple[int, int, int], Instant] = field(default_factory=dict)


@dataclass(slots=True)
class NodeChanges:
    """Which nodes of a pass changed since somebody looked last, and how many changes there were in all."""

    count: int = 0
    names: dict[NodeName, None] = field(default_factory=dict)

    def note(self, name: NodeName) -> int:
        """A node is no longer as it was; the number of this change."""
        self.count += 1
        self.names[name] = None
        return self.count


@dataclass(slots=True, kw_only=True)
class NodeView:
    """A node as one pass sees it; a pass takes from it what it gives away. `miss` is why it takes nothing at all.

    `changes` is shared by all nodes of a pass; `version` is the number of the change that made this one as it is, so
    that what a version was found to be stays true. `taken` is what the pass gave, `given` the whole devices among it;
    `shares` is what is given of each device in shares, before the pass and by it. `held` is what ranks held before, and
    `outlook` when it comes free, once somebody has asked. `disk_free_bytes` is what files of jobs may take, if known.
    What is kept for the job `kept_for` is free for it alone, and for jobs that for sure have ended before `kept_until`.
    """

    node: Node
    cpus: int
    memory_bytes: int
    devices: list[FreeDevice]
    miss: Miss | None
    kept_for: JobId | None = None
    kept_until: Instant | None = None
    kept_devices: frozenset[DeviceUuid] = frozenset()
    kept_shares: Mapping[DeviceUuid, DeviceShare] = field(default_factory=dict)
    kept_cpus: int = 0
    kept_memory_bytes: int = 0
    given: set[DeviceUuid] = field(default_factory=set)
    shares: dict[DeviceUuid, DeviceShare] = field(default_factory=dict)
    taken: list[RankHold] = field(default_factory=list)
    held: list[RankHold] | None = None
    outlook: Outlook | None = None
    changes: NodeChanges = field(default_factory=NodeChanges)
    version: int = 0
    disk_free_bytes: int | None = None

    def note_change(self) -> None:
        """What is free, or kept, on the node is no longer as it was."""
        self.version = self.changes.note(self.node.name)

    def is_open_to(self, job: JobId | None, ends_at: Instant | None) -> bool:
        """Whether a job may use what is kept: it is the one, or it has ended by `ends_at`, before the one begins."""
        if self.kept_for is None or self.kept_for == job:
            return True
        return ends_at is not None and self.kept_until is not None and ends_at <= self.kept_until

    def free_devices(self) -> list[FreeDevice]:
        """Devices of which nobody holds anything, and nothing is wrong with."""
        return [
            free
            for free in self.devices
            if free.miss is None
            and free.held_by is None
            and free.device.uuid not in self.given
            and free.device.uuid not in self.shares
        ]

    def room(self, free: FreeDevice) -> DeviceShare:
        """What shares may still be given of a device; nothing of one that is held whole."""
        uuid = free.device.uuid
        if free.held_by is not None or uuid in self.given:
            return NOTHING
        return room_on(free.device, self.shares.get(uuid, NOTHING), free.sample)

    def take(self, hold: RankHold, sign: int = 1) -> None:
        """Count what a hold has of devices in, or out with the sign −1."""
        if sign > 0:
            self.given |= hold.devices
        else:
            self.given -= hold.devices
        for uuid, share in hold.shares.items():
            before = self.shares.pop(uuid, NOTHING)
            now = before.plus(share) if sign > 0 else before.less(share)
            if now.milli:
                self.shares[uuid] = now


def node_views(state: State, at: Instant) -> dict[NodeName, NodeView]:
    """Every node as a pass at this instant sees it, in the order of the names."""
    changes = NodeChanges()
    return {name: node_view(state, state.durable.nodes[name], at, changes) for name in sorted(state.durable.nodes)}


def node_view(state: State, node: Node, at: Instant, changes: NodeChanges) -> NodeView:
    """One node as a pass at this instant sees it. What it reads is what `node_cache.facts_of` must name."""
    hold = state.durable.hold(node.name)
    live = state.live.nodes.get(node.name) or NodeLive(heard_at=at)
    unhealthy = {device.uuid: device.reason for device in node.unhealthy}
    devices = [
        FreeDevice(
            device=device,
            sample=live.samples.get(device.uuid),
            held_by=hold.devices.get(device.uuid),
            miss=_device_miss(device, live, unhealthy, state.limits, at),
            weights=state.limits.score_weights,
        )
        for device in node.info.devices
    ]
    return NodeView(
        node=node,
        cpus=node.info.cpus - hold.cpus,
        memory_bytes=node.info.memory_bytes - hold.memory_bytes,
        devices=devices,
        shares={uuid: reduce(DeviceShare.plus, shares.values(), NOTHING) for uuid, shares in hold.shares.items()},
        miss=node_miss(node, live, state.limits, at),
        disk_free_bytes=disk_free_bytes(live),
        changes=changes,
        version=changes.note(node.name),
    )


def disk_free_bytes(live: NodeLive) -> int | None:
    """What files of jobs may take of a node's disk, rounded down: what each beat changes a little is the same."""
    free_bytes = live.host.files_free_bytes
    if free_bytes is None:
        return None
    step = 1 << max(0, free_bytes.bit_length() - DISK_BITS)
    return free_bytes - free_bytes % step


DISK_BITS = 8
"""Of the free bytes of a disk so many leading bits count: 1 % of it at most is left out."""


def node_miss(node: Node, live: NodeLive, limits: Limits, at: Instant) -> Miss | None:
    """Why a node can be given nothing now, whatever is asked for."""
    if node.is_lost:
        return Miss(reason="NODE_LOST", clause="has not been heard for its whole lease")
    if node.is_draining:
        return Miss(reason="NODE_DRAINING", clause=f"drains ({node.drain_reason})" if node.drain_reason else "drains")
    if not live.is_connected or not live.has_inventory or silent_from(limits, live) <= at:
        return Miss(reason="NODE_NOT_HEARD", clause="is not connected, or was not heard in time")
    if live.lingering:
        keys = ", ".join(str(key) for key in sorted(live.lingering)[:3])
        return Miss(reason="NODE_CLEANING", clause=f"still ends what it must no longer run ({keys})")
    if live.left_out_until > at:
        return Miss(reason="NODE_LEFT_OUT", clause="refused a launch and is left out for a moment")
    return None


def _device_miss(
    device: Device, live: NodeLive, unhealthy: dict[DeviceUuid, str], limits: Limits, at: Instant
) -> Miss | None:
    if device.uuid in unhealthy:
        return Miss(reason="DEVICE_UNHEALTHY", clause=f"unhealthy: {unhealthy[device.uuid]}")
    if live.devices_left_out.get(device.uuid, Instant(0)) > at:
        return Miss(reason="DEVICE_LEFT_OUT", clause="left out for a moment: a launch found it busy")
    if device.is_virtual:
        return None
    sample = live.samples.get(device.uuid)
    if sample is None or sample.taken_at + limits.sample_age < at:
        return Miss(reason="SAMPLE_TOO_OLD", clause="without a sample of the last seconds")
    if not sample.is_healthy:
        return Miss(reason="DEVICE_UNHEALTHY", clause=f"unhealthy: {sample.unhealthy_reason}")
    return None


def default_min_memory_bytes(state: State) -> int:
    """Free memory that a device must have when the job does not say: the setting, or 90 % of the largest device."""
    largest = state.durable.largest_device_bytes()
    share = int(largest * LARGEST_DEVICE_SHARE)
    return min(state.limits.default_min_memory_bytes, share) if largest else state.limits.default_min_memory_bytes


def node_is_asked_for(node: Node, resources: Resources) -> Miss | None:
    """Whether the request names this node, or at least does not exclude it."""
    if resources.pins and node.name not in {pins.node for pins in resources.pins}:
        return Miss(reason="NODE_NOT_PINNED", clause="is not among the pinned nodes")
    if resources.nodelist and node.name not in resources.nodelist:
        return Miss(reason="NODE_NOT_LISTED", clause="is not in --nodelist")
    if node.name in resources.exclude:
        return Miss(reason="NODE_EXCLUDED", clause="is in --exclude")
    kept = next((each for each in resources.kept_away if each.node == node.name), None)
    if kept is not None and kept.is_for_good:
        return Miss(reason=NODE_CANNOT_START, clause=f"could not start it ({kept.why})")
    labels = dict(node.info.labels)
    for key, value in resources.node_labels:
        if labels.get(key) != value:
            return Miss(reason="NODE_LABEL_MISSING", clause=f"does not carry the label {key}={value}")
    if resources.shared_root and node.shared_root != resources.shared_root:
        return Miss(reason="SHARED_ROOT_MISSING", clause="was not found to see the shared folder of the job's files")
    return None


def _whose(accounts: JobAccounts) -> str:
    if not accounts.owner:
        return "takes nobody's jobs, as it is not known whose it is"
    return f"runs jobs of {accounts.owner} alone: they are processes of one account, its agent's"


def _lacks_containers(containers: NodeContainers | None, resources: Resources) -> Miss | None:
    """Whether the node can run no containers, or none with GPUs where such are asked for."""
    if containers is None or not containers.engine:
        why = "its agent knows nothing of them" if containers is None else containers.problem or "it has no engine"
        return Miss(reason=NO_ENGINE, clause=f"runs no containers: {why}")
    if resources.gpus and not containers.gpus_by:
        return Miss(reason="NO_GPU_CONTAINERS", clause=f"gives containers no GPUs: {containers.engine} lacks the way")
    return None


def could_ever_hold(node: Node, resources: Resources, min_memory_bytes: int) -> Miss | None:
    """Whether the node could hold the request if it were empty and everything on it were well."""
    miss = _lasting_miss(node, resources, min_memory_bytes)
    return None if miss is None else replace(miss, is_lasting=True)


def _lasting_miss(node: Node, resources: Resources, min_memory_bytes: int) -> Miss | None:
    asked = node_is_asked_for(node, resources)
    if asked is not None:
        return asked
    if not takes_jobs_of(node.info, resources):
        return Miss(reason=NODE_OF_ANOTHER, clause=_whose(node.info.job_accounts))
    lacks_containers = _lacks_containers(node.info.containers, resources) if resources.in_container else None
    if lacks_containers is not None:
        return lacks_containers
    cpus, memory_bytes = node.info.cpus, node.info.memory_bytes
    if resources.cpus > cpus:
        return Miss(reason="TOO_FEW_CPUS", clause=f"has {_count(cpus, 'CPU')} in all", nearness=cpus)
    if resources.memory_bytes > memory_bytes:
        clause = f"has {memory_text(memory_bytes)} of memory in all"
        return Miss(reason="TOO_LITTLE_MEMORY", clause=clause, nearness=memory_bytes)
    wanted = wanted_devices(node.info.devices, resources)
    if len(wanted) < resources.gpus:
        return _too_few(node, resources, wanted)
    large_enough = [device for device in wanted if device.memory_bytes >= min_memory_bytes]
    if len(large_enough) < resources.gpus:
        largest = max(device.memory_bytes for device in wanted)
        return Miss(
            reason="DEVICES_TOO_SMALL",
            clause=f"has {_count(len(large_enough), 'GPU')} of {memory_text(min_memory_bytes)} or more "
            f"(the largest has {memory_text(largest)})",
            nearness=largest,
        )
    return None


def devices_that_fit(
    view: NodeView, resources: Resources, min_memory_bytes: int, job: JobId | None, ends_at: Instant | None
) -> list[FreeDevice] | Miss:
    """The devices of a node that could be given now, or why the node cannot take the request now.

    `job` is the job that asks: what is kept for it is not kept from it. Started now it has ended by `ends_at` for sure;
    None: it may run for ever.
    """
    ever = could_ever_hold(view.node, resources, min_memory_bytes)
    return devices_free_now(view, resources, min_memory_bytes, job, ends_at) if ever is None else ever


def own_miss(view: NodeView, resources: Resources) -> Miss | None:
    """Why a node cannot start what others may start there: it could not lately, or lacks room for the files."""
    kept = next((each for each in resources.kept_away if each.node == view.node.name), None)
    if kept is not None and kept.until is not None and not kept.is_open:
        again = f"it is tried there again at {begin_text(kept.until)}"
        return Miss(reason=NODE_CANNOT_START, clause=f"could not start it ({kept.why}); {again}")
    free_bytes = view.disk_free_bytes
    if free_bytes is not None and free_bytes < resources.disk_bytes:
        needs = f"the job's files need {memory_text(resources.disk_bytes)}"
        return Miss(reason="DISK_IN_USE", clause=f"has {memory_text(free_bytes)} free on its disk, and {needs}")
    return None


def devices_free_now(
    view: NodeView, resources: Resources, min_memory_bytes: int, job: JobId | None, ends_at: Instant | None
) -> list[FreeDevice] | Miss:
    """The same of a node that could ever hold the request."""
    if view.miss is not None:
        return view.miss
    if (own := own_miss(view, resources)) is not None:
        return own
    is_open = view.is_open_to(job, ends_at)
    lacking = _lacks_room(view, resources, is_open=is_open)
    if lacking is not None:
        return lacking
    if not resources.gpus:
        return []
    wanted = {device.uuid for device in wanted_devices(view.node.info.devices, resources)}
    fitting: list[FreeDevice] = []
    misses: list[Miss] = []
    for free in view.devices:
        if free.device.uuid in wanted:
            miss = _device_refusal(view, free, resources, min_memory_bytes, is_open=is_open)
            if miss is None:
                fitting.append(free)
            else:
                misses.append(miss)
    if len(fitting) >= resources.gpus:
        return fitting
    return Miss(reason=misses[0].reason, clause=_summary(len(fitting), resources, misses))


def _lacks_room(view: NodeView, resources: Resources, *, is_open: bool) -> Miss | None:
    free = f"has {max(0, view.cpus)} of {_count(view.node.info.cpus, 'CPU')} free"
    if resources.cpus > view.cpus:
        return Miss(reason="CPUS_IN_USE", clause=free)
    if resources.memory_bytes > view.memory_bytes:
        return Miss(reason="MEMORY_IN_USE", clause=f"has {memory_text(view.memory_bytes)} of memory free")
    if is_open:
        return None
    if resources.cpus > view.cpus - view.kept_cpus:
        return Miss(
            reason="KEPT_FOR_ANOTHER",
            clause=f"{free}, kept for job {view.kept_for}",
        )
    if resources.memory_bytes > view.memory_bytes - view.kept_memory_bytes:
        return Miss(
            reason="KEPT_FOR_ANOTHER",
            clause=f"has {memory_text(view.memory_bytes)} of memory free, kept for job {view.kept_for}",
        )
    return None


def _device_refusal(
    view: NodeView, free: FreeDevice, resources: Resources, min_memory_bytes: int, *, is_open: bool
) -> Miss | None:
    uuid = free.device.uuid
    if free.held_by is not None or uuid in view.given:
        return Miss(reason="DEVICES_IN_USE", clause="in use")
    if not resources.share_milli and uuid in view.shares:
        return Miss(reason="DEVICES_IN_USE", clause="in use in shares")
    if free.miss is not None:
        return free.miss
    if resources.share_milli or uuid in view.kept_shares:
        refusal = _share_refusal(view, free, resources, is_open=is_open)
        if refusal is not None:
            return refusal
    elif not is_open and uuid in view.kept_devices:
        return Miss(reason="KEPT_FOR_ANOTHER", clause=f"kept for job {view.kept_for}")
    if free.has_foreign_process and not resources.allow_busy:
        return Miss(reason="DEVICE_BUSY", clause="used by somebody outside gpufleet")
    least_bytes = min_memory_bytes
    if resources.share_milli:
        least_bytes = memory_to_find_bytes(share_of(free.device, resources), resources)
    if not resources.ignores_telemetry and free.free_memory_bytes < least_bytes:
        return Miss(reason="DEVICE_MEMORY_IN_USE", clause=f"with less than {memory_text(least_bytes)} free")
    return None


def _share_refusal(view: NodeView, free: FreeDevice, resources: Resources, *, is_open: bool) -> Miss | None:
    """Why what is left of a device in shares is not enough; a whole device is the largest share."""
    uuid = free.device.uuid
    share, room = share_of(free.device, resources), view.room(free)
    if room.milli < share.milli:
        left = f"with {share_text(room.milli)} free" if room.milli else "shared in full"
        return Miss(reason="DEVICES_IN_USE", clause=left)
    if resources.share_milli and room.memory_bytes < share.memory_bytes:
        return Miss(reason="DEVICE_MEMORY_IN_USE", clause=f"with less than {memory_text(share.memory_bytes)} to share")
    if not is_open and (
        uuid in view.kept_devices or (uuid in view.kept_shares and not room.less(view.kept_shares[uuid]).holds(share))
    ):
        return Miss(reason="KEPT_FOR_ANOTHER", clause=f"kept for job {view.kept_for}")
    return None


def wanted_devices(devices: Iterable[Device], resources: Resources) -> list[Device]:
    """Those of the devices that are pinned and of a model asked for, as far as the request says so."""
    pinned = {index for pins in resources.pins for index in pins.indices}
    models = [model.casefold() for model in resources.models]
    return [
        device
        for device in devices
        if (not resources.pins or device.index in pinned)
        and (not models or any(model in device.name.casefold() for model in models))
    ]


def _too_few(node: Node, resources: Resources, wanted: list[Device]) -> Miss:
    if resources.pins:
        have = {device.index for device in node.info.devices}
        missing = [index for pins in resources.pins for index in pins.indices if index not in have]
        if missing:
            return Miss(reason="PIN_MISSING", clause=f"has no GPU {', '.join(map(str, missing))}")
    if resources.models and len(node.info.devices) >= resources.gpus:
        names = sorted({device.name for device in node.info.devices})
        return Miss(
            reason="MODEL_MISSING",
            clause=f"has {_count(len(wanted), 'GPU')} of that model (it has: {', '.join(names)})",
        )
    clause = f"has {_count(len(wanted), 'GPU')} in all" if wanted else "has no GPU"
    return Miss(reason="TOO_FEW_DEVICES", clause=clause, nearness=len(wanted))


def _summary(fitting: int, resources: Resources, misses: list[Miss]) -> str:
    wanted = resources.gpus
    counts: dict[str, int] = {}
    for miss in misses:
        counts[miss.clause] = counts.get(miss.clause, 0) + 1
    parts = ", ".join(f"{count} {clause}" for clause, count in counts.items())
    if resources.share_milli:
        share = f"{share_text(resources.share_milli)} of a GPU"
        where = f"room for {share} on {fitting} of {wanted}" if wanted > 1 else f"no room for {share}"
        return f"has {where} ({parts})"
    return f"has {fitting} of the {wanted} GPUs free ({parts})" if wanted > 1 else f"has no free GPU ({parts})"


def begin_text(at: Instant | None) -> str:
    """An instant for people, in UTC."""
    moment = datetime.fromtimestamp((at or 0) / SECOND, tz=UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def memory_text(memory_bytes: int) -> str:
    """Memory for people, in the units that people type: 16 GB, 500 MB."""
    if memory_bytes >= 10 * GB or memory_bytes % GB == 0:
        return f"{memory_bytes / GB:.3g} GB"
    return f"{memory_bytes / MB:,.0f} MB"


def _count(number: int, noun: str) -> str:
    return f"{number if number else 'no'} {noun}{'' if number == 1 else 's'}"
