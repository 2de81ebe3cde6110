"""Changes for those who watch: coalesced by key for a slow reader, resumable for a lost one."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from .engine import Changes
from .listeners import Listeners, add, drop
from .state.ids import JobId, NodeName
from .state.indexes.equal_jobs import EqualJobs
from .state.jobs import Job
from .state.sessions.session import ModelName

CHANGES_KEPT = 10_000
"""Changes that a lost watcher can catch up with; beyond them it gets RESYNC and a full picture."""
PENDING_PER_WATCHER = 2_000
"""Keys that may wait for a slow watcher; beyond them it gets RESYNC and a full picture."""

Key = tuple[str, int | str]
Change = Job | EqualJobs | NodeName
"""What changed: a job, equal ones that came, or the node of that name."""


@dataclass(slots=True, eq=False)
class Watcher:
    """One reader: the newest value of each key that it has not taken yet.

    Of the items of arrays it is told those in `items`; of all others their array's own change tells.
    """

    items: frozenset[JobId] = frozenset()
    pending: OrderedDict[Key, tuple[int, Change]] = field(default_factory=OrderedDict)
    wakeup: asyncio.Event = field(default_factory=asyncio.Event)
    must_resync: bool = False

    def put(self, number: int, key: Key, value: Change) -> None:
        """Note a change; an older one of the same key is replaced."""
        if isinstance(value, Job) and value.array is not None and value.id not in self.items:
            return
        if len(self.pending) >= PENDING_PER_WATCHER and key not in self.pending:
            self.pending.clear()
            self.must_resync = True
        if not self.must_resync:
            self.pending.pop(key, None)
            self.pending[key] = (number, value)
        self.wakeup.set()

    def begin_anew(self) -> None:
        """Forget what was not taken: the reader gets a full picture of this moment."""
        self.pending.clear()
        self.must_resync = False


class ChangeHub:
    """Numbers every change within a term and hands it to the watchers."""

    def __init__(self, term: int) -> None:
        self.term = term
        self.number = 0
        self._kept: deque[tuple[int, Key, Change]] = deque(maxlen=CHANGES_KEPT)
        self._watchers: Listeners[Watcher] = Listeners()
        self._waiting: dict[JobId, Listeners[asyncio.Event]] = {}
        self._watching_workers: dict[ModelName, Listeners[asyncio.Event]] = {}
        self.node_listeners: Listeners[Callable[[NodeName], None]] = Listeners()

    def publish(self, changes: Changes) -> None:
        """Hand out what a commit changed."""
        for job in changes.jobs:
            if isinstance(job, EqualJobs):
                self._publish_one(("equal_jobs", job.first.id), job)
                continue
            self._publish_one(("job", job.id), job)
            for event in self._waiting.get(job.id, ()):
                event.set()
        for model in changes.models:
            for event in self._watching_workers.get(model, ()):
                event.set()
        for node in changes.nodes:
            self._publish_one(("node", node), node)
            for listener in tuple(self.node_listeners):
                listener(node)

    def _publish_one(self, key: Key, value: Change) -> None:
        self.number += 1
        self._kept.append((self.number, key, value))
        for watcher in self._watchers:
            watcher.put(self.number, key, value)

    def join(self, items: Iterable[JobId] = ()) -> Watcher:
        """A new watcher, which gets everything from now on, of items of arrays these."""
        watcher = Watcher(items=frozenset(items))
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        """The watcher is gone."""
        self._watchers.discard(watcher)

    def since(self, term: int, number: int) -> list[tuple[int, Change]] | None:
        """What changed after a number, the newest value of each key, or None when that is no longer known."""
        oldest = self.number + 1 - len(self._kept)
        if term != self.term or not oldest - 1 <= number <= self.number:
            return None
        newest: dict[Key, tuple[int, Change]] = {}
        for changed_at, key, value in islice(self._kept, number + 1 - oldest, None):
            newest.pop(key, None)
            newest[key] = (changed_at, value)
        return list(newest.values())

    def follow_job(self, job: JobId, event: asyncio.Event) -> None:
        """Set an event whenever a job changes."""
        add(self._waiting, job, event)

    def unfollow_job(self, job: JobId, event: asyncio.Event) -> None:
        """Stop setting it."""
        drop(self._waiting, job, event)

    def follow_workers(self, model: ModelName, event: asyncio.Event) -> None:
        """Set an event whenever a model, or where and whether its workers take turns, changes."""
        add(self._watching_workers, model, event)

    def unfollow_workers(self, model: ModelName, event: asyncio.Event) -> None:
        """Stop setting it."""
        drop(self._watching_workers, model, event)
