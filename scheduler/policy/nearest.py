"""The nearest change of a request that would start it now: one option, changed as little as will do."""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import replace

from ..state.ids import NodeName
from ..state.jobs import Job
from ..state.shares import share_text
from ..state.specs import Resources
from ..state.state import State
from ..state.units import MB, Instant
from .admission import minimum_memory
from .fit import NodeView, memory_text
from .gangs import fit_together, ranks_of
from .reservation import ends_if_placed

SHARE_STEP = 50
"""Shares are proposed in steps of so many thousandths."""

Views = dict[NodeName, NodeView]


def nearest_change(state: State, job: Job, views: Views, at: Instant) -> str:
    """A clause such as "with --gpus 2"; empty when no single change would do. `views` as the job finds them."""

    nodes = [view.node for view in views.values()]

    def fits(resources: Resources) -> bool:
        minimum = minimum_memory(state, resources)
        ranks = ranks_of(nodes, resources, minimum)
        return fit_together(views.values(), ranks, minimum, job.id, ends_if_placed(job, at))

    return next((words for changed, words in _changes(state, job.spec.resources, fits) if fits(changed)), "")


def _changes(state: State, asked: Resources, fits: Callable[[Resources], bool]) -> Iterator[tuple[Resources, str]]:
    """Requests that differ in one thing, the one that gives up least first."""
    if asked.gpus and not asked.allow_busy:
        yield replace(asked, allow_busy=True), "with --allow-busy"
    if asked.gpus and (least := _least_memory(state, asked, fits)) is not None:
        yield replace(asked, min_memory_bytes=least), f"with --min-memory {memory_text(least).replace(' ', '')}"
    if len(asked.pins) > 1:
        free = replace(asked, pins=(), node_count=0)
        yield free, f"with --gpus {asked.gpus} in place of --node-gpu-ids"
    elif asked.pins:
        yield replace(asked, pins=()), f"with --gpus {asked.gpus} in place of --node-gpu-ids"
    if asked.node_count > 1 and not asked.pins:
        yield from _fewer_nodes(asked, fits)
    if asked.models:
        yield replace(asked, models=()), "without --gpu-model"
    if asked.nodelist:
        yield replace(asked, nodelist=()), "without --nodelist"
    if asked.node_labels:
        yield replace(asked, node_labels=()), "without --node-label"
    if asked.exclude:
        yield replace(asked, exclude=()), "without --exclude"
    if asked.cpus > 1:
        fewer = _most(asked.cpus - 1, lambda cpus: fits(replace(asked, cpus=cpus)))
        if fewer:
            yield replace(asked, cpus=fewer), f"with --cpus {fewer}"
    if asked.memory_bytes:
        yield replace(asked, memory_bytes=0), "without --memory"
    if asked.share_milli > SHARE_STEP:
        steps = _most((asked.share_milli - 1) // SHARE_STEP, lambda n: fits(replace(asked, share_milli=n * SHARE_STEP)))
        if steps:
            share = steps * SHARE_STEP
            yield replace(asked, share_milli=share), f"with --gpu-share {share_text(share)}"
    nodes = max(asked.node_count, 1)
    if asked.gpus > nodes and not asked.pins:
        fewer = _most(asked.gpus // nodes - 1, lambda gpus: fits(replace(asked, gpus=gpus * nodes)))
        if fewer:
            yield replace(asked, gpus=fewer * nodes), f"with --gpus {fewer * nodes}"


def _fewer_nodes(asked: Resources, fits: Callable[[Resources], bool]) -> Iterator[tuple[Resources, str]]:
    """As many GPUs on each of fewer nodes."""
    each = asked.gpus // asked.node_count

    def on(nodes: int) -> Resources:
        return replace(asked, node_count=nodes, gpus=each * nodes)

    fewer = _most(asked.node_count - 1, lambda nodes: fits(on(nodes)))
    if fewer:
        yield on(fewer), f"with --nodes {fewer}{f' --gpus-per-node {each}' if each else ''}"


def _least_memory(state: State, asked: Resources, fits: Callable[[Resources], bool]) -> int | None:
    """The largest --min-memory in GB below what is asked for that would do; None when not even 1 GB would."""
    gigabyte = 1_000 * MB
    most = (minimum_memory(state, asked) - 1) // gigabyte
    found = _most(most, lambda number: fits(replace(asked, min_memory_bytes=number * gigabyte)))
    return found * gigabyte or None


def _most(most: int, is_enough: Callable[[int], bool]) -> int:
    """The largest number from 1 to `most` that will do; 0 for none. What will do is all below some number."""
    return bisect_left(range(1, most + 1), True, key=lambda number: not is_enough(number))
