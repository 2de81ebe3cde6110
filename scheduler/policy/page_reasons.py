"""Why each job of a page waits, in one clause, by what the last pass left.

A pass ends with all that it gave away and kept. What it tried and could not place fits nowhere now, so that a reason is
the nearest miss among the nodes as they stand, and jobs that ask for the same share it. So a page costs what there are
classes of request on it, never a walk down the order; and nothing that it says is older than that pass.
"""

from itertools import islice

from ..state.jobs import Job
from ..state.specs import Asked, Resources
from ..state.state import State
from ..state.units import Instant
from . import explain
from .admission import minimum_memory
from .caps import Caps
from .explain import NodeVerdict, WaitReason
from .fit import Miss, NodeView, could_ever_hold, devices_free_now
from .node_cache import NodeCache
from .owners import as_its_users
from .placement import unnamed
from .placement_pass import PlacementPass
from .reservation import ends_if_placed

NODES_ASKED = 20_000
"""How often the reasons of one pass ask a node, some 50 ms; behind it a reason rests on NODES_ASKED_THEN of each class,
and says so."""
NODES_ASKED_THEN = 8

IN_USE, CPUS_IN_USE = (explain.NEARNESS.index(reason) for reason in ("DEVICES_IN_USE", "CPUS_IN_USE"))


def passed_without_consequences(state: State, at: Instant, known_nodes: NodeCache | None = None) -> PlacementPass:
    """A pass that nothing follows from, as it ended; `known_nodes` is what the last such pass remembered."""
    return next(trial for each, trial in explain.walk(state, at, None, known_nodes) if each is None)


class PassReasons:
    """The reasons by one pass, each found once; good until the next pass begins."""

    def __init__(self, trial: PlacementPass) -> None:
        self.trial = trial
        views = trial.views.values()
        self._kept = [view for view in views if view.kept_for is not None]
        self._claimants = {view.kept_for for view in self._kept}
        self._open = [view for view in views if view.miss is None]
        shut = (NodeVerdict(node=view.node.name, miss=view.miss) for view in views if view.miss is not None)
        self._shut = sorted(shut, key=explain.nearness)
        self._of_class: dict[Asked, WaitReason] = {}
        self._left = NODES_ASKED

    def of(self, job: Job, caps: Caps) -> WaitReason:
        """Why a job waits. `caps` are those of the moment: what the pass placed is counted in what users hold."""
        job = as_its_users(self.trial.state.durable, job)
        if not self.trial.views:
            return explain.NO_NODES
        over = explain.held_since_a_gap(self.trial, job) or explain.over_a_cap(caps, job)
        if over is not None:
            return over
        if job.id in self.trial.placed:
            return explain.IN_A_MOMENT
        if job.id in self._claimants:
            return self._reason(job)
        reason = self._of_class.get(job.spec.asked)
        if reason is None:
            reason = self._of_class[job.spec.asked] = self._reason(job)
        return reason

    def _reason(self, job: Job) -> WaitReason:
        trial = self.trial
        ranks = trial.ranks_of(job)
        if len(ranks) == 1:
            is_refused = job.spec.asked in trial.given_up and job.id not in self._claimants
            is_next = not is_refused and trial.fits(job)
            return explain.IN_A_MOMENT if is_next else self._reason_on_one(job, job.spec.resources)
        self._left -= len(trial.views)
        if self._left >= 0:
            return explain.main_reason(
                trial.state, trial, job, explain.verdicts_of(trial.state, trial, job, trial.at), trial.at
            )
        reason, clause, _ = self._reason_on_one(job, ranks[0])
        return WaitReason(reason, f"it needs {len(ranks)} nodes at once, and {clause}")

    def _reason_on_one(self, job: Job, resources: Resources) -> WaitReason:
        """What `main_reason` says of a job that needs this of one node, asking no more nodes than it takes to know."""
        trial = self.trial
        minimum, ends_at = minimum_memory(trial.state, resources), ends_if_placed(job, trial.at)
        if job.id in self._claimants:
            kept = next(view for view in self._kept if view.kept_for == job.id)
            miss = devices_free_now(kept, resources, minimum, job.id, ends_at)
            if isinstance(miss, Miss):
                return explain.only_nearest(NodeVerdict(node=kept.node.name, miss=miss), len(trial.views))
        of_kind: dict[int, bool] = {}
        nearest: NodeVerdict | None = None
        asked = 0
        # What is kept is nearest, and only some nodes have it; of the rest what is in use is, and most nodes say that.
        # Nodes that lack CPUs or memory say so, which is farther: they are asked when no device in use was found.
        poor: list[NodeView] = []
        is_of_devices = resources.gpus > 0
        stages = ((0, self._kept), (IN_USE if is_of_devices else CPUS_IN_USE, self._open), (CPUS_IN_USE, poor))
        for stops_at, views in stages:
            for view in views:
                if stops_at == IN_USE and (resources.cpus > view.cpus or resources.memory_bytes > view.memory_bytes):
                    poor.append(view)
                    continue
                if not self._could_hold(view, resources, minimum, of_kind):
                    continue
                if self._left <= 0 and asked >= NODES_ASKED_THEN and nearest is not None:
                    reason, clause, node = explain.only_nearest(nearest, 1)
                    return WaitReason(reason, f"{clause}, and not all of the other nodes were asked", node)
                asked, self._left = asked + 1, self._left - 1
                miss = devices_free_now(view, resources, minimum, job.id, ends_at)
                if not isinstance(miss, Miss):
                    return explain.IN_A_MOMENT
                verdict = NodeVerdict(node=view.node.name, miss=miss)
                if (stops_at or miss.reason == explain.NEARNESS[0]) and _is_nearer(verdict, nearest):
                    nearest = verdict
                if nearest is not None and explain.nearness(nearest)[0] <= stops_at:
                    return explain.only_nearest(nearest, len(trial.views))
        for verdict in self._shut:
            if nearest is not None and not _is_nearer(verdict, nearest):
                break
            if self._could_hold(trial.views[verdict.node], resources, minimum, of_kind):
                nearest = verdict
                break
        if nearest is not None:
            return explain.only_nearest(nearest, len(trial.views))
        first = [trial.views[name].node for name in islice(trial.views, explain.NEVER_TOLD)]
        lasting = ((node.name, could_ever_hold(node, resources, minimum)) for node in first)
        return explain.never_fits(tuple(NodeVerdict(node=name, miss=miss) for name, miss in lasting))

    def _could_hold(self, view: NodeView, resources: Resources, minimum: int, of_kind: dict[int, bool]) -> bool:
        """Whether a node could ever hold a request; one of each kind is asked, and who is named."""
        bare, kind = unnamed(resources), self.trial.kind(view)
        could = of_kind.get(kind)
        if could is None:
            could = of_kind[kind] = could_ever_hold(view.node, bare, minimum) is None
        return could and (bare is resources or could_ever_hold(view.node, resources, minimum) is None)


def _is_nearer(one: NodeVerdict, other: NodeVerdict | None) -> bool:
    return other is None or explain.nearness(one) < explain.nearness(other)
