"""The environment of a rank: what the submitter gave, what the account adds, what the placement fixes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

PATH_DEFAULT = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Where commands are looked up when the submitter sent no PATH."""

LANG_DEFAULT = "C.UTF-8"

CHOOSES_DEVICES = frozenset(
    {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"}
)
"""Never taken from the submitter: with --env-all they would choose, by the numbers of another machine, among the
devices that the job was given, and leave it none."""


TELLS_OF_SHARES = frozenset({"GPUFLEET_GPU_SHARE", "GPUFLEET_GPU_MEMORY_BYTES"})
"""Never taken from the submitter either, who may be a job with a share itself."""

OF_THE_NODE = frozenset(
    {
        "GPUFLEET_FILES",
        "GPUFLEET_ENVIRONMENT",
        "GPUFLEET_CPUS_PER_NODE",
        "GPUFLEET_END_TIME",
        "GPUFLEET_SCHEDULER",
        "GPUFLEET_CA_FILE",
        "GPUFLEET_CLIENT_CERT_FILE",
        "GPUFLEET_INSECURE",
    }
)
"""Nor these: what it has there, when it ends and how it finds its scheduler is for the node to say. The token comes
with the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The account that runs the job."""

    name: str
    home: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """One rank and its surroundings, as its environment tells them.

    `visibility` is what shows the rank its own devices and hides all others. `master_address` and
    `master_port` are where rank 0 listens for the others of its gang; a single rank has them on its own
    machine. `share_milli` is how much of each device it holds, in thousandths, and `share_memory_bytes` how much of
    its memory; 0 for whole devices. Nothing keeps it within its share: it is told, so that it can do so itself. That
    goes for `cpus`, too: those that are held for it on this node, 0 for none.
    `way` is what it is told of the way to the scheduler, and `end_time_s` when its time limit ends it, in seconds since
    1970 by this machine's clock; None without a limit. `files_folder` is where the files are that go with it, if any,
    and `environment` the environment that it begins in; `is_conda` says of which kind that is.
    """

    job_id: int
    attempt: int
    rank: int
    node_count: int
    visibility: Mapping[str, str]
    device_count: int
    virtual_uuids: tuple[str, ...]
    master_address: str
    master_port: int
    traceparent: str
    share_milli: int = 0
    share_memory_bytes: int = 0
    cpus: int = 0
    way: Mapping[str, str] = field(default_factory=dict)
    end_time_s: int | None = None
    files_folder: str = ""
    environment: str = ""
    is_conda: bool = False


_NOT_TAKEN = CHOOSES_DEVICES | TELLS_OF_SHARES | OF_THE_NODE


def environment_of(submitted: Mapping[str, str], account: Account, place: RankPlace) -> dict[str, str]:
    """The whole environment of a rank's process; nothing of the agent's own environment is in it.

    Defaults give way to what was submitted with --env. What the placement fixes does not: a job that
    overwrote its devices would work on those of others. Rule: docs/rules/jobs.md 3.13.
    """
    wanted = {name: value for name, value in submitted.items() if name not in _NOT_TAKEN}
    variables = {**_defaults(account), **wanted, **_fixed(place)}
    return (
        {**variables, **activated(variables, place.environment, is_conda=place.is_conda)}
        if place.environment
        else variables
    )


def activated(variables: Mapping[str, str], folder: str, *, is_conda: bool) -> dict[str, str]:
    """The variables that make an environment the one that is used: its programs are found first."""
    return {
        "GPUFLEET_ENVIRONMENT": folder,
        "PATH": f"{folder}/bin:{variables.get('PATH', PATH_DEFAULT)}",
        "CONDA_PREFIX" if is_conda else "VIRTUAL_ENV": folder,
    }


def environment_in_container(submitted: Mapping[str, str], account: Account, place: RankPlace) -> dict[str, str]:
    """The same of a rank in a container, whose image says where its programs are, and whose engine gives it devices."""
    wanted = {name: value for name, value in submitted.items() if name not in _NOT_TAKEN}
    usual = {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "PYTHONUNBUFFERED": "1"}
    return {**usual, **wanted, **_fixed(replace(place, visibility={}))}


def _defaults(account: Account) -> dict[str, str]:
    return {
        "PATH": PATH_DEFAULT,
        "LANG": LANG_DEFAULT,
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        # A training loop's last lines must not sit in a buffer when the process is killed.
        "PYTHONUNBUFFERED": "1",
    }


def _fixed(place: RankPlace) -> dict[str, str]:
    fixed = {
        "GPUFLEET_JOB_ID": str(place.job_id),
        "GPUFLEET_ATTEMPT": str(place.attempt),
        "GPUFLEET_NODE_RANK": str(place.rank),
        "GPUFLEET_NNODES": str(place.node_count),
        "GPUFLEET_GPUS_PER_NODE": str(place.device_count),
        **({"GPUFLEET_CPUS_PER_NODE": str(place.cpus)} if place.cpus else {}),
        "NODE_RANK": str(place.rank),
        "NNODES": str(place.node_count),
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": str(place.master_port),
        **place.visibility,
    }
    if place.virtual_uuids:
        fixed["GPUFLEET_VIRTUAL_GPUS"] = ",".join(place.virtual_uuids)
    if place.share_milli:
        fixed["GPUFLEET_GPU_SHARE"] = f"{place.share_milli / 1000:g}"
        fixed["GPUFLEET_GPU_MEMORY_BYTES"] = str(place.share_memory_bytes)
    if place.traceparent:
        fixed["TRACEPARENT"] = place.traceparent
    if place.files_folder:
        fixed["GPUFLEET_FILES"] = place.files_folder
    if place.end_time_s is not None:
        fixed["GPUFLEET_END_TIME"] = str(place.end_time_s)
    return {**fixed, **place.way}
