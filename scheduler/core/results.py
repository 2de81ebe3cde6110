"""What jobs leave: awaited from the end of an attempt on, until it is stored or known to be lost.

A job's end does not wait for it, as its devices are free and its exit code is known; that something is still to come
is kept as long as it is true. Rule: docs/rules/jobs.md 4.58.
"""

from collections.abc import Collection, Iterator

from ..state.events import InventoryReported, ResultsReported
from ..state.ids import NodeName, RankKey
from ..state.records import Record, ResultsSettled
from ..state.results import ResultsOutcome
from ..state.state import State
from ..state.units import MINUTE, Instant, Span, after
from .decision import Decision

LOST_AFTER = Span(15 * MINUTE)
"""What a rank left counts as lost when its node was not heard for so long. It may still come, with its node."""


def on_results_reported(event: ResultsReported) -> Decision:
    """A node has brought all that it could; what came is stored."""
    settled = ResultsSettled(
        at=event.at,
        key=event.key,
        outcome=event.outcome,
        file_count=event.file_count,
        size_bytes=event.size_bytes,
        message=event.message,
    )
    return Decision(records=(settled,))


def missing_from(state: State, event: InventoryReported, known: Collection[RankKey]) -> Iterator[Record]:
    """What a node was to bring of attempts that it knows nothing of any more."""
    for due in state.durable.results_due.values():
        for key in due.on(event.node):
            if key not in known:
                yield _lost(event.at, key, f"node {event.node} has nothing of it any more")


def lost_with(state: State, at: Instant, node: NodeName, why: str) -> Iterator[Record]:
    """All that a node was to bring."""
    for due in state.durable.results_due.values():
        for key in due.on(node):
            yield _lost(at, key, why)


def overdue(state: State, at: Instant) -> Iterator[Record]:
    """What lost nodes were to bring, once they have been silent for too long."""
    for name, lost_at in _lost_nodes(state):
        if at >= lost_at:
            yield from lost_with(state, at, name, f"node {name} was not heard for {LOST_AFTER // MINUTE} min")


def result_deadlines(state: State) -> Iterator[Instant]:
    """When time alone makes something of it count as lost."""
    return (lost_at for _, lost_at in _lost_nodes(state))


def _lost_nodes(state: State) -> Iterator[tuple[NodeName, Instant]]:
    names = {due.nodes[rank] for due in state.durable.results_due.values() for rank in due.ranks}
    for name in sorted(names):
        node, live = state.durable.nodes.get(name), state.live.nodes.get(name)
        if node is not None and node.is_lost and live is not None:
            yield name, after(live.heard_at, LOST_AFTER)


def _lost(at: Instant, key: RankKey, why: str) -> ResultsSettled:
    return ResultsSettled(at=at, key=key, outcome=ResultsOutcome.LOST, message=why)
