"""Nodes and devices, and what is only known while the node is heard."""

from collections.abc import Container
from dataclasses import dataclass, replace
from enum import Enum

from .ids import DeviceUuid, JobId, NodeName, UserName
from .units import Instant, Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU, real or virtual: the facts that do not change while it works."""

    uuid: DeviceUuid
    index: int
    name: str
    memory_bytes: int
    pci_bus_id: str = ""
    is_virtual: bool = False


class RunsAs(Enum):
    """As whom jobs run on a node."""

    SHARED = "shared"
    """As the agent's account, whosever they are."""
    OWNER = "owner"
    """As the agent's account, and those of the node's owner alone."""
    RANGE = "range"
    """Each user's by a uid of its own, kept apart from all others."""
    ACCOUNTS = "accounts"
    """As the node's account of the user's name, kept apart from all others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAccounts:
    """As whom jobs run on a node, and whose. `runs_as` None: its agent is from before there was a choice, and shares.

    `owner` is whose jobs it takes where it takes one user's alone. `account` is the agent's own. `is_from_before`: it
    shares because it did when its agent was from before. `why` says why it does not keep jobs apart, in a clause, and
    `ends_all_by` by which means nothing outlives its job.
    `limits` are those within which a job is kept, and `limits_note` says why others that are wanted do not hold.
    `uid_first` is the first uid that it gives to users, 0 where it gives none, and `uids_note` says why that is not the
    one that its settings say. `user_namespaces` says what becomes of those that jobs make, in a word.
    """

    runs_as: RunsAs | None = None
    owner: UserName = UserName("")
    account: str = ""
    is_from_before: bool = False
    why: str = ""
    ends_all_by: str = ""
    limits: tuple[str, ...] = ()
    limits_note: str = ""
    uid_first: int = 0
    uids_note: str = ""
    user_namespaces: str = ""

    @property
    def is_alone(self) -> bool:
        """Whether jobs of its owner run there, and of nobody else."""
        return self.runs_as is RunsAs.OWNER

    @property
    def is_isolating(self) -> bool:
        """Whether each job is kept apart from all others, with a /tmp of its own."""
        return self.runs_as in (RunsAs.RANGE, RunsAs.ACCOUNTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContainers:
    """Whether jobs can run in containers on a node: by which `engine`, empty where they cannot, and then what the
    `problem` is and its `fix`. `gpus_by`: how containers get GPUs, empty where they get none. `mounts`: what the site
    lets them show of the node.
    """

    engine: str = ""
    problem: str = ""
    fix: str = ""
    gpus_by: str = ""
    mounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    """What an agent says of its machine when it registers."""

    hostname: str = ""
    cpus: int = 1
    memory_bytes: int = 0
    devices: tuple[Device, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    agent_version: str = ""
    python_version: str = ""
    platform: str = ""
    provider: str = "static"
    advertise_address: str = ""
    devices_note: str = ""
    devices_fix: str = ""
    torch_version: str = ""
    cuda_runtime_version: str = ""
    open_files_max: int = 0
    shared_root_folder: str = ""
    shared_root: str = ""
    shared_root_problem: str = ""
    job_accounts: JobAccounts = JobAccounts()
    containers: NodeContainers | None = None
    environment_tools: tuple[str, ...] = ()
    """What makes environments there; empty where its agent does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnhealthyDevice:
    """A device that is not placed on until a person resumes its node.

    `is_gone`: its agent does not find it, and it is listed only because a job holds it.
    """

    uuid: DeviceUuid
    reason: str
    is_gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with an agent, as the store knows it.

    Its agent proves itself by one of its `credentials`, the newest last (`node_tokens.py`), or, where it has none, by a
    token that any agent may have. One that is revoked, or awaits approval, drains. An agent that does not know lineages
    is told of attempts without one. `checked_root` is the shared folder that it was last found to see by a probe.
    `owner` is the user by whose token it joined, empty where that was nobody's.
    """

    name: NodeName
    agent_id: str
    incarnation: int
    boot_id: str
    info: NodeInfo
    registered_at: Instant
    address: str = ""
    is_draining: bool = False
    drain_reason: str = ""
    is_lost: bool = False
    unhealthy: tuple[UnhealthyDevice, ...] = ()
    version: int = 1
    credentials: tuple[int, ...] = ()
    credential_given_at: Instant | None = None
    is_revoked: bool = False
    awaits_approval: bool = False
    knows_lineages: bool = False
    keeps_backlog: bool = False
    checked_root: str = ""
    owner: UserName = UserName("")

    @property
    def shared_root(self) -> str:
        """The shared folder that it may read files in: the one that it names, once that was checked; empty for none."""
        return self.info.shared_root if self.info.shared_root == self.checked_root else ""


def approved(node: Node) -> Node:
    """A node that somebody lets take part."""
    return replace(node, is_revoked=False, awaits_approval=False, is_draining=False, drain_reason="")


def revoked(node: Node, reason: str) -> Node:
    """A node that nobody speaks for until it is approved."""
    why = f"revoked: {reason}" if reason else "revoked"
    return replace(node, credentials=(), credential_given_at=None, is_revoked=True, is_draining=True, drain_reason=why)


def resumed(node: Node, held: Container[DeviceUuid]) -> Node:
    """A node that may be given all that it has. What is gone leaves its list, or stays as it is while it is `held`."""
    stay = tuple(mark for mark in node.unhealthy if mark.is_gone and mark.uuid in held)
    leave = {mark.uuid for mark in node.unhealthy if mark.is_gone and mark.uuid not in held}
    devices = tuple(device for device in node.info.devices if device.uuid not in leave)
    return replace(node, is_draining=False, drain_reason="", unhealthy=stay, info=replace(node.info, devices=devices))


class Reachability(Enum):
    """Whether a node is heard in time."""

    READY = "READY"
    SUSPECT = "SUSPECT"
    LOST = "LOST"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProcess:
    """A process on a device; `is_foreign` when it belongs to no attempt. `job` is whose it is, where that is told."""

    pid: int
    memory_bytes: int | None = None
    is_foreign: bool = False
    job: JobId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSample:
    """One reading of a machine itself, None where it was not read: its load in percent, memory in use, and what is free
    for output that is not stored yet. `round_trip` is how long an earlier beat took until its answer was there.
    """

    cpu_percent: int | None = None
    memory_used_bytes: int | None = None
    spool_free_bytes: int | None = None
    files_free_bytes: int | None = None
    round_trip: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSample:
    """One reading of one device; None where the device lacks the counter. `taken_at` is on the scheduler's clock.

    `utilization_percent_max` is the largest of all readings since the last beat, which go over `summed_span`, and
    `slowed_by` says why the device was slowed down at any of them. `told` is the whole reading as its agent sent it,
    with what nothing here decides by: it is passed on unread.
    """

    uuid: DeviceUuid
    taken_at: Instant
    utilization_percent: int | None = None
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    temperature_c: int | None = None
    power_mw: int | None = None
    power_limit_mw: int | None = None
    processes: tuple[DeviceProcess, ...] = ()
    processes_are_known: bool = True
    is_healthy: bool = True
    unhealthy_reason: str = ""
    utilization_percent_max: float | None = None
    summed_span: Span = Span(0)
    slowed_by: tuple[str, ...] = ()
    told: bytes = b""
