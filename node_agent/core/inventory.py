"""What a node knows of every rank that it was ever told to run, and which reports a change of it makes.

The keeper's views are the truth about processes; the agent adds what has not reached the keeper: ranks
that are being checked, ranks that are prepared and wait for their gang, ranks in the
backlog, and ranks that it refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from gpufleet.jobs.runs import RankKey

from .commands import LaunchAttempt
from .outcome import AttemptPhase, AttemptView, Stream

REFUSALS_KEPT_MAX = 10_000
"""Refusals that are remembered so that a repeated launch gets the same answer; the oldest go first."""


@dataclass(frozen=True, slots=True)
class Checking:
    """The launch came and is being checked, or the keeper was asked and has not answered."""

    key: RankKey
    time_limit_us: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A rank of a gang that was found fit and waits for its start. `master_port` is 0 but for rank 0."""

    launch: LaunchAttempt
    master_port: int

    @property
    def key(self) -> RankKey:
        return self.launch.key


@dataclass(frozen=True, slots=True)
class InBacklog:
    """A rank that waits for those of its slot that came before it. What its launch rests on was sent at `sent_us`."""

    launch: LaunchAttempt
    sent_us: int

    @property
    def key(self) -> RankKey:
        return self.launch.key


@dataclass(frozen=True, slots=True)
class Refused:
    """The rank was not started and never will be under this number."""

    key: RankKey
    reason: str
    sentence: str


Entry = AttemptView | Checking | Prepared | InBacklog | Refused


@dataclass(frozen=True, slots=True)
class StartReport:
    """Report: its process runs, or ran."""

    view: AttemptView


@dataclass(frozen=True, slots=True)
class EndReport:
    """Report: it has ended, or its end can never be known."""

    view: AttemptView


@dataclass(frozen=True, slots=True)
class SpoolReport:
    """Report: its output waits for room, or goes on."""

    view: AttemptView


AttemptReport = StartReport | EndReport | SpoolReport


def has_run(view: AttemptView) -> bool:
    """Whether its command runs, or ran: one that could not be executed never did."""
    return view.started_us is not None and not (view.end and view.end.failure)


def reports_of(before: AttemptView | None, after: AttemptView) -> tuple[AttemptReport, ...]:
    """What the scheduler is to be told of this change; `before` is None for what the keeper just took on."""
    reports: list[AttemptReport] = []
    if has_run(after) and (before is None or before.started_us is None):
        reports.append(StartReport(after))
    if after.phase.is_live and (before.full if before else None) is not after.full:
        reports.append(SpoolReport(after))
    if after.end is not None and (before is None or before.end is None):
        reports.append(EndReport(after))
    return tuple(reports)


@dataclass(slots=True)
class Inventory:
    """One entry per rank; what the scheduler has stored and forgotten is not in it."""

    _entries: dict[RankKey, Entry] = field(default_factory=dict)
    _refused: dict[RankKey, None] = field(default_factory=dict)
    _lost: dict[tuple[RankKey, Stream], int] = field(default_factory=dict)

    def __getitem__(self, key: RankKey) -> Entry | None:
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

    def take(self, entry: Checking | Prepared | InBacklog | Refused) -> None:
        """Note what the agent decided about a rank that no keeper holds."""
        assert not isinstance(self._entries.get(entry.key), AttemptView)
        self._entries[entry.key] = entry
        if isinstance(entry, Refused):
            self._refused[entry.key] = None
            if len(self._refused) > REFUSALS_KEPT_MAX:
                self.drop(next(iter(self._refused)))

    def see(self, view: AttemptView) -> tuple[AttemptReport, ...]:
        """Take in the keeper's newest view of a rank and answer what to report."""
        before = self._entries.get(view.key)
        if view.phase is AttemptPhase.FORGOTTEN:
            self.drop(view.key)
            return ()
        view = self._with_losses(view)
        self._entries[view.key] = view
        return reports_of(before if isinstance(before, AttemptView) else None, view)

    def output_lost(self, key: RankKey, stream: Stream, offset: int) -> tuple[AttemptReport, ...]:
        """Nobody has what a stream had behind this offset. Answers the end once more, if it was told with more."""
        self._lost[key, stream] = offset
        before = self._entries.get(key)
        if not isinstance(before, AttemptView):
            return ()
        view = self._entries[key] = self._with_losses(before)
        return () if view == before else (EndReport(view),)

    def _with_losses(self, view: AttemptView) -> AttemptView:
        end = view.end
        for stream in Stream:
            if end is not None and (offset := self._lost.get((view.key, stream))) is not None:
                end = end.lost_behind(stream, offset)
        return view if end is view.end else replace(view, end=end)

    def limit(self, key: RankKey, time_limit_us: int | None) -> None:
        """The keeper has given a rank another time limit."""
        view = self._entries.get(key)
        if isinstance(view, AttemptView) and view.end is None:
            self._entries[key] = replace(view, time_limit_us=time_limit_us)

    def drop(self, key: RankKey) -> None:
        """The scheduler has stored its end, or it was never begun."""
        self._entries.pop(key, None)
        self._refused.pop(key, None)
        for stream in Stream:
            self._lost.pop((key, stream), None)
