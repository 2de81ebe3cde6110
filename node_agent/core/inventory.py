"""What a node knows of every rank that it was ever told to run, and which reports a change of it makes.

The keeper's views are the truth about processes; the agent adds what has not reached the keeper: ranks
that are being checked, ranks that are prepared and wait for their gang, and ranks that it refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from .commands import LaunchAttempt
from .outcome import AttemptKey, AttemptPhase, AttemptView, Stream

REFUSALS_KEPT_MAX = 10_000
"""Refusals that are remembered so that a repeated launch gets the same answer; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Checking:
    """The launch came and is being checked, or the keeper was asked and has not answered."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rank of a gang that was found fit and waits for its start. `master_port` is 0 but for rank 0."""

    launch: LaunchAttempt
    master_port: int

    @property
    def key(self) -> AttemptKey:
        return self.launch.key


@dataclass(frozen=True, slots=True)
class Refused:
    """The rank was not started and never will be under this number."""

    key: AttemptKey
    reason: str
    sentence: str


Entry = AttemptView | Checking | Prepared | Refused


@dataclass(frozen=True, slots=True)
class StartSeen:
    """Report: its process runs, or ran."""

    view: AttemptView


@dataclass(frozen=True, slots=True)
class EndSeen:
    """Report: it has ended, or its end can never be known."""

    view: AttemptView


@dataclass(frozen=True, slots=True)
class SpoolSeen:
    """Report: its output waits for room, or goes on."""

    view: AttemptView


Seen = StartSeen | EndSeen | SpoolSeen


def reports_of(before: AttemptView | None, after: AttemptView) -> tuple[Seen, ...]:
    """What the scheduler is to be told of this change; `before` is None for what the keeper just took on."""
    reports: list[Seen] = []
    ran = after.started_us is not None and not (after.end and after.end.failure)
    if ran and (before is None or before.started_us is None):
        reports.append(StartSeen(after))
    if after.phase.is_live and (before.full if before else None) is not after.full:
        reports.append(SpoolSeen(after))
    if after.end is not None and (before is None or before.end is None):
        reports.append(EndSeen(after))
    return tuple(reports)


@dataclass(slots=True)
class Inventory:
    """One entry per rank; what the scheduler has stored and forgotten is not in it."""

    _entries: dict[AttemptKey, Entry] = field(default_factory=dict)
    _refused: dict[AttemptKey, None] = field(default_factory=dict)
    _lost: dict[tuple[AttemptKey, Stream], int] = field(default_factory=dict)

    def __getitem__(self, key: AttemptKey) -> Entry | None:
        return self._entries.get(key)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._entries.values()))

    def live(self) -> Iterator[AttemptView]:
        """The attempts whose processes may run."""
        return (entry for entry in self if isinstance(entry, AttemptView) and entry.phase.is_live)

    def adopt(self, views: Iterable[AttemptView]) -> None:
        """Begin with what a keeper holds; the inventory that goes up first reports all of it."""
        for view in views:
            if view.phase is not AttemptPhase.FORGOTTEN:
                self._entries[view.key] = view

    def take(self, entry: Checking | Prepared | Refused) -> None:
        """Note what the agent decided about a rank that no keeper holds."""
        assert not isinstance(self._entries.get(entry.key), AttemptView)
        self._entries[entry.key] = entry
        if isinstance(entry, Refused):
            self._refused[entry.key] = None
            if len(self._refused) > REFUSALS_KEPT_MAX:
                self.drop(next(iter(self._refused)))

    def see(self, view: AttemptView) -> tuple[Seen, ...]:
        """Take in the keeper's newest view of a rank and answer what to report."""
        before = self._entries.get(view.key)
        if view.phase is AttemptPhase.FORGOTTEN:
            self.drop(view.key)
            return ()
        view = self._with_losses(view)
        self._entries[view.key] = view
        return reports_of(before if isinstance(before, AttemptView) else None, view)

    def output_lost(self, key: AttemptKey, stream: Stream, offset: int) -> tuple[Seen, ...]:
        """Nobody has what a stream had behind this offset. Answers the end once more, if it was told with more."""
        self._lost[key, stream] = offset
        before = self._entries.get(key)
        if not isinstance(before, AttemptView):
            return ()
        view = self._entries[key] = self._with_losses(before)
        return () if view == before else (EndSeen(view),)

    def _with_losses(self, view: AttemptView) -> AttemptView:
        end = view.end
        for stream in Stream:
            if end is not None and (offset := self._lost.get((view.key, stream))) is not None:
                end = end.lost_behind(stream, offset)
        return view if end is view.end else replace(view, end=end)

    def drop(self, key: AttemptKey) -> None:
        """The scheduler has stored its end, or it was never begun."""
        self._entries.pop(key, None)
        self._refused.pop(key, None)
        for stream in Stream:
            self._lost.pop((key, stream), None)
