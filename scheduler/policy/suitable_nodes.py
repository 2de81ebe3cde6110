"""The nodes that could ever hold a job: what all of them lack, or share, is known when the job is submitted."""

from collections.abc import Iterator, Sequence

from ..state.gpu_choice import without_gpus
from ..state.ids import UserName
from ..state.nodes import Node
from ..state.specs import JobSpec, Resources
from ..state.state import State
from .admission import minimum_memory
from .fit import could_ever_hold
from .gangs import ranks_of
from .owners import asked_by

NODES_SHOWN = 3


def suitable_nodes(state: State, user: UserName, spec: JobSpec) -> Iterator[Node]:
    """The known nodes that could ever hold a rank of a user's job, with the GPUs that it prefers or without.

    One after another: with many nodes, looking at each costs milliseconds, and the first often settles it.
    """
    asked = asked_by(state.durable, user, spec.asked).resources
    known = state.durable.nodes.values()
    ranks: set[tuple[Resources, int]] = set()
    for each in (asked, without_gpus(asked)) if spec.prefers_gpus else (asked,):
        min_memory_bytes = minimum_memory(state, each)
        ranks |= {(rank, min_memory_bytes) for rank in ranks_of(known, each, min_memory_bytes)}
    for node in known:
        if any(could_ever_hold(node, rank, min_memory_bytes) is None for rank, min_memory_bytes in ranks):
            yield node


def names_text(nodes: Sequence[Node]) -> str:
    """The first of them by name, and how many more."""
    more = f" and {len(nodes) - NODES_SHOWN} more" if len(nodes) > NODES_SHOWN else ""
    return ", ".join(sorted(node.name for node in nodes)[:NODES_SHOWN]) + more
