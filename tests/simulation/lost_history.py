"""What must be true of history that a store lacks which was put back: nothing of it is passed over in silence."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from gpufleet.jobs.runs import StopCause
from scheduler.state.attempts import Attempt
from scheduler.state.ids import JobId, NodeName, RankKey
from scheduler.state.records import (
    AttemptFound,
    AttemptGivenUp,
    AttemptPlaced,
    AttemptReady,
    GapNodeReported,
    JobFound,
    Record,
)
from tests.simulation.world import Broken

if TYPE_CHECKING:
    from tests.simulation.disks import SimulatedStore
    from tests.simulation.machine import Machine


class LostHistory:
    """What ran and the store lacks, since it was put back last, and of which jobs a word was said since."""

    def __init__(self, store: SimulatedStore) -> None:
        self._store = store
        self._lost: frozenset[RankKey] = frozenset()
        self.started_unknown: frozenset[tuple[JobId, int, str]] = frozenset()
        """Attempts that ran and that the store has as not yet told to start: gangs, which are not taken up."""
        self.told: set[JobId] = set()
        self.taken_up: set[JobId] = set()
        """Jobs whose attempt was found to run: it goes on, whatever its user may hold."""

    def put_back(self, ran: Iterable[RankKey]) -> None:
        """The store is an older one, and these are all that ever ran."""
        is_ready: dict[tuple[JobId, int, str], bool] = {}
        newest: dict[JobId, tuple[JobId, int, str]] = {}
        for _, record in self._store.story:
            if isinstance(record, AttemptPlaced | AttemptFound):
                name = newest[record.job] = (record.job, *named(record.attempt))
                is_ready[name] = not record.attempt.is_gang
            elif isinstance(record, AttemptReady):
                is_ready[newest[record.job]] = True
        names = {key: (key.job, *attempt_of(key)) for key in ran}
        self._lost = frozenset(key for key, name in names.items() if name not in is_ready)
        self.started_unknown = frozenset(name for name in names.values() if not is_ready.get(name, True))
        self.told.clear()

    def follow(self, together: Iterable[Record]) -> list[NodeName]:
        """Take note of what became durable together; answers the nodes that have told all that they know."""
        have_told = []
        for record in together:
            match record:
                case AttemptFound(job=job):
                    self.told.add(job)
                    self.taken_up.add(job)
                case AttemptGivenUp(key=key):
                    self.told.add(key.job)
                case JobFound(job=found):
                    self.told.add(found.id)
                case GapNodeReported(node=node):
                    have_told.append(node)
                case _:
                    pass
        return have_told

    def check_told(self, machine: Machine, has_ended: Collection[JobId]) -> None:
        """A node has told all: of what the store lacks of a job that has not ended, something is said in its story.

        Of what was ended as counting for nothing that need not be; of a gang without a job its first rank tells.
        """
        known = machine.disk.tombstones | machine.disk.records
        for key in sorted(self._lost & known.keys()):
            end = known[key].end
            counts_for_nothing = end is not None and end.stop_cause is StopCause.STALE
            is_told_by_another = key.rank > 0 and self._store.job(key.job) is None
            if counts_for_nothing or is_told_by_another:
                continue
            if key.job not in self.told and key.job not in has_ended:
                raise Broken(
                    f"{machine.name} knows of {key}, which the store lacks, and nothing is said of it", key.job
                )


def attempt_of(key: RankKey) -> tuple[int, str]:
    """What names an attempt of a job: two histories may have given one number twice."""
    return key.attempt, key.lineage


def named(attempt: Attempt) -> tuple[int, str]:
    """The same of an attempt as the store has it."""
    return attempt.number, attempt.lineage
