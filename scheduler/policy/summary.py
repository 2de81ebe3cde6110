"""Why a job waits in the fewest words that are true, for a column of a table; `explain.py` has the whole sentence."""

from ..state.jobs import Job
from ..state.shares import share_text
from ..state.specs import EndWanted, Resources
from .explain import ARRAY_CAP, KEPT_FILES, NEXT_PASS, STARTING, STORE_GAP, USER_CAP, WaitReason
from .fit import NODE_CANNOT_START, memory_text
from .groups.caps import GROUP_CAP, GROUP_HOURS

AFTER_SHOWN = 2
"""Jobs that it waits for which are named."""

AFTER_WORDS = {EndWanted.OK: "", EndWanted.ANY: " ends", EndWanted.FAIL: " fails"}


WORDS = {
    "HELD": "held",
    "BEGIN_TIME": "begins later",
    KEPT_FILES: "what it keeps is being stored",
    "NO_NODES": "no node has registered",
    "NEVER_FITS": "fits no node",
    NEXT_PASS: "starts in a moment",
    USER_CAP: "{user} has as much as one user may",
    ARRAY_CAP: "its array runs as many as it may",
    GROUP_CAP: "its group has as much as it may",
    GROUP_HOURS: "its group has used its GPU-hours of the week",
    STORE_GAP: "nodes may run it already",
}
"""What a reason says that is not one node's."""


def summary(job: Job, reason: WaitReason) -> str:
    """Why a job waits: `waits for 2 GPUs on node1`, `held`, `after 41`, `node1 drains`."""
    if reason.name == "DEPENDENCY":
        return _after(job)
    words = WORDS.get(reason.name)
    return _of_node(job.spec.resources, reason) if words is None else words.format(user=job.user)


def _after(job: Job) -> str:
    shown = ", ".join(f"{each.job}{AFTER_WORDS[each.wanted]}" for each in job.unmet[:AFTER_SHOWN])
    more = len(job.unmet) - AFTER_SHOWN
    return f"after {shown} and {more} more" if more > 0 else f"after {shown}"


def _of_node(resources: Resources, reason: WaitReason) -> str:
    if reason.node is None:
        nodes = resources.node_count
        return f"waits for {nodes} nodes at once" if nodes > 1 else f"waits for {_devices(resources)} on several nodes"
    state = STATES_OF_NODES.get(reason.name, f"waits for {_wanted(resources, reason.name)} on {{node}}")
    return state.format(node=reason.node)


def _wanted(resources: Resources, name: str) -> str:
    if name == "CPUS_IN_USE":
        return f"{resources.cpus} CPU{'' if resources.cpus == 1 else 's'}"
    if name == "MEMORY_IN_USE":
        return memory_text(resources.memory_bytes)
    if name == "DEVICE_MEMORY_IN_USE":
        return "GPU memory"
    return _devices(resources)


def _devices(resources: Resources) -> str:
    if resources.share_milli:
        share = share_text(resources.share_milli)
        return f"{resources.gpus}×{share} GPU" if resources.gpus > 1 else f"{share} GPU"
    if resources.gpus:
        return f"{resources.gpus} GPU{'' if resources.gpus == 1 else 's'}"
    return f"{resources.cpus} CPU{'' if resources.cpus == 1 else 's'}"


STATES_OF_NODES = {
    STARTING: "waits on {node}",
    "DEVICE_BUSY": "GPUs of {node} are used by others",
    "SAMPLE_TOO_OLD": "GPUs of {node} were not read lately",
    NODE_CANNOT_START: "{node} could not start it",
    "DISK_IN_USE": "waits for room on the disk of {node}",
    "DEVICE_LEFT_OUT": "{node} refused a moment ago",
    "NODE_LEFT_OUT": "{node} refused a moment ago",
    "NODE_CLEANING": "{node} still ends another job",
    "NODE_NOT_HEARD": "{node} is not heard",
    "NODE_DRAINING": "{node} drains",
    "DEVICE_UNHEALTHY": "{node} has unhealthy GPUs",
    "NODE_LOST": "{node} is lost",
}
"""What keeps a node from taking the job where it is not that others have what it needs."""
