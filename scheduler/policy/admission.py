"""What is refused at submit: requests that the known nodes could never hold, with the nearest miss named.

With no node known yet nothing is refused for want of nodes: the job queues and says so.
"""

from collections.abc import Collection
from dataclasses import replace
from difflib import get_close_matches

from ..state.ids import NodeName, UserName
from ..state.nodes import Node
from ..state.replies import Refused
from ..state.specs import Asked, JobSpec, Resources
from ..state.state import State
from .fit import NO_ENGINE, NODE_OF_ANOTHER, could_ever_hold, default_min_memory_bytes
from .gangs import Ranks, could_ever, most_gpus, ranks_of
from .owners import asked_by

NEAREST_MISSES_SHOWN = 3
CLASSES_KEPT = 1_000
"""Classes of request of which it is remembered that the nodes could hold them."""


def refusal(state: State, user: UserName, asked: Asked, field: str) -> Refused | None:
    """Why a user's jobs that ask for this are refused, or None. `field` is the path of such a spec in the request."""
    asked = asked_by(state.durable, user, asked)
    # What a fleet is asked for again and again it is asked once: with many nodes, looking at each costs milliseconds.
    could_hold, wanted = state.durable.could_hold, (asked, state.limits.default_min_memory_bytes)
    if wanted in could_hold:
        return None
    resources = asked.resources
    why = (
        _pins_refusal(resources, field)
        or _unknown_node(state, resources, field)
        or _no_node_left(resources, field)
        or _unknown_model(state, resources, field)
        or never_fits(state, resources, field)
    )
    if why is None:
        if len(could_hold) >= CLASSES_KEPT:
            could_hold.clear()
        could_hold.add(wanted)
    return why


def notes_for(state: State, user: UserName, spec: JobSpec) -> tuple[str, ...]:
    """Things that are allowed and worth knowing."""
    if not state.durable.nodes:
        return ("no node has registered yet: the job waits until one does (start one with: gpuctl agent)",)
    resources = asked_by(state.durable, user, spec.asked).resources
    nodes = state.durable.nodes.values()
    ranks = ranks_of(nodes, resources, minimum_memory(state, resources))
    if len(ranks) > 1 and not resources.node_count and not resources.pins:
        return (
            f"no single node could ever hold {resources.gpus} GPUs: they are spread over {len(ranks)} nodes "
            f"({parts_text(ranks)}), and each runs one copy of the command (--no-span refuses that)",
        )
    return ()


def _pins_refusal(resources: Resources, field: str) -> Refused | None:
    if not resources.pins:
        return None

    def no(path: str, message: str, next_step: str, reason: str = "INVALID_ARGUMENT") -> Refused:
        return Refused(reason=reason, message=message, field=f"{field}.{path}", next_step=next_step)

    for number, pin in enumerate(resources.pins):
        if len(set(pin.indices)) != len(pin.indices):
            message = f"a GPU of node {pin.node} is pinned twice: {', '.join(map(str, pin.indices))}"
            return no(f"pins[{number}].device_indices", message, "name each GPU once")
        if pin.node in [other.node for other in resources.pins[:number]]:
            next_step = f"name all its GPUs at once, such as {pin.node}:0,1"
            return no(f"pins[{number}].node", f"node {pin.node} is pinned twice", next_step)
    nodes, pinned = len(resources.pins), sum(len(pin.indices) for pin in resources.pins)
    if resources.gpus != pinned:
        message = f"{resources.gpus} GPUs are asked for and {pinned} are pinned"
        next_step = f"leave --gpus out, or say --gpus {pinned}"
        return no("devices[0].count", message, next_step, "GPUS_DISAGREE_WITH_PINS")
    if resources.node_count not in (0, nodes):
        message = f"{resources.node_count} nodes are asked for and GPUs of {nodes} are pinned"
        return no("node_count", message, f"leave --nodes out, or say --nodes {nodes}")
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


def _no_node_left(resources: Resources, field: str) -> Refused | None:
    if not resources.nodelist or not set(resources.nodelist) <= set(resources.exclude):
        return None
    which = _some(sorted(set(resources.nodelist)))
    return Refused(
        reason="INVALID_ARGUMENT",
        message=f"it leaves none of the nodes of --nodelist: {which}",
        field=f"{field}.exclude",
        next_step="leave out --exclude, or name another node in --nodelist",
    )


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


def _engine_step(state: State, name: NodeName) -> str:
    """What gives a node an engine for containers, in its agent's words; empty where that says nothing."""
    containers = state.durable.nodes[name].info.containers
    fix = "" if containers is None else containers.fix.rstrip(".")
    return f"on node {name}: {fix[0].lower()}{fix[1:]}" if fix else ""


def never_fits(state: State, resources: Resources, field: str) -> Refused | None:
    """Why the nodes that there are could not hold a request even if they were empty, if so."""
    nodes = list(state.durable.nodes.values())
    if not nodes:
        return None
    min_memory = minimum_memory(state, resources)
    ranks = ranks_of(nodes, resources, min_memory)
    if could_ever(nodes, ranks, min_memory):
        return None
    misses = [
        (node.name, miss)
        for node in nodes
        if (miss := could_ever_hold(node, _least(node, ranks), min_memory)) is not None
    ]
    misses.sort(key=lambda each: (each[1].reason in FAR_MISSES, -each[1].nearness, each[0]))
    name, miss = misses[0] if misses else (NodeName(""), None)
    if miss is not None and miss.reason == "PIN_MISSING":
        pinned = next(number for number, pins in enumerate(resources.pins) if pins.node == name)
        return Refused(
            reason="UNKNOWN_DEVICE",
            message=f"node {name} {miss.clause}",
            field=f"{field}.pins[{pinned}].device_indices",
            next_step="see the GPUs of each node with: gpuctl nodes -o wide",
        )
    nearest = "; ".join(f"node {name} {miss.clause}" for name, miss in misses[:NEAREST_MISSES_SHOWN])
    more = f"; and {len(misses) - NEAREST_MISSES_SHOWN} more" if len(misses) > NEAREST_MISSES_SHOWN else ""
    path = FIELD_OF_MISS.get(miss.reason if miss is not None else "", "{field}").format(field=field)
    wide = ranks_of(nodes, replace(resources, no_span=False, node_count=0), min_memory)
    next_step = "ask for less, or see what there is with: gpuctl nodes"
    if all(miss.reason in FAR_MISSES for _, miss in misses) and any(m.reason == NODE_OF_ANOTHER for _, m in misses):
        next_step = OF_ANOTHER_STEP
    if miss is not None and miss.reason == NO_ENGINE:
        next_step = _engine_step(state, name) or next_step
    if len(ranks) > 1:
        able = len(nodes) - len(misses)
        which = f"{able} of the {len(nodes)} nodes could" if able else "no node could"
        what = f"{which} ever hold one of the {len(ranks)} ranks of this request"
        message = f"{what}{f': {nearest}{more}' if nearest else ''}"
        path = path if not able else f"{field}.node_count"
    elif len(wide) > 1:
        message = f"no single node could ever hold this request: {nearest}{more}"
        path = f"{field}.no_span" if resources.no_span else f"{field}.node_count"
        leave_out = "--no-span" if resources.no_span else "--nodes 1"
        on_each = f"it fits on {len(wide)} nodes ({parts_text(wide)}), with one copy of the command on each"
        next_step = f"{on_each}: leave out {leave_out}, or ask for less"
    else:
        spread = _not_even_spread(nodes, resources, min_memory)
        message = f"no node could ever hold this request{spread}: {nearest}{more}"
    return Refused(reason="NEVER_FITS", message=message, field=path, next_step=next_step)


def _least(node: Node, ranks: Ranks) -> Resources:
    """The rank that a node could take soonest: its pins', else the one that asks for least."""
    return next((rank for rank in ranks if any(pins.node == node.name for pins in rank.pins)), ranks[-1])


def _not_even_spread(nodes: Collection[Node], resources: Resources, min_memory_bytes: int) -> str:
    """What all nodes together could give, where the request may be spread over them and is still too large."""
    if resources.no_span or resources.node_count or resources.pins or resources.gpus < 2:
        return ""
    having = [count for node in nodes if (count := most_gpus(node, resources, min_memory_bytes))]
    return f", not even spread over {len(having)} nodes ({sum(having)} GPUs in all)" if len(having) > 1 else ""


def parts_text(ranks: Ranks) -> str:
    """The GPUs of each rank: 8 on each, or 8 + 4."""
    counts = [rank.gpus for rank in ranks]
    return f"{counts[0]} on each" if len(set(counts)) == 1 else " + ".join(map(str, counts))


FAR_MISSES = frozenset({"NODE_NOT_PINNED", "NODE_NOT_LISTED", "NODE_EXCLUDED", "NODE_LABEL_MISSING", NODE_OF_ANOTHER})
OF_ANOTHER_STEP = (
    "ask its owner: an agent that is root can keep users apart (docs/isolation.md), and one that was started with "
    "--shared-account runs the jobs of all as its own account"
)
FIELD_OF_MISS = {
    "TOO_FEW_CPUS": "{field}.cpus",
    "TOO_LITTLE_MEMORY": "{field}.memory_bytes",
    "TOO_FEW_DEVICES": "{field}.devices[0].count",
    "DEVICES_TOO_SMALL": "{field}.devices[0].min_memory_bytes",
    "MODEL_MISSING": "{field}.devices[0].models",
    "NODE_LABEL_MISSING": "{field}.node_labels",
    "SHARED_ROOT_MISSING": "{field}.files",
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
