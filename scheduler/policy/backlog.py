"""Which waiting job is placed behind others in a slot of a node, to begin without a round trip; who is asked back.

A node starts what is in its backlog by itself when what was before it has ended, so that short jobs do not wait for a
report, a pass and a launch each time. Only the first of the order is ever placed so, where it is short by its history
or limit, in a slot of its own class, and as long as others wait behind it that ask for the same. Whoever comes to stand
before one that waits there has it asked back. Rules: docs/rules/jobs.md 2.35.
"""

from collections.abc import Iterator
from itertools import islice

from ..state.attempts import Placement
from ..state.ids import JobId, NodeName, RankKey
from ..state.indexes.slots import ClassSlots, SlotClass, goes_on, slot_class
from ..state.jobs import Job, Running
from ..state.specs import Resources
from ..state.state import State
from ..state.units import SECOND, Instant, Span
from .fit import NodeView, node_is_asked_for, own_miss
from .forecast import expected_run
from .order.queue import goes_before

SHORT_RUN = Span(1 * SECOND)
"""A job is short if it is expected to run for this at most, or may not run for longer."""

AHEAD_MAX = Span(2 * SECOND)
"""What the attempts of a slot that are before another one are expected to run for together, at most."""

SLOTS_TRIED = 16
"""Slots of a class that a pass looks at for one job, of those that have the fewest attempts."""


class Backlog:
    """What a pass places in backlogs, beside what is there; it `has_ended` once a job has to wait."""

    def __init__(self, state: State, views: dict[NodeName, NodeView], at: Instant) -> None:
        self.has_ended = False
        self._state = state
        self._views = views
        self._at = at
        self._added: dict[SlotClass, dict[RankKey, int]] = {}
        self._left: dict[SlotClass, int] = {}

    def slot_for(self, job: Job) -> tuple[RankKey, Placement] | None:
        """The slot in which a job that fits nowhere now is the next, and its placement; None: it waits in line.

        The job is as a pass tries it: with the nodes of other owners excluded.
        A slot that was answered counts as taken by it.
        """
        resources, job = job.spec.resources, self._state.durable.jobs[job.id]
        of_class = slot_class(job)
        slots = None if of_class is None else self._state.durable.slots.get(of_class)
        if of_class is None or slots is None:
            return None
        run = expected_run(self._state, job)
        if run is None or run > SHORT_RUN or self._others_in_line(job, of_class) <= len(slots.counts):
            return None
        depth = min(self._state.limits.backlog_depth, AHEAD_MAX // max(1, run))
        added = self._added.setdefault(of_class, {})
        for slot, node in self._emptiest(slots, added, depth):
            placement = self._placement_in(slot, node, of_class, resources)
            if placement is not None:
                added[slot] = added.get(slot, 0) + 1
                self._left[of_class] -= 1
                return slot, placement
        return None

    def _others_in_line(self, job: Job, of_class: SlotClass) -> int:
        """How many of its line wait yet, with itself: the last ones are left to the first slot that is free."""
        if of_class not in self._left:
            self._left[of_class] = self._state.durable.lines.count_beside(job)
        return self._left[of_class]

    def _emptiest(self, slots: ClassSlots, added: dict[RankKey, int], depth: int) -> Iterator[tuple[RankKey, NodeName]]:
        """The slots that have room behind them, those with the fewest attempts first; a few of each count."""
        for total in range(1, depth + 1):
            for count in range(1, total + 1):
                of_count = slots.by_count.get(count, {})
                newest_first = reversed(of_count.items())
                fitting = ((slot, node) for slot, node in newest_first if added.get(slot, 0) == total - count)
                yield from islice(fitting, SLOTS_TRIED)

    def _placement_in(
        self, slot: RankKey, node: NodeName, of_class: SlotClass, resources: Resources
    ) -> Placement | None:
        """The placement that the attempts of a slot have; None where another one may not wait behind them."""
        view, durable = self._views.get(node), self._state.durable
        if view is None or view.miss is not None or not view.node.keeps_backlog:
            return None
        live = self._state.live.nodes.get(node)
        if (live is not None and live.backlog_paused_until > self._at) or node_is_asked_for(view.node, resources):
            return None
        if own_miss(view, resources) is not None:
            return None
        jobs = [durable.jobs[key.job] for key in durable.hold(node).slots[slot]]
        if not all(goes_on(job) and slot_class(job) == of_class and self._is_young(job) for job in jobs):
            return None
        attempt = jobs[0].attempt
        assert attempt is not None
        placement = attempt.ranks[0].placement
        known = {free.device.uuid: free for free in view.devices}
        if any(device.uuid not in known or known[device.uuid].miss is not None for device in placement.devices):
            return None
        is_of_node = (placement.agent_id, placement.boot_id) == (view.node.agent_id, view.node.boot_id)
        return placement if is_of_node else None

    def _is_young(self, job: Job) -> bool:
        """Whether a job has neither run, nor been on its way to that, for longer than could be expected."""
        if isinstance(job.state, Running):
            return self._at - job.state.started_at <= AHEAD_MAX
        return job.attempt is not None and self._at - job.attempt.placed_at <= AHEAD_MAX


def overtaken(state: State, first: Job, at: Instant) -> list[JobId]:
    """The jobs in backlogs before which the first that has to wait stands.

    Those of its own band stay if it has slots of its own class: it is begun there soon.
    """
    of_first = slot_class(state.durable.jobs[first.id])
    has_slots = of_first is not None and of_first in state.durable.slots
    found: list[JobId] = []
    for of_class, waiting in state.durable.backlogs.items():
        oldest = state.durable.jobs[next(iter(waiting))]
        stays = has_slots and of_class.band == first.band
        if not stays and goes_before(state, first, oldest, at):
            found.extend(waiting)
    return found
