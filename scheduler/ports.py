"""How the scheduler reaches the world: tiny protocols that the shell implements and the tests fake."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from .state.attempts import OutputStream
from .state.commands import Command
from .state.durable import Durable, Entity, EntityKey
from .state.ids import JobId, NodeName, RankKey, UserName
from .state.jobs import Job
from .state.records import Record
from .state.specs import Outcome
from .state.units import Instant


class Clock(Protocol):
    """Where instants come from."""

    def now(self) -> Instant:
        """The instant now: never less than any instant it gave before, or than the newest stored one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One transaction: everything that a turn of the loop decided.

    `number` rises by one with each commit of a term, so that a commit whose answer was lost is not applied twice.
    `deletes` holds the keys of entities that are gone (a finished job is among them and in `finished`, too).
    """

    number: int
    at: Instant
    records: tuple[Record, ...] = ()
    upserts: tuple[Entity, ...] = ()
    deletes: tuple[EntityKey, ...] = ()
    finished: tuple[Job, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """A record as the store keeps it; `sequence` rises over all records."""

    sequence: int
    at: Instant
    record: Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedQuery:
    """A page of jobs that have ended, newest end first, without items of arrays.

    `before` is (end, id) of the last job of the page before.
    """

    user: UserName | None = None
    name: str | None = None
    outcomes: tuple[Outcome, ...] = ()
    before: tuple[Instant, JobId] | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedQuery(FinishedQuery):
    """A page of what has ended, between two instants, `until` not among them.

    `node` is one of a kept attempt's. `has_items`: also items of arrays, each by itself.
    """

    since: Instant | None = None
    until: Instant | None = None
    node: NodeName | None = None
    has_items: bool = False


class RecordStore(Protocol):
    """What has happened, for those who count it. Methods may be called on any thread."""

    def newest_sequence(self) -> int:
        """The sequence of the newest record that is stored; 0 for a new store. It does not block."""
        ...

    @property
    def lineage(self) -> str:
        """This opening's lineage: no other one ever has it, also of a copy that was put back."""
        ...

    def reached(self, lineage: str) -> int | None:
        """The newest record that this store had when the start of a lineage ended, or has now where that is this one.

        None where it knows no such start. It does not block.
        """
        ...

    def finished_job(self, job: JobId) -> Job | None:
        """A job that has ended, or None."""
        ...

    def records_from(self, kinds: Sequence[str], after: int, limit: int) -> list[StoredRecord]:
        """Records of these classes with a sequence above `after`, oldest first. It may be called on any thread."""
        ...


class Store(RecordStore, Protocol):
    """Durable truth. Methods block; the engine calls them on its store thread.

    Errors: `StoreUnavailable` (try the same commit again), `TermSuperseded` and `StoreCorrupt` (leave).
    """

    @property
    def kind(self) -> str:
        """ "sqlite" or "postgresql"."""
        ...

    @property
    def term(self) -> int:
        """This opening's term: higher than that of every opening before it."""
        ...

    def newest_instant(self) -> Instant:
        """The newest instant that any commit carried; 0 for a new store."""
        ...

    def load(self) -> Iterator[Entity]:
        """Every live entity."""
        ...

    def commit(self, commit: Commit) -> None:
        """Make one transaction durable. A number that is already stored for this term is done already."""
        ...

    def array_with(self, item: JobId) -> Job | None:
        """The array that has ended whose items include this id, or None."""
        ...

    def finished_items(self, array: JobId, first: JobId, last: JobId) -> list[Job]:
        """The items of an array with ids from first to last that have ended each by itself, by id."""
        ...

    def failed_items(self, array: JobId, last: JobId) -> list[JobId]:
        """The ids of an array's items, the last of which is given, that have failed each by itself, in rising order."""
        ...

    def finished_jobs(self, query: FinishedQuery) -> list[Job]:
        """A page of jobs that have ended; arrays, and no items."""
        ...

    def ended_jobs(self, query: EndedQuery) -> list[Job]:
        """A page of what has ended. It may be called on any thread."""
        ...

    def story(
        self, job: JobId, after: int, limit: int, told_with: JobId | None = None, kinds: Sequence[str] = ()
    ) -> list[StoredRecord]:
        """A job's records with a sequence above `after`, oldest first; `told_with` is that of the job.

        With `kinds` only those of these classes.
        """
        ...

    def records_of_kinds(self, kinds: Sequence[str], before: int | None, limit: int) -> list[StoredRecord]:
        """Records of these classes with a sequence below `before`, newest first."""
        ...

    def prune(self, before: Instant) -> int:
        """Drop finished jobs that ended before this instant, and records of that age whose job is gone; the count."""
        ...

    def close(self) -> None:
        """Give the lock back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes of one stream from `offset` on."""

    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Bytes of a stream that were left out by the size limit: from `offset` up to, not including, `end`."""

    offset: int
    end: int


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """At an instant of the wall clock every byte below `end` had arrived."""

    at: Instant
    end: int


class OutputStore(Protocol):
    """The stored output. Methods block; they are called on the output thread.

    Errors: `OutputStoreUnavailable` of all; `OutputHole` of append (both in outputs/errors.py); `TermSuperseded` where
    another scheduler has taken over the database that holds the output (leave).
    """

    def append(self, key: RankKey, stream: OutputStream, offset: int, data: bytes) -> int:
        """Add bytes at an offset; what is below the known end is ignored, a hole raises. Returns the end."""
        ...

    def end(self, key: RankKey, stream: OutputStream) -> int:
        """Offset behind the last byte known; 0 for a stream never seen."""
        ...

    def synced(self, key: RankKey, stream: OutputStream) -> int:
        """Offset below which every byte is durable."""
        ...

    def sync(self) -> list[tuple[RankKey, OutputStream, int]]:
        """Make everything appended so far durable; the streams whose synced offset rose."""
        ...

    def read(self, key: RankKey, stream: OutputStream, offset: int, limit: int) -> Piece | Gap | None:
        """At most `limit` bytes from an offset, or the gap that begins there, or None at the end."""
        ...

    def arrived_before(self, key: RankKey, stream: OutputStream, at: Instant) -> int:
        """An offset below which every byte arrived before an instant of the wall clock; 0 when none is known to.

        It may be lower than it could be, never higher: the marks of time are bounded, see outputs/times.py.
        """
        ...

    def arrivals(self, key: RankKey, stream: OutputStream) -> list[Mark]:
        """How long the stream was when, oldest first; over all streams of an attempt in the order of arrival.

        They are bounded, see outputs/times.py: what is old is known less exactly, and nothing of what just arrived.
        """
        ...

    def streams(self, job: JobId) -> list[tuple[RankKey, OutputStream]]:
        """Every stream that is stored of a job, in order."""
        ...

    def ends_found(self, job: JobId) -> dict[tuple[RankKey, OutputStream], int]:
        """How far each stream of a job is there now, whatever was known of it; unsynced bytes may be left out."""
        ...

    def delete(self, job: JobId) -> None:
        """Drop all output of a job that is pruned."""
        ...

    def retain(self, before: Instant, bytes_max: int, live: frozenset[JobId]) -> list[JobId]:
        """Delete output last written before an instant, and the oldest beyond a size, never of a live job."""
        ...

    def close(self) -> None:
        """Release what is held open."""
        ...


class AgentLink(Protocol):
    """The way down to the nodes."""

    def send(self, command: Command, stream: int) -> None:
        """Hand a command to its node's stream, if that is still the one of this number.

        The number is that of the newest inventory taken up when the command was decided. A newer stream does not get
        it: what the command rests on is older than that stream's inventory, which settles everything anew.
        """
        ...


class Measures(Protocol):
    """What the engine measures of its own work; `metrics/measures.py` makes counters and histograms of it."""

    def passed(self, seconds: float) -> None:
        """A pass over the queue took so long."""
        ...

    def committed(self, seconds: float, events: int) -> None:
        """A commit took so long; a turn of so many events led to it."""
        ...

    def decided(self, records: Iterable[Record], durable: Durable, finished: Mapping[JobId, Job]) -> None:
        """These records were stored; `durable` holds them, and `finished` the jobs that ended lately."""
        ...
