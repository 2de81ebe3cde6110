"""Nodes, their devices and samples, as protos."""

from dataclasses import fields

from gpufleet.v1 import node_pb2

from ..policy.fit import FreeDevice, NodeView, default_min_memory_bytes
from ..state.durable import Durable
from ..state.events import NodeRefused
from ..state.ids import JobId
from ..state.indexes.indexes import NodeHold
from ..state.live import NodeLive
from ..state.nodes import (
    Device,
    DeviceSample,
    HostSample,
    JobAccounts,
    Node,
    NodeContainers,
    NodeInfo,
    Reachability,
    RunsAs,
)
from ..state.state import State
from ..state.units import Instant
from .convert import duration, timestamp
from .convert_jobs import share_proto

NOT_PLAIN = frozenset({"devices", "labels", "job_accounts", "containers", "environment_tools"})
PLAIN_FACTS = tuple(field.name for field in fields(NodeInfo) if field.name not in NOT_PLAIN)
"""What an agent says of its machine in numbers and texts, under the same names on the wire."""

RUNS_AS: dict[RunsAs | None, node_pb2.RunsAs.ValueType] = {
    RunsAs.SHARED: node_pb2.RUNS_AS_SHARED,
    RunsAs.OWNER: node_pb2.RUNS_AS_OWNER,
    RunsAs.RANGE: node_pb2.RUNS_AS_RANGE,
    RunsAs.ACCOUNTS: node_pb2.RUNS_AS_ACCOUNTS,
}


def device_proto(device: Device, unhealthy_reason: str = "") -> node_pb2.Device:
    """A device's facts on the wire."""
    return node_pb2.Device(
        uuid=device.uuid,
        index=device.index,
        name=device.name,
        memory_bytes=device.memory_bytes,
        pci_bus_id=device.pci_bus_id,
        is_virtual=device.is_virtual,
        is_healthy=not unhealthy_reason,
        unhealthy_reason=unhealthy_reason,
    )


def sample_proto(sample: DeviceSample, now: Instant) -> node_pb2.DeviceSample:
    """A sample on the wire, as its agent told it, with the age that it has now."""
    told = node_pb2.DeviceSample.FromString(sample.told)
    told.uuid = sample.uuid
    told.age.FromMicroseconds(max(0, now - sample.taken_at))
    return told


def info_proto(info: NodeInfo) -> node_pb2.NodeInfo:
    """What an agent said of its machine."""
    plain = {name: getattr(info, name) for name in PLAIN_FACTS}
    return node_pb2.NodeInfo(
        devices=[device_proto(device) for device in info.devices],
        labels=dict(info.labels),
        job_accounts=_accounts_proto(info.job_accounts),
        containers=None if info.containers is None else _containers_proto(info.containers),
        environment_tools=info.environment_tools,
        **plain,
    )


def _accounts_proto(accounts: JobAccounts) -> node_pb2.JobAccounts:
    return node_pb2.JobAccounts(
        runs_as=RUNS_AS.get(accounts.runs_as, node_pb2.RUNS_AS_UNSPECIFIED),
        owner=accounts.owner,
        account=accounts.account,
        is_from_before=accounts.is_from_before,
        why=accounts.why,
        ends_all_by=accounts.ends_all_by,
        limits=accounts.limits,
        limits_note=accounts.limits_note,
        uid_first=accounts.uid_first,
        uids_note=accounts.uids_note,
        user_namespaces=accounts.user_namespaces,
    )


def _containers_proto(containers: NodeContainers) -> node_pb2.NodeContainers:
    return node_pb2.NodeContainers(
        engine=containers.engine,
        problem=containers.problem,
        fix=containers.fix,
        gpus_by=containers.gpus_by,
        mounts=containers.mounts,
    )


def node_state(node: Node, live: NodeLive | None) -> node_pb2.NodeState.ValueType:
    """The state on the wire."""
    if node.is_lost or (live is not None and live.reach is Reachability.LOST):
        return node_pb2.NODE_STATE_LOST
    if live is None or live.reach is Reachability.SUSPECT or not live.is_connected:
        return node_pb2.NODE_STATE_SUSPECT
    return node_pb2.NODE_STATE_DRAINING if node.is_draining else node_pb2.NODE_STATE_READY


def node_state_word(node: Node, live: NodeLive | None) -> str:
    """The state in a word, such as `ready`."""
    return node_pb2.NodeState.Name(node_state(node, live)).removeprefix("NODE_STATE_").lower()


def refusal_proto(refused: NodeRefused) -> node_pb2.RegisterRefusal:
    """Why a node was refused as it registered last."""
    return node_pb2.RegisterRefusal(
        node=refused.node, reason=refused.reason, message=refused.message, refuse_time=timestamp(refused.at)
    )


def node_proto(
    view: NodeView,
    live: NodeLive | None,
    refused: NodeRefused | None,
    hold: NodeHold,
    now: Instant,
    default_min_bytes: int,
) -> node_pb2.Node:
    """A node with its devices and what holds them."""
    node = view.node
    unhealthy = {device.uuid: device.reason for device in node.unhealthy}
    host = HostSample() if live is None else live.host
    return node_pb2.Node(
        name=node.name,
        state=node_state(node, live),
        info=info_proto(node.info),
        devices=[
            _node_device(free, hold, view, unhealthy.get(free.device.uuid, ""), now, default_min_bytes)
            for free in view.devices
        ],
        address=node.address,
        register_time=timestamp(node.registered_at),
        last_heard_time=timestamp(live.heard_at) if live is not None and live.stream else None,
        is_draining=node.is_draining,
        drain_reason=node.drain_reason,
        cpus_used=node.info.cpus - view.cpus,
        memory_used_bytes=node.info.memory_bytes - view.memory_bytes,
        job_ids=sorted({key.job for key in hold.ranks}),
        version=node.version,
        is_connected=live is not None and live.is_connected,
        spool_free_bytes=host.spool_free_bytes,
        cpu_percent=host.cpu_percent,
        host_memory_used_bytes=host.memory_used_bytes,
        round_trip=None if host.round_trip is None else duration(host.round_trip),
        has_credential=bool(node.credentials),
        is_revoked=node.is_revoked,
        awaits_approval=node.awaits_approval,
        shared_root_is_checked=bool(node.shared_root),
        refusal=None if refused is None else refusal_proto(refused),
    )


def device_now(free: FreeDevice, view: NodeView, state: State, now: Instant) -> node_pb2.NodeDevice:
    """A device that stands in a list with those of other nodes."""
    durable = state.durable
    unhealthy = next((each.reason for each in view.node.unhealthy if each.uuid == free.device.uuid), "")
    hold, default_min_bytes = durable.hold(view.node.name), default_min_memory_bytes(state)
    shown = _node_device(free, hold, view, unhealthy, now, default_min_bytes)
    shown.node = view.node.name
    shown.user = _user_of(durable, shown.job_id)
    for held in shown.shares:
        held.user = _user_of(durable, held.job_id)
    return shown


def _user_of(durable: Durable, job_id: int) -> str:
    job = durable.jobs.get(JobId(job_id)) if job_id else None
    return "" if job is None else job.user


def is_free(free: FreeDevice, hold: NodeHold, view: NodeView, min_memory_bytes: int) -> bool:
    """Whether a device would be given whole to a job now that expects this much free memory."""
    takes = view.miss is None and free.miss is None and not free.has_foreign_process
    return takes and _is_nobodys(free, hold) and not free.is_short_of_memory(min_memory_bytes)


def _is_nobodys(free: FreeDevice, hold: NodeHold) -> bool:
    return free.held_by is None and not hold.shares.get(free.device.uuid)


def _is_used_by_others(free: FreeDevice, hold: NodeHold, default_min_bytes: int) -> bool:
    """Just after a job has ended its last reading still shows what it used: then a process of ours is on it."""
    if not _is_nobodys(free, hold) or free.sample is None:
        return False
    is_ours = any(not process.is_foreign for process in free.sample.processes)
    return free.has_foreign_process or (free.is_short_of_memory(default_min_bytes) and not is_ours)


def _node_device(
    free: FreeDevice, hold: NodeHold, view: NodeView, unhealthy: str, now: Instant, default_min_bytes: int
) -> node_pb2.NodeDevice:
    shares = hold.shares.get(free.device.uuid, {})
    takes = view.miss is None and free.miss is None and not free.has_foreign_process
    return node_pb2.NodeDevice(
        device=device_proto(free.device, unhealthy),
        sample=None if free.sample is None else sample_proto(free.sample, now),
        job_id=free.held_by or 0,
        availability_score=None if free.score is None else round(free.score, 4),
        is_free=is_free(free, hold, view, default_min_bytes),
        is_used_by_others=_is_used_by_others(free, hold, default_min_bytes),
        shares=[node_pb2.HeldShare(job_id=job, share=share_proto(share)) for job, share in sorted(shares.items())],
        free_milli=view.room(free).milli if takes else 0,
    )
