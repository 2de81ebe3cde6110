"""What a pass remembers of the nodes for the next one, so that it looks anew only at those that changed.

It never changes what a pass decides: `brought_up_to` gives what a fresh look would (tests/core/fleet.py compares the
two at every turn). A view is made again when anything that it was made of is another (`facts_of`), when time alone has
changed what it says (`_good_until`), or when the last pass took or kept something of it.
"""

from dataclasses import dataclass, field

from ..state.durable import Durable
from ..state.ids import NodeName
from ..state.limits import Limits
from ..state.live import NodeLive, silent_from
from ..state.nodes import Node
from ..state.state import State
from ..state.units import NEVER, Instant
from .fit import NodeChanges, NodeView, disk_free_bytes, node_view
from .placement import Candidates
from .placement_pass import PlacementPass


@dataclass(frozen=True, slots=True)
class _Look:
    """What a node's view was made of, which version it was, and until when it says the same."""

    facts: tuple[object, ...]
    version: int
    good_until: Instant


@dataclass(slots=True)
class NodeCache:
    """The nodes as the last pass left them. One for each state that passes are run on; it belongs to who runs them."""

    views: dict[NodeName, NodeView] = field(default_factory=dict)
    last_pass: PlacementPass | None = None
    """The last pass as it ended: good for answers until the next one begins."""
    _looks: dict[NodeName, _Look] = field(default_factory=dict)
    _changes: NodeChanges = field(default_factory=NodeChanges)
    _candidates: Candidates | None = None
    _of: tuple[Durable, Limits] | None = None
    _at: Instant = Instant(0)

    def brought_up_to(self, state: State, at: Instant) -> Candidates:
        """The nodes as a pass at this instant sees them: `views` by name in order, and who of them takes what."""
        nodes = state.durable.nodes
        if self._of is None or self._of[0] is not state.durable or self._of[1] is not state.limits or at < self._at:
            self._start_over(state)
        if self.views.keys() != nodes.keys():
            self._come_and_go(state, at)
        self._at = at
        for name, node in nodes.items():
            look = self._looks.get(name)
            facts = facts_of(state, node, at)
            if look is None or look.version != self.views[name].version or at >= look.good_until or look.facts != facts:
                view = self.views[name] = node_view(state, node, at, self._changes)
                live = state.live.nodes.get(name)
                self._looks[name] = _Look(facts, view.version, _good_until(view, live, state.limits, at))
        if self._candidates is None:
            self._candidates = Candidates(self.views, self._changes, state.limits.node_order)
        self._candidates.begin_pass()
        return self._candidates

    def _start_over(self, state: State) -> None:
        self._of = (state.durable, state.limits)
        self._changes = NodeChanges()
        self._candidates = None
        self.last_pass = None
        self.views.clear()
        self._looks.clear()

    def _come_and_go(self, state: State, at: Instant) -> None:
        """Take in the nodes that are new, and drop those that are gone."""
        nodes = state.durable.nodes
        for name in self.views.keys() - nodes.keys():
            self._changes.note(name)
            self._looks.pop(name, None)
        kept = {
            name: self.views.get(name) or node_view(state, nodes[name], at, self._changes) for name in sorted(nodes)
        }
        self.views.clear()
        self.views.update(kept)


def facts_of(state: State, node: Node, at: Instant) -> tuple[object, ...]:
    """All that `node_view` makes a view of, as values that are cheap to compare; what time alone changes aside."""
    hold, live = state.durable.holds.get(node.name), state.live.nodes.get(node.name)
    held = 0 if hold is None else hold.version
    if live is None:
        return (node, held, None)
    return (
        node,
        held,
        live.is_connected and live.has_inventory and silent_from(state.limits, live) > at,
        live.left_out_until > at,
        tuple(live.lingering),
        tuple(live.devices_left_out.items()),
        tuple(live.samples.values()),
        disk_free_bytes(live),
    )


def _good_until(view: NodeView, live: NodeLive | None, limits: Limits, at: Instant) -> Instant:
    """When a view made at this instant may say something else although nothing has happened."""
    if live is None:
        return NEVER
    ends = [until for until in live.devices_left_out.values() if until > at]
    ends += [
        Instant(free.sample.taken_at + limits.sample_age + 1)
        for free in view.devices
        if free.sample is not None and not free.device.is_virtual and free.sample.taken_at + limits.sample_age >= at
    ]
    return min(ends, default=NEVER)
