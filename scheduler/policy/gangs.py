"""Requests that need several nodes: what each rank asks for, and on which nodes all of them fit together.

A gang has one rank on each of its nodes, and is placed whole or not at all. Its ranks ask for the same, or, where only
uneven nodes hold the request together, for as evenly as these can; of two that ask for different numbers of devices,
whatever holds the larger holds the smaller. So the largest is placed first, each where a single job would go.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from itertools import groupby, islice
from typing import TypeVar

from ..state.attempts import Placement
from ..state.ids import JobId, NodeName
from ..state.jobs import Job
from ..state.nodes import Node
from ..state.specs import NodePins, Resources
from ..state.units import Instant
from .fit import Miss, NodeView, could_ever_hold, devices_that_fit
from .placement import Candidates, placement_on

Ranks = tuple[Resources, ...]
"""What each rank asks of its node, the largest first; the request itself where one node is to hold it."""

T = TypeVar("T")


def ranks_of(nodes: Iterable[Node], resources: Resources, min_memory_bytes: int) -> Ranks:
    """What each rank asks for; `nodes` are all that are known, for a request that does not say how many it wants.

    One that no single node could ever hold is spread over as few as could; where none could, it stays in one piece.
    """
    if len(resources.pins) > 1:
        pinned = (_of_one_node(resources, len(pins.indices), (pins,)) for pins in resources.pins)
        return tuple(sorted(pinned, key=lambda each: (-each.gpus, each.pins[0].node)))
    if resources.node_count > 1:
        each = _of_one_node(resources, resources.gpus // resources.node_count)
        return (each,) * resources.node_count
    if resources.node_count or resources.no_span or resources.pins or resources.gpus < 2:
        return (resources,)
    return _spread(nodes, resources, min_memory_bytes)


def _of_one_node(resources: Resources, gpus: int, pins: tuple[NodePins, ...] = ()) -> Resources:
    return replace(resources, gpus=gpus, pins=pins, node_count=0, no_span=False)


def _spread(nodes: Iterable[Node], resources: Resources, min_memory_bytes: int) -> Ranks:
    most: list[int] = []
    for node in nodes:
        if could_ever_hold(node, resources, min_memory_bytes) is None:
            return (resources,)
        most.append(most_gpus(node, resources, min_memory_bytes))
    most.sort(reverse=True)
    total, used = 0, 0
    for count in most:
        if total >= resources.gpus or not count:
            break
        total, used = total + count, used + 1
    if total < resources.gpus:
        return (resources,)
    return tuple(_of_one_node(resources, gpus) for gpus in _evenly(resources.gpus, most[:used]))


def most_gpus(node: Node, resources: Resources, min_memory_bytes: int) -> int:
    """How many GPUs the node could ever give to a rank of a request that is spread."""
    counts = range(len(node.info.devices), 0, -1)
    return next(
        (gpus for gpus in counts if could_ever_hold(node, replace(resources, gpus=gpus), min_memory_bytes) is None), 0
    )


def _evenly(gpus: int, most: Sequence[int]) -> list[int]:
    """Parts of a number of devices, as even as nodes with so many at most allow; the largest first."""
    parts: list[int] = []
    left = gpus
    for nodes_left, count in zip(range(len(most), 0, -1), reversed(most), strict=True):
        part = min(count, left // nodes_left)
        parts.append(part)
        left -= part
    return sorted(parts, reverse=True)


def could_ever(nodes: Iterable[Node], ranks: Ranks, min_memory_bytes: int) -> bool:
    """Whether these nodes could hold all ranks together if they were empty and all were well."""
    by_name = sorted(nodes, key=lambda node: node.name)
    return _fit_each(by_name, ranks, lambda node, rank: could_ever_hold(node, rank, min_memory_bytes) is None)


def placements_for(
    candidates: Candidates, job: Job, ranks: Ranks, min_memory_bytes: int, ends_at: Instant | None
) -> tuple[Placement, ...] | None:
    """Where the ranks of a job go together now, in their order, or None. `ends_at` as for `devices_that_fit`.

    A node that the others cannot reach where the scheduler does is not rank 0's as long as there is another; else the
    order is that of the names.
    """
    if len(ranks) == 1:
        placement = candidates.place(job, min_memory_bytes, ends_at)
        return None if placement is None else (placement,)
    chosen: dict[NodeName, tuple[NodeView, Resources]] = {}
    for rank, alike in groupby(ranks):
        asking = replace(job, spec=replace(job.spec, resources=rank))
        able = candidates.nodes_for(asking, min_memory_bytes, ends_at)
        others = [view for view in islice(able, len(ranks)) if view.node.name not in chosen]
        count = len(list(alike))
        if len(others) < count:
            return None
        chosen.update((view.node.name, (view, rank)) for view in others[:count])
    ordered = sorted(chosen.values(), key=lambda each: (_is_loopback(each[0].node), each[0].node.name))
    return tuple(placement_on(view, rank, min_memory_bytes, job.id, ends_at) for view, rank in ordered)


def fit_together(
    views: Iterable[NodeView], ranks: Ranks, min_memory_bytes: int, job: JobId | None, ends_at: Instant | None
) -> bool:
    """Whether all ranks could be placed now. `job` and `ends_at` as for `devices_that_fit`."""

    def takes(view: NodeView, rank: Resources) -> bool:
        return not isinstance(devices_that_fit(view, rank, min_memory_bytes, job, ends_at), Miss)

    return _fit_each(views, ranks, takes)


def _fit_each(nodes: Iterable[T], ranks: Ranks, takes: Callable[[T, Resources], bool]) -> bool:
    """Whether there is a node for each rank, no node twice; of those that take a rank the first ones get it."""
    left = list(nodes)
    for rank, alike in groupby(ranks):
        count = len(list(alike))
        able = (number for number, node in enumerate(left) if takes(node, rank))
        gone = set(islice(able, count))
        if len(gone) < count:
            return False
        left = [node for number, node in enumerate(left) if number not in gone]
    return True


def _is_loopback(node: Node) -> bool:
    """Whether it dials from the scheduler's own machine, by an address that means another machine elsewhere."""
    try:
        return ip_address(node.info.advertise_address or node.address).is_loopback
    except ValueError:
        return False
