"""What survives a crash: the scheduler's store, its output, and what each node keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import TYPE_CHECKING

from node_agent.core.outcome import AttemptEnd, Offsets, Stream
from scheduler.known_store import Memory
from scheduler.outputs.errors import OutputHole
from scheduler.ports import Commit, FinishedQuery, StoredRecord
from scheduler.state.attempts import OutputStream
from scheduler.state.durable import Entity, EntityKey, key_of
from scheduler.state.ids import JobId, RankKey
from scheduler.state.indexes.equal_jobs import EqualJobs
from scheduler.state.jobs import Finished, Job, Tally, item_ended_together
from scheduler.state.records import Record
from scheduler.state.units import Instant
from scheduler.store.errors import StoreUnavailable
from scheduler.store.reading import Began, Meta, reached
from tests.simulation.accounts import AccountsDisk
from tests.simulation.folder import DataFolder
from tests.simulation.world import Broken, World

if TYPE_CHECKING:
    from tests.simulation.scheduler import SchedulerProcess

POWER_CUT_SHARE = 0.3
"""What a power cut takes of a node's attempts, each by itself."""


STORE_ID = "the store of the simulation"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCopy:
    """All that is in the tables at a moment."""

    term: int
    newest: Instant
    last_commit: tuple[int, int]
    entities: dict[EntityKey, Entity]
    finished: dict[JobId, Job]
    story: list[tuple[float, Record]]
    starts: list[Began]


class SimulatedStore:
    """The tables. One scheduler has them open at a time; each opening has a higher term, and a lineage of its own.

    `folder` is what the data folder beside them knows.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("store")
        self.term = 0
        self.newest = Instant(0)
        self.last_commit = (0, 0)
        self.starts: list[Began] = []
        self._openings = 0
        self.folder = DataFolder()
        self.accounts = AccountsDisk()
        self.entities: dict[EntityKey, Entity] = {}
        self.finished: dict[JobId, Job] = {}
        self.story: list[tuple[float, Record]] = []
        self.commits = 0

    def open(self) -> tuple[Began, Memory]:
        """A start of the scheduler, and what its data folder remembers."""
        newest, story = self.newest, len(self.story)
        meta = Meta(1, self.term, self.last_commit[1], story, newest, STORE_ID) if self.starts else None
        memory, above = self.folder.admit(meta, self.starts)
        self._openings += 1
        self.term = max(self.term, above) + 1
        began = Began(self.term, f"{self._openings:016x}", story)
        self.starts.append(began)
        memory.opened(self.starts)
        return began, memory

    def copy(self) -> StoreCopy:
        """What is stored now, with the scheduler running or not."""
        return StoreCopy(
            term=self.term,
            newest=self.newest,
            last_commit=self.last_commit,
            entities=dict(self.entities),
            finished=dict(self.finished),
            story=list(self.story),
            starts=list(self.starts),
        )

    def put_back(self, copy: StoreCopy) -> None:
        """This is all that is stored, and nobody has it open."""
        self.term, self.newest, self.last_commit = copy.term, copy.newest, copy.last_commit
        self.entities, self.finished, self.story = dict(copy.entities), dict(copy.finished), list(copy.story)
        self.starts = list(copy.starts)
        self.folder.put_back(self.starts, len(self.story))

    def apply(self, term: int, commit: Commit) -> bool:
        """One transaction; False when this number is done already."""
        if term != self.term:
            raise Broken(f"a scheduler of term {term} commits to a store of term {self.term}")
        if (term, commit.number) <= self.last_commit:
            return False
        self.last_commit = (term, commit.number)
        for job in commit.finished:
            if job.id in self.finished:
                raise Broken(f"job {job.id} ends twice: {self.finished[job.id].state}, then {job.state}", job.id)
            self.finished[job.id] = job
        for entity in commit.upserts:
            self.entities[key_of(entity)] = entity
        for key in commit.deletes:
            self.entities.pop(key, None)
        self.newest = max(self.newest, commit.at)
        self.story.extend((self.world.now, record) for record in commit.records)
        self.commits += 1
        return True

    def job(self, job_id: int) -> Job | None:
        """A job as it is stored, live or ended."""
        entity = self.entities.get(("job", str(job_id)))
        if isinstance(entity, Job):
            return entity
        alike = (each for each in self.entities.values() if isinstance(each, EqualJobs) and job_id in each)
        equal = next(alike, None)
        if equal is not None:
            return equal.job(JobId(job_id))
        return self.finished.get(JobId(job_id)) or next(self._ended_together(JobId(job_id)), None)

    def _ended_together(self, job_id: JobId) -> Iterator[Job]:
        """An item of which only its array knows how it ended."""
        tallies = [(self.entities.get(("job", str(each.array))), each) for each in self._tallies()]
        tallies += [(job, job.items.ended) for job in self.finished.values() if job.items and job.items.ended]
        for array, tally in tallies:
            found = item_ended_together(array, tally, job_id) if isinstance(array, Job) else None
            if found is not None:
                yield found

    def _tallies(self) -> Iterator[Tally]:
        return (each for each in self.entities.values() if isinstance(each, Tally))


class OpenStore:
    """The store as one scheduler process has it open."""

    kind = "simulated"

    def __init__(self, disk: SimulatedStore, process: SchedulerProcess) -> None:
        began, self.memory = disk.open()
        self.term, self.lineage = began.term, began.lineage
        self._disk = disk
        self._process = process

    def newest_sequence(self) -> int:
        return len(self._disk.story)

    def reached(self, lineage: str) -> int | None:
        return reached(len(self._disk.story), self._disk.starts, lineage)

    def records_from(self, kinds: Sequence[str], after: int, limit: int) -> list[StoredRecord]:
        numbered = enumerate(self._disk.story[after:], after + 1)
        wanted = ((number, record) for number, (_, record) in numbered if type(record).__name__ in kinds)
        return [StoredRecord(sequence=number, at=record.at, record=record) for number, record in islice(wanted, limit)]

    def finished_job(self, job: JobId) -> Job | None:
        return self._disk.finished.get(job)

    def array_with(self, item: JobId) -> Job | None:
        """The array that has ended and had this item."""
        arrays = (job for job in self._disk.finished.values() if job.items is not None)
        return next((job for job in arrays if job.items and job.id < item <= job.id + job.items.indices.count), None)

    def finished_jobs(self, query: FinishedQuery) -> list[Job]:
        """The newest first; of a query the scheduler's start names only how many."""

        def end(job: Job) -> tuple[Instant, JobId]:
            assert isinstance(job.state, Finished)
            return job.state.at, job.id

        return sorted(self._disk.finished.values(), key=end, reverse=True)[: query.limit]

    def newest_instant(self) -> Instant:
        return self._disk.newest

    def load(self) -> Iterator[Entity]:
        return iter(tuple(self._disk.entities.values()))

    def commit(self, commit: Commit) -> None:
        """The moment at which a transaction becomes durable, or does not, or nobody knows."""
        faults = self._process.faults
        if faults.take("crash before commit"):
            self._process.crash()
        if not self._process.is_alive:
            return
        if faults.take("store away"):
            raise StoreUnavailable("the disk is full")
        self.make_durable(commit)
        if faults.take("crash after commit"):
            self._process.crash()
        if faults.take("answer lost"):
            self._disk.world.met.add("a commit whose answer was lost")
            raise StoreUnavailable("the connection was lost")

    def make_durable(self, commit: Commit) -> None:
        entities = self._disk.entities
        touched = (*commit.deletes, *map(key_of, commit.upserts))
        before = {key: entities[key] for key in touched if key in entities}
        if self._disk.apply(self.term, commit):
            self._disk.world.checks.committed(self._process, before, commit)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class StoredStream:
    """One stream's bytes; those from `synced` on are gone after a crash, or some of them."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0


class SimulatedOutputs:
    """The scheduler's output store."""

    def __init__(self, world: World) -> None:
        self._rng = world.rng("outputs")
        self.streams: dict[tuple[RankKey, OutputStream], StoredStream] = {}
        self._unsynced: dict[tuple[RankKey, OutputStream], None] = {}

    def append(self, key: RankKey, stream: OutputStream, offset: int, data: bytes) -> int:
        stored = self.streams.setdefault((key, stream), StoredStream())
        end = len(stored.data)
        if offset > end:
            raise OutputHole(key, stream, offset, end)
        if offset + len(data) > end:
            stored.data += data[end - offset :]
            self._unsynced[key, stream] = None
        return len(stored.data)

    def end(self, key: RankKey, stream: OutputStream) -> int:
        stored = self.streams.get((key, stream))
        return 0 if stored is None else len(stored.data)

    def synced(self, key: RankKey, stream: OutputStream) -> int:
        stored = self.streams.get((key, stream))
        return 0 if stored is None else stored.synced

    def sync(self) -> list[tuple[RankKey, OutputStream, int]]:
        risen = []
        for key, stream in self._unsynced:
            stored = self.streams[key, stream]
            stored.synced = len(stored.data)
            risen.append((key, stream, stored.synced))
        self._unsynced.clear()
        return risen

    def crash(self) -> None:
        """Of what was not synced a part is there, or nothing; what is there when it is opened again is synced then."""
        for name in self._unsynced:
            stored = self.streams[name]
            del stored.data[self._rng.randint(stored.synced, len(stored.data)) :]
            stored.synced = len(stored.data)
        self._unsynced.clear()

    def synced_bytes(self, key: RankKey, stream: OutputStream) -> bytes:
        stored = self.streams.get((key, stream))
        return b"" if stored is None else bytes(stored.data[: stored.synced])


@dataclass(slots=True)
class AttemptRecord:
    """What a keeper writes down about an attempt, at once; it outlives the keeper."""

    key: RankKey
    keeper_id: str
    boot: int
    started_us: int
    note: str
    end: AttemptEnd | None = None


@dataclass(slots=True)
class Spooled:
    """One stream of one attempt on its node; bytes below `start` are deleted, for the scheduler has them."""

    data: bytearray = field(default_factory=bytearray)
    start: int = 0

    def read(self, start: int, end: int) -> bytes:
        assert start >= self.start
        return bytes(self.data[start:end])


@dataclass(slots=True)
class NodeDisk:
    """A node's state folder: the agent's identity, the attempts' records, the spool, the tombstones.

    `store_id` and `store_position` are what the node was told of the scheduler's store. What is `unwanted` was deleted
    though nobody has it. `left` is what ranks leave, noted in which boot; it is there after a power cut, too.
    """

    agent_id: str
    incarnation: int = 0
    highest_term: int = 0
    store_id: str = ""
    store_position: str = ""
    records: dict[RankKey, AttemptRecord] = field(default_factory=dict)
    spool: dict[tuple[RankKey, Stream], Spooled] = field(default_factory=dict)
    tombstones: dict[RankKey, AttemptRecord] = field(default_factory=dict)
    unwanted: set[tuple[RankKey, Stream]] = field(default_factory=set)
    left: dict[RankKey, int] = field(default_factory=dict)
    steps: dict[RankKey, int] = field(default_factory=dict)
    """Of ranks that keep something for the next attempt: how far they are."""

    def of(self, key: RankKey, stream: Stream) -> Spooled:
        return self.spool.setdefault((key, stream), Spooled())

    def ends(self, key: RankKey) -> Offsets:
        return Offsets(len(self.of(key, Stream.STDOUT).data), len(self.of(key, Stream.STDERR).data))

    def starts(self, key: RankKey) -> Offsets:
        return Offsets(self.of(key, Stream.STDOUT).start, self.of(key, Stream.STDERR).start)

    def delete_below(self, key: RankKey, stream: Stream, offset: int) -> None:
        """The scheduler has everything below the offset on its own disk."""
        spooled = self.of(key, stream)
        spooled.start = max(spooled.start, min(offset, len(spooled.data)))

    def power_cut(self, rng: Random) -> None:
        """Nothing of this is made sure of when it is written: afterwards all of an attempt may be there, or nothing."""
        for kept in (self.records, self.tombstones):
            for key in [key for key in kept if rng.random() < POWER_CUT_SHARE]:
                del kept[key]
                for stream in Stream:
                    self.spool.pop((key, stream), None)

    def bury(self, key: RankKey) -> None:
        """Its record becomes its tombstone, its spool is deleted."""
        self.tombstones[key] = self.records.pop(key)
        for stream in Stream:
            self.spool.pop((key, stream), None)
