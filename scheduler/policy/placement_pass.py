"""A pass as it goes on: what it tries, what it gives away, what it keeps.

The scheduler's own pass, the explanation of a job and the estimates all go down the order by this, so that what
explains is what places.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import partial

from ..state.attempts import Placement
from ..state.groups.group import GroupId
from ..state.ids import JobId, NodeName, UserName
from ..state.jobs import Job, Queued
from ..state.specs import Asked, NodePins, Resources
from ..state.state import State
from ..state.units import Instant
from .admission import minimum_memory
from .caps import Caps
from .fit import NodeView, RankHold
from .gangs import Ranks, placements_for, ranks_of
from .gap import gap_hold
from .owners import as_anybodys, as_its_users
from .placement import Candidates, candidates_of, take
from .reservation import Reservation, ends_if_placed, holds_on, keep, reserve

Views = dict[NodeName, NodeView]


class PlacementPass:
    """The nodes and what users hold, after every job that was tried. `given_up` is what fits nowhere any more,
    `placed` who was placed.

    `gap` says who waits since history was cut off.
    `candidates` are those of the views, where they are known already. `holds` tells what is held on a node, and until
    when; by default what the state says and what the trial gave away. A replay of later moments has its own, and there
    the claims of this moment are over.
    """

    def __init__(
        self,
        state: State,
        views: Views,
        at: Instant,
        caps: Caps | None = None,
        holds: Callable[[NodeView], list[RankHold]] | None = None,
        candidates: Candidates | None = None,
    ) -> None:
        self.views = views
        self.caps = Caps(state, at) if caps is None else caps
        self.given_up: set[Asked | tuple[UserName, Asked] | tuple[GroupId, Asked] | JobId] = set()
        self.placed: set[JobId] = set()
        self.state = state
        self.at = at
        self.gap = gap_hold(state, at)
        self._holds = partial(holds_on, state.durable) if holds is None else holds
        self._has_kept = False
        self._given: list[Job] = []
        self._ranks: dict[Resources, Ranks] = {}
        if holds is None:
            self._keep_claims()
        self._candidates = candidates_of(views, state.limits.node_order) if candidates is None else candidates

    def in_order(self, order: Iterable[Job], but: Job | None = None) -> Iterator[Job]:
        """The jobs that are tried, as they stand in line; first those to which a place was given, where it is free now.

        Of what they ask for others may have been refused, which is given up then. `but` is not among the first.
        """
        for job in self._given:
            is_held = self.gap is not None and self.gap.holds(job)
            if (but is None or job.id != but.id) and not is_held and self.fits(job):
                yield job
        for job in order:
            if job.id not in self.placed:
                yield job

    def place(self, job: Job) -> tuple[Placement, ...] | None:
        """Place all ranks of a job, or give up what it asks for: for an array, user or group at a cap, else for all."""
        job = as_its_users(self.state.durable, job)
        if job.array is not None and self.caps.array_refusal(job):
            self.given_up.add(job.array)
            return None
        if self.caps.refusal(job):
            self.given_up.add((job.user, as_anybodys(job.spec.asked)))
            return None
        if job.group and self.caps.of_groups.is_over(job):
            self.given_up.add((job.group, as_anybodys(job.spec.asked)))
            return None
        ends_at = ends_if_placed(job, self.at)
        minimum = minimum_memory(self.state, job.spec.resources)
        placements = self._where_it_was(job, minimum, ends_at)
        if placements is None:
            placements = placements_for(self._candidates, job, self.ranks_of(job), minimum, ends_at)
        if placements is None:
            self.given_up.add(job.spec.asked)
            return None
        for placement in placements:
            take(self.views[placement.node], placement, job.id, ends_at)
        self.caps.take(job)
        self.placed.add(job.id)
        return placements

    def wait_behind(self, job: Job) -> None:
        """A job that was not placed waits in a node's backlog: what it asks for is not given up."""
        self.given_up.discard(job.spec.asked)
        self.caps.take(job)
        self.placed.add(job.id)

    def _where_it_was(self, job: Job, minimum: int, ends_at: Instant | None) -> tuple[Placement, ...] | None:
        """A worker that is started again goes to the devices that it had, where they are free: it ran there."""
        resources = job.spec.resources
        if not job.spec.serves or not job.past or resources.pins or resources.share_milli or not resources.gpus:
            return None
        last = job.past[-1].ranks[0].placement
        indices = tuple(device.index for device in last.devices)
        pinned = replace(resources, pins=(NodePins(node=last.node, indices=indices),))
        again = replace(job, spec=replace(job.spec, resources=pinned))
        found = placements_for(self._candidates, again, self.ranks_of(again), minimum, ends_at)
        return None if found is None else tuple(replace(each, method=last.method) for each in found)

    def fits(self, job: Job) -> bool:
        """Whether a node could take a job that needs only one, with caps aside."""
        minimum = minimum_memory(self.state, job.spec.resources)
        return next(self._candidates.nodes_for(job, minimum, ends_if_placed(job, self.at)), None) is not None

    def kind(self, view: NodeView) -> int:
        """A number that nodes share which could ever hold the same, names aside."""
        return self._candidates.kind(view)

    def ranks_of(self, job: Job) -> Ranks:
        """What each rank of a job asks for."""
        resources = job.spec.resources
        ranks = self._ranks.get(resources)
        if ranks is None:
            nodes = (view.node for view in self.views.values())
            ranks = self._ranks[resources] = ranks_of(nodes, resources, minimum_memory(self.state, resources))
        return ranks

    def node_kept_for(self, job: Job) -> NodeName | None:
        """The node on which room is kept for a job that needs one node, or would be as the first to wait, if any.

        Asked of a pass that has not placed the job.
        """
        kept = next((name for name, view in self.views.items() if view.kept_for == job.id), None)
        if kept is not None or self._has_kept:
            return kept
        reservation = self.soonest(job)
        return None if reservation is None else reservation.kept[0].node

    def is_first_to_wait(self, job: Job) -> bool:
        """Whether a job that was not placed is the one to reserve for: nobody is, and its user is not over a cap."""
        return not self._has_kept and job.spec.asked in self.given_up

    def keep_for(self, job: Job, nodes: Collection[NodeName] = ()) -> None:
        """Reserve for the first that waits, on one of these nodes, by default of all, and keep that from the others."""
        if self.is_first_to_wait(job):
            reservation = self.soonest(job, nodes)
            if reservation is not None:
                keep(self.views, reservation)
                self._has_kept = True

    def soonest(self, job: Job, nodes: Collection[NodeName] = ()) -> Reservation | None:
        """Where and when a job fits soonest."""
        ranks, minimum = self.ranks_of(job), minimum_memory(self.state, job.spec.resources)
        # A gang may begin on nodes that are free beside those.
        views = {name: self.views[name] for name in nodes} if nodes and len(ranks) == 1 else self.views
        return reserve(views, job, ranks, minimum, self.at, self._holds)

    def _keep_claims(self) -> None:
        """Keep for each waiting job the places that others are being taken off for it, until the last has gone.

        And those that programs leave to others of their group, as they go to sleep.
        """
        durable = self.state.durable
        for claimant, victims in durable.claims.items():
            job = self._waiting(claimant)
            if job is None:
                continue
            stopping = [durable.jobs[victim].attempt for victim in victims]
            nodes = {rank.placement.node for attempt in stopping if attempt is not None for rank in attempt.ranks}
            self._keep_claim(job, nodes)
        for given in self.state.live.turns.given.values():
            job = self._waiting(given.to)
            # As long as all of them hold what they give, there is nothing to be kept.
            is_some_free = any((by := durable.jobs.get(each)) is None or by.attempt is None for each in given.by)
            if is_some_free and job is not None and self.at < given.until:
                self._keep_claim(job, given.nodes)
                self._given.append(job)

    def _waiting(self, job_id: JobId) -> Job | None:
        job = self.state.durable.jobs.get(job_id)
        if job is None or not isinstance(job.state, Queued):
            return None
        return as_its_users(self.state.durable, job)

    def _keep_claim(self, job: Job, nodes: Collection[NodeName]) -> None:
        known = self.views.keys() & nodes
        reservation = self.soonest(job, known) if known else None
        if reservation is not None:
            keep(self.views, reservation)
