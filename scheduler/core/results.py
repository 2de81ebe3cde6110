"""What jobs leave: awaited from the end of each rank on, until it is stored, not wanted, or known to be lost.

A job's end does not wait for it, as its devices are free and its exit code is known; that something is still to come
is kept as long as it is true. Rule: docs/rules/jobs.md 4.58.
"""

from collections.abc import Iterable, Iterator

from ..state.attempts import Attempt, EndedAttempt
from ..state.events import InventoryReported, ResultsReported
from ..state.ids import NodeName, RankKey
from ..state.records import AttemptEnded, JobFinished, RankEnded, Record, ResultsSettled
from ..state.results import ResultsOutcome, due_with
from ..state.state import State
from ..state.units import MINUTE, Instant, Span, after
from .decision import Decision
from .kept import kept_by_end

LOST_AFTER = Span(15 * MINUTE)
"""What a rank left counts as lost when its node was not heard for so long. It may still come, with its node."""


def on_results_reported(state: State, event: ResultsReported) -> Decision:
    """What a node brought is stored, is not wanted, or was given up there."""
    settled = ResultsSettled(
        at=event.at,
        key=event.key,
        outcome=event.outcome,
        file_count=event.file_count,
        size_bytes=event.size_bytes,
        message=event.message,
    )
    return Decision(records=(*kept_by_end(state, event), settled))


def missing_from(state: State, event: InventoryReported, decided: Iterable[Record]) -> Iterator[Record]:
    """What a node was to bring of ranks that it no longer knows; `decided` is what else its inventory means."""
    known = {key for key, _ in event.entries}
    for key in _awaited_on(state, event.node, decided):
        if key not in known:
            yield _lost(event.at, key, f"node {event.node} has nothing of it any more")


def lost_with(state: State, at: Instant, node: NodeName, why: str, decided: Iterable[Record] = ()) -> Iterator[Record]:
    """All that a node was to bring, also of ranks that end by what is `decided` now."""
    return (_lost(at, key, why) for key in _awaited_on(state, node, decided))


def _awaited_on(state: State, node: NodeName, decided: Iterable[Record]) -> Iterator[RankKey]:
    """The ranks whose results are awaited of a node once these records are applied."""
    for due in state.durable.results_due.values():
        yield from due.on(node)
    for record in decided:
        match record:
            case RankEnded(key=key):
                ended: Attempt | EndedAttempt | None = state.durable.jobs[key.job].attempt
                ranks = [key.rank]
                job = state.durable.jobs[key.job]
            case AttemptEnded(job=job_id, ended=ended) | JobFinished(job=job_id, ended=ended) if (
                job_id in state.durable.jobs
            ):
                job = state.durable.jobs[job_id]
                before = () if job.attempt is None else job.attempt.ranks
                ranks = [number for number, rank in enumerate(before) if rank.exit is None]
            case _:
                continue
        due_now = due_with(None, job.id, ended, ranks, record.at) if ended is not None and job.spec.leaves else None
        yield from () if due_now is None else due_now.on(node)


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
