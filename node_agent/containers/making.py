"""What a container is made of: from a rank's launch to the words of the Docker API. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.devices.device import Device, Vendor
from gpufleet.jobs.runs import InputMode
from gpufleet.net.program_ports import LOOPBACK

from ..core.environment import CHOOSES_DEVICES
from ..core.launch import FILES_PATH, HOME_PATH, Mount
from .engine import BY_CDI, CDI_KIND, EngineFacts

LABEL = "gpufleet"
AGENT_LABEL, ATTEMPT_LABEL, JOB_LABEL = f"{LABEL}.agent", f"{LABEL}.attempt", f"{LABEL}.job"

MARK_VARIABLE = "GPUFLEET_CONTAINER"
NVIDIA_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
"""By it NVIDIA's run time gives GPUs, also to containers that ask for none: images say "all" in it."""

SHARED_MEMORY_PART = 2
"""Of the memory that a container may have, or of all of the machine's, this part may be shared memory: an engine's own
64 MB are too few for what loads data in several processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPort:
    """A port on which the program listens `in_container`, and that of the node's loopback by which it is reached."""

    in_container: int
    on_loopback: int

    @property
    def name(self) -> str:
        """As the API names it."""
        return f"{self.in_container}/tcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A rank's container. `memory_bytes` 0 is no limit; `machine_memory_bytes` is what there is.

    `uid` and `gid` are whose process it is, `groups` what else that is of. `files` and `home` are folders of the node,
    shown at their usual paths; empty for none. `nodes` are device nodes by which the devices are used, `devices` what
    it holds, of which virtual ones have none. With a `port` it has a network of its own, and that port is published.
    """

    image: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    input: InputMode | None
    uid: int
    gid: int
    groups: Sequence[int]
    memory_bytes: int
    machine_memory_bytes: int
    cpus: int
    processes_max: int
    mounts: Sequence[Mount]
    files: str
    home: str
    devices: Sequence[Device]
    nodes: Sequence[str]
    labels: Mapping[str, str]
    mark: str
    port: PublishedPort | None = None


def request_of(wanted: Wanted, facts: EngineFacts) -> dict[str, Any]:
    """The body of the call that makes it."""
    real = [device for device in wanted.devices if not device.is_virtual]
    nvidia = [device.uuid for device in real if device.vendor is not Vendor.AMD]
    return {
        "Image": wanted.image,
        "Cmd": list(wanted.argv) or None,  # what the image runs by itself
        "Env": [f"{name}={value}" for name, value in sorted(environment_of(wanted, nvidia).items())],
        "User": _user_inside(wanted, facts),
        "WorkingDir": wanted.cwd,
        "Labels": dict(wanted.labels),
        "AttachStdout": True,
        "AttachStderr": True,
        "AttachStdin": wanted.input is not None,
        "OpenStdin": wanted.input is not None,
        "StdinOnce": wanted.input is not None,
        "Tty": wanted.input is InputMode.TERMINAL,
        "HostConfig": _host_config(wanted, facts, nvidia),
        **({} if wanted.port is None else {"ExposedPorts": {wanted.port.name: {}}}),
    }


def _user_inside(wanted: Wanted, facts: EngineFacts) -> str:
    """Who it runs as, so that outside it is the job's user, who alone may read its folder.

    A rootless engine has numbers of its own inside. Podman's `keep-id` makes its account the same there; of Docker's
    the account is always root there, without any of root's rights here.
    """
    if facts.is_rootless and not facts.is_podman:
        return "0:0"
    return f"{wanted.uid}:{wanted.gid}"


def environment_of(wanted: Wanted, nvidia: Sequence[str]) -> dict[str, str]:
    """Its variables. Which GPUs there are, what it is given says: a list of them beside that would number them anew."""
    env = {name: value for name, value in wanted.env.items() if name not in CHOOSES_DEVICES}
    return {**env, MARK_VARIABLE: wanted.mark, NVIDIA_VARIABLE: ",".join(nvidia) or "void"}


def _host_config(wanted: Wanted, facts: EngineFacts, nvidia: Sequence[str]) -> dict[str, Any]:
    memory = wanted.memory_bytes
    config: dict[str, Any] = {
        # As a process of the node has it: ports of a gang and those of gpuctl forward are the node's.
        "NetworkMode": "host",
        "Init": facts.has_init,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "Privileged": False,
        "AutoRemove": False,
        "RestartPolicy": {"Name": "no"},
        # The keeper has what it writes; the engine would keep it a second time, without a bound.
        "LogConfig": {"Type": "none", "Config": {}},
        "PidsLimit": wanted.processes_max,
        "NanoCpus": wanted.cpus * 1_000_000_000,
        "ShmSize": (memory or wanted.machine_memory_bytes) // SHARED_MEMORY_PART,
        "GroupAdd": [str(group) for group in wanted.groups],
        "Mounts": [_bind(mount) for mount in _mounts(wanted)],
        "Devices": [{"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rwm"} for path in wanted.nodes],
    }
    if memory:
        config |= {"Memory": memory, "MemorySwap": memory}
    if wanted.port is not None:
        config |= {
            "NetworkMode": "default",
            "PortBindings": {wanted.port.name: [{"HostIp": LOOPBACK, "HostPort": str(wanted.port.on_loopback)}]},
            # Of its own network it may take any port: images listen on 80 without asking who they run as.
            "Sysctls": {"net.ipv4.ip_unprivileged_port_start": "0"},
        }
    if facts.is_rootless and facts.is_podman:
        config["UsernsMode"] = "keep-id"
    if nvidia and facts.nvidia_by == BY_CDI and facts.is_podman:
        config["Devices"] += [{"PathOnHost": f"{CDI_KIND}={uuid}"} for uuid in nvidia]
    elif nvidia and facts.nvidia_by == BY_CDI:
        names = [f"{CDI_KIND}={uuid}" for uuid in nvidia]
        config["DeviceRequests"] = [{"Driver": "cdi", "DeviceIDs": names}]
    elif nvidia:
        config["DeviceRequests"] = [{"Driver": "nvidia", "DeviceIDs": list(nvidia), "Capabilities": [["gpu"]]}]
    return config


def _mounts(wanted: Wanted) -> list[Mount]:
    own = [(wanted.files, FILES_PATH), (wanted.home, HOME_PATH)]
    return [*(Mount(source=source, target=target) for source, target in own if source), *wanted.mounts]


def _bind(mount: Mount) -> dict[str, Any]:
    return {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": mount.is_read_only}
