"""What changed for those who watch nodes and workers: what a commit took or gave back, and who is heard otherwise."""

from collections.abc import Iterable

from .ports import Commit
from .state.durable import Durable
from .state.events import ClockAdvanced, Event, InventoryReported, NodeBeat, NodeDisconnected, SchedulerStarted
from .state.ids import JobId, NodeName, RankKey
from .state.indexes.equal_jobs import EqualJobs
from .state.jobs import Items, Job, Tally, live_ranks
from .state.live import Live
from .state.nodes import Node, Reachability
from .state.sessions.events import WorkerState
from .state.sessions.session import Model, ModelName, WorkerId
from .state.sessions.turns import Note, Settled, Turns


def changed_nodes(commit: Commit) -> set[NodeName]:
    """The nodes whose own record a commit changes or drops. (What jobs hold on them: `holds`.)"""
    nodes = {entity.name for entity in commit.upserts if isinstance(entity, Node)}
    return nodes | {NodeName(name) for kind, name in commit.deletes if kind == "node"}


def changed_jobs(commit: Commit, view: Durable) -> tuple[Job | EqualJobs, ...]:
    """The jobs that a commit made or changed. Equal ones are told once, when they come; what is left of them is known.

    Of an array's items those that stand for themselves; the array itself: `changed_arrays`. Ask before the commit is
    shown in the view.
    """
    changed = (
        entity
        for entity in commit.upserts
        if (isinstance(entity, Job) and entity.items is None)
        or (
            isinstance(entity, EqualJobs)
            and entity.first.array is None
            and view.jobs.equals_from(entity.first.id) is None
        )
    )
    return (*changed, *(job for job in commit.finished if job.items is None))


def changed_arrays(commit: Commit, view: Durable) -> tuple[Job, ...]:
    """The arrays that a commit changed, or their counts. Ask when the commit is shown in the view."""
    touched: dict[JobId, Job | None] = {}
    for entity in (*commit.upserts, *commit.finished):
        match entity:
            case Job(items=Items()):
                touched[entity.id] = entity
            case Job(array=int(array)) | Tally(array=array) | EqualJobs(first=Job(array=int(array))):
                touched.setdefault(array, view.jobs.get(array))
            case _:
                pass
    return tuple(job for job in touched.values() if job is not None)


def holds(view: Durable, commit: Commit) -> set[tuple[RankKey, NodeName]]:
    """What the jobs of a commit hold in a view, rank by rank; it differs before and after the commit is shown."""
    jobs = [entity.id for entity in commit.upserts if isinstance(entity, Job)]
    jobs += [job.id for job in commit.finished]
    found = (view.jobs.get(job) for job in jobs)
    return {
        (key, rank.placement.node)
        for job in found
        if job is not None and job.attempt is not None
        for key, rank in live_ranks(job, job.attempt)
    }


def changed_models(commit: Commit) -> tuple[ModelName, ...]:
    """The models that a commit changes or drops."""
    changed = [entity.name for entity in commit.upserts if isinstance(entity, Model)]
    return (*changed, *(ModelName(name) for kind, name in commit.deletes if kind == "model"))


def jobs_of(durable: Durable, ids: Iterable[JobId]) -> tuple[Job, ...]:
    """The jobs of these ids that there are, each once, to be told again; with an item comes its array."""
    found: dict[JobId, Job] = {}
    for job_id in ids:
        job = durable.jobs.get(job_id)
        array = None if job is None or job.array is None else durable.jobs.get(job.array)
        found.update((each.id, each) for each in (job, array) if each is not None)
    return tuple(found.values())


class Blocked:
    """Whose output waited for room on a node when it was last looked at, and why."""

    def __init__(self) -> None:
        self._known: dict[RankKey, str] = {}

    def changed(self, live: Live, durable: Durable) -> tuple[Job, ...]:
        """The jobs of which that is otherwise now."""
        if live.blocked == self._known:
            return ()
        before, self._known = self._known, dict(live.blocked)
        return jobs_of(durable, sorted({key.job for key, _ in before.items() ^ self._known.items()}))


class ReachabilityTracker:
    """How each node was heard when it was last looked at."""

    def __init__(self) -> None:
        self._known: dict[NodeName, tuple[Reachability, bool]] = {}
        self._doubtful: set[NodeName] = set()

    def note(self, name: NodeName) -> None:
        """A node was heard out of turn."""
        self._doubtful.add(name)

    def changed(self, live: Live, events: Iterable[Event]) -> tuple[NodeName, ...]:
        """The nodes that these events made to be heard otherwise, by name."""
        names, self._doubtful = self._doubtful, set()
        for event in events:
            match event:
                case NodeBeat(node=name) | InventoryReported(node=name) | NodeDisconnected(node=name):
                    names.add(name)
                case ClockAdvanced() | SchedulerStarted():
                    names.update(live.nodes, self._known)
                case _:
                    pass
        return tuple(name for name in sorted(names) if self._has_changed(live, name))

    def _has_changed(self, live: Live, name: NodeName) -> bool:
        node = live.nodes.get(name)
        before = self._known.pop(name, None)
        if node is None:
            return False
        self._known[name] = (node.reach, node.is_connected)
        return before != self._known[name]


WorkersOfModel = tuple[tuple[WorkerId, str, WorkerState, int], ...]
"""Of each worker of a model: which it is, where, whether it takes turns, and how many."""


def workers_of_model(turns: Turns, model: ModelName) -> WorkersOfModel:
    """The workers of a model, as far as those want to know who open turns there."""
    found = sorted(turns.workers_of(model), key=lambda worker: worker.id)
    return tuple((worker.id, worker.endpoint, worker.state, worker.seats) for worker in found)


class WorkerTracker:
    """The workers of each model as they were when its line was last seen to: whatever changes them has that done."""

    def __init__(self) -> None:
        self._known: dict[ModelName, WorkersOfModel] = {}

    def changed(self, turns: Turns, notes: Iterable[Note]) -> tuple[ModelName, ...]:
        """The models whose workers these notes' models have otherwise than before."""
        models = [model for note in notes if isinstance(note, Settled) for model in note.models]
        return tuple(model for model in dict.fromkeys(models) if self._has_changed(turns, model))

    def _has_changed(self, turns: Turns, model: ModelName) -> bool:
        before, now = self._known.pop(model, ()), workers_of_model(turns, model)
        if now:
            self._known[model] = now
        return before != now
