"""What is refused at submit: requests that the known nodes could never hold, with the nearest miss named.

With no node known yet nothing is refused for want of nodes: the job queues and says so.
"""

from difflib import get_close_matches

from ..state.ids import NodeName
from ..state.jobs import JobSpec, Resources
from ..state.replies import Refused
from ..state.state import State
from .fit import Miss, could_ever_hold, default_min_memory_bytes

NEAREST_MISSES_SHOWN = 3


def refusal(state: State, resources: Resources, field: str) -> Refused | None:
    """Why jobs that ask for this are refused, or None. `field` is the path of such a spec in the request."""
    return (
        _pins_refusal(resources, field)
        or _unknown_node(state, resources, field)
        or _unknown_model(state, resources, field)
        or _never_fits(state, resources, field)
    )


def notes_for(state: State, spec: JobSpec) -> tuple[str, ...]:
    """Things that are allowed and worth knowing."""
    if not state.durable.nodes:
        return ("no node has registered yet: the job waits until one does (start one with: gpuctl agent)",)
    return ()


def _pins_refusal(resources: Resources, field: str) -> Refused | None:
    if not resources.pins:
        return None
    pin, *others = resources.pins
    if others:
        return Refused(
            reason="NOT_BUILT",
            message="pins on more than one node are not built yet",
            field=f"{field}.pins",
            next_step="pin GPUs of one node, such as --node-gpu-ids node001:0,1",
        )
    indices = pin.indices
    if len(set(indices)) != len(indices):
        return Refused(
            reason="INVALID_ARGUMENT",
            message=f"a GPU of node {pin.node} is pinned twice: {', '.join(map(str, indices))}",
            field=f"{field}.pins[0].device_indices",
            next_step="name each GPU once",
        )
    if resources.gpus != len(indices):
        return Refused(
            reason="GPUS_DISAGREE_WITH_PINS",
            message=f"{resources.gpus} GPUs are asked for and {len(indices)} are pinned",
            field=f"{field}.devices[0].count",
            next_step=f"leave --gpus out, or say --gpus {len(indices)}",
        )
    return None


def _unknown_node(state: State, resources: Resources, field: str) -> Refused | None:
    known = state.durable.nodes
    if not known:
        return None
    named: list[tuple[str, NodeName]] = [
        *((f"{field}.pins[{number}].node", pins.node) for number, pins in enumerate(resources.pins)),
        *((f"{field}.nodelist[{number}]", name) for number, name in enumerate(resources.nodelist)),
        *((f"{field}.exclude[{number}]", name) for number, name in enumerate(resources.exclude)),
    ]
    for path, name in named:
        if name not in known:
            near = get_close_matches(name, list(known), n=1)
            meant = f"did you mean {near[0]}?" if near else f"known nodes: {_some(sorted(known))}"
            return Refused(reason="UNKNOWN_NODE", message=f"no node is called {name!r}", field=path, next_step=meant)
    return None


def _unknown_model(state: State, resources: Resources, field: str) -> Refused | None:
    if not resources.models:
        return None
    names = sorted({device.name for node in state.durable.nodes.values() for device in node.info.devices})
    if not names:
        return None
    folded = [name.casefold() for name in names]
    if any(model.casefold() in name for model in resources.models for name in folded):
        return None
    words = {word.casefold(): name for name in names for word in (name, *name.split())}
    near = get_close_matches(resources.models[0].casefold(), list(words), n=1)
    meant = f"did you mean {words[near[0]]}?" if near else f"known models: {_some(names)}"
    return Refused(
        reason="UNKNOWN_GPU_MODEL",
        message=f"no node has a GPU whose name contains {resources.models[0]!r}",
        field=f"{field}.devices[0].models",
        next_step=meant,
    )


def _never_fits(state: State, resources: Resources, field: str) -> Refused | None:
    nodes = list(state.durable.nodes.values())
    if not nodes:
        return None
    min_memory = minimum_memory(state, resources)
    misses: list[tuple[NodeName, Miss]] = []
    for node in nodes:
        miss = could_ever_hold(node, resources, min_memory)
        if miss is None:
            return None
        misses.append((node.name, miss))
    misses.sort(key=lambda each: (each[1].reason in FAR_MISSES, -each[1].nearness, each[0]))
    name, miss = misses[0]
    if miss.reason == "PIN_MISSING":
        return Refused(
            reason="UNKNOWN_DEVICE",
            message=f"node {name} {miss.clause}",
            field=f"{field}.pins[0].device_indices",
            next_step="see the GPUs of each node with: gpuctl nodes -o wide",
        )
    nearest = "; ".join(f"node {name} {miss.clause}" for name, miss in misses[:NEAREST_MISSES_SHOWN])
    more = f"; and {len(misses) - NEAREST_MISSES_SHOWN} more" if len(misses) > NEAREST_MISSES_SHOWN else ""
    return Refused(
        reason="NEVER_FITS",
        message=f"no node could ever hold this request: {nearest}{more}",
        field=FIELD_OF_MISS.get(misses[0][1].reason, "{field}").format(field=field),
        next_step="ask for less, or see what there is with: gpuctl nodes",
    )


FAR_MISSES = frozenset({"NODE_NOT_PINNED", "NODE_NOT_LISTED", "NODE_EXCLUDED", "NODE_LABEL_MISSING"})
FIELD_OF_MISS = {
    "TOO_FEW_CPUS": "{field}.cpus",
    "TOO_LITTLE_MEMORY": "{field}.memory_bytes",
    "TOO_FEW_DEVICES": "{field}.devices[0].count",
    "DEVICES_TOO_SMALL": "{field}.devices[0].min_memory_bytes",
    "MODEL_MISSING": "{field}.devices[0].models",
    "NODE_LABEL_MISSING": "{field}.node_labels",
}


def minimum_memory(state: State, resources: Resources) -> int:
    """Free memory that each device must have for this request, in bytes; 0 without devices.

    Of a share that is given by thousandths alone it is 0: how much it is differs from device to device.
    """
    if not resources.gpus:
        return 0
    if resources.min_memory_bytes is not None or resources.share_milli:
        return resources.min_memory_bytes or 0
    return default_min_memory_bytes(state)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
