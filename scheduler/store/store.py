"""The store that the engine commits to: what is durable, in which term, and which commit was the last.

A commit is asserted by the one row of `meta`: it must be of the newest term, and the next after the last one applied.
So a superseded scheduler changes nothing, and a commit whose answer was lost is not applied twice.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Select

from ..ports import Commit, EndedQuery, FinishedQuery, StoredRecord
from ..state.audited import AuditQuery, AuditRow
from ..state.durable import Entity
from ..state.ids import JobId
from ..state.jobs import Job
from ..state.records import without_sealed_value
from ..state.units import Instant
from . import audit_rows, queries, reading
from .codec import Codec
from .database import Database, GuardFailed
from .errors import StoreCorrupt, StoreUnavailable, TermSuperseded
from .kinds import entity_row, finished_row, key_row, record_row
from .reading import Began, Meta
from .statements import Row, Step
from .verify import problems

PRUNED_JOBS_MAX = 1_000
PRUNED_RECORDS_MAX = 10_000
PRUNED_AUDIT_MAX = 1_000
"""How much one call of prune() and of prune_audit() drops, so that commits never wait long for it."""


class SqlStore:
    """The port Store on SQLite or PostgreSQL. It may be called from several threads; one commit runs at a time."""

    def __init__(self, database: Database, codec: Codec, opened: Meta, starts: Sequence[Began]) -> None:
        self._database = database
        self._codec = codec
        self._term = opened.term
        self.store_id = opened.store_id
        self.starts = tuple(starts)
        self._number = opened.commit_number
        self._record_sequence = opened.record_seq
        self._newest = opened.newest_us
        self._is_in_doubt = False
        self._writing = threading.Lock()
        self._followed: list[Entity] | None = None
        self.commit_began_s: float | None = None
        """Since when a commit is on its way, on the monotonic clock; None for none."""

    @property
    def kind(self) -> str:
        """ "sqlite" or "postgresql"."""
        return self._database.engine.dialect.name

    @property
    def term(self) -> int:
        """This opening's term: higher than that of every opening before it."""
        return self._term

    @property
    def lineage(self) -> str:
        """This opening's lineage, which no other one ever has."""
        return self.starts[-1].lineage

    def newest_instant(self) -> Instant:
        """The newest instant that any commit carried; 0 for a new store."""
        return Instant(self._newest)

    def newest_sequence(self) -> int:
        """The sequence of the newest record that is stored; 0 for a new store."""
        return self._record_sequence

    def reached(self, lineage: str) -> int | None:
        """The newest record when the start of a lineage ended, or now; None where there is no such start."""
        return reading.reached(self._record_sequence, self.starts, lineage)

    def load(self) -> Iterator[Entity]:
        """Every live entity. Errors: StoreCorrupt, naming the row; StoreTooNew; StoreUnavailable."""
        followed, self._followed = self._followed, None
        if followed is None:
            yield from reading.entities(self._database, self._codec)
        else:
            yield from followed

    def take_followed(self, entities: list[Entity] | None) -> None:
        """Let the next load() answer these, which a standby has followed, and nothing else. None: what is stored."""
        self._followed = entities

    def commit(self, commit: Commit) -> None:
        """Make one transaction durable. A number that is already stored for this term is done already.

        Errors: StoreUnavailable (call again with the same commit), TermSuperseded, StoreCorrupt.
        """
        with self._writing, self._underway():
            sequence = self._record_sequence + len(commit.records)
            newest = max(self._newest, commit.at, *(record.at for record in commit.records))
            guard = (self._term, commit.number - 1, commit.number, sequence, newest)
            if self._write(guard, self._steps(commit)):
                self._number, self._record_sequence, self._newest = commit.number, sequence, newest
            else:
                self._require_stored(commit.number)

    @contextmanager
    def _underway(self) -> Iterator[None]:
        self.commit_began_s = time.monotonic()
        try:
            yield
        finally:
            self.commit_began_s = None

    def finished_job(self, job: JobId) -> Job | None:
        """A job that has ended, or None."""
        return next(iter(self._jobs(queries.finished_job(job))), None)

    def array_with(self, item: JobId) -> Job | None:
        """The array that has ended whose items include this id, or None."""
        return next(iter(self._jobs(queries.array_with(item))), None)

    def finished_items(self, array: JobId, first: JobId, last: JobId) -> list[Job]:
        """The items of an array with ids from first to last that have ended each by itself, by id."""
        return self._jobs(queries.finished_items(array, first, last))

    def failed_items(self, array: JobId, last: JobId) -> list[JobId]:
        """The ids of an array's items, the last of which is given, that have failed each by itself, in rising order."""
        return [JobId(row.id) for row in reading.rows(self._database, queries.failed_items(array, last))]

    def finished_jobs(self, query: FinishedQuery) -> list[Job]:
        """A page of jobs that have ended, newest end first."""
        return self._jobs(queries.finished_jobs(query))

    def ended_jobs(self, query: EndedQuery) -> list[Job]:
        """A page of what has ended, newest end first."""
        return self._jobs(queries.ended_jobs(query))

    def _jobs(self, query: Select[Any]) -> list[Job]:
        return [reading.finished_job(self._codec, row) for row in reading.rows(self._database, query)]

    def story(
        self, job: JobId, after: int, limit: int, told_with: JobId | None = None, kinds: Sequence[str] = ()
    ) -> list[StoredRecord]:
        """A job's records with a sequence above `after`, oldest first; `told_with` is that of the job.

        With `kinds` only those of these classes.
        """
        rows = reading.rows(self._database, queries.story(job, after, limit, told_with, kinds))
        return [reading.record(self._codec, row) for row in rows]

    def records_of_kinds(self, kinds: Sequence[str], before: int | None, limit: int) -> list[StoredRecord]:
        """Records of these classes with a sequence below `before`, newest first."""
        wanted = [queries.newest_records(kind, before, limit) for kind in sorted(set(kinds))]
        return self._records(wanted, limit, newest_first=True)

    def records_from(self, kinds: Sequence[str], after: int, limit: int) -> list[StoredRecord]:
        """Records of these classes with a sequence above `after`, oldest first."""
        return self._records([queries.next_records(kind, after, limit) for kind in sorted(set(kinds))], limit)

    def _records(self, wanted: list[Select[Any]], limit: int, *, newest_first: bool = False) -> list[StoredRecord]:
        found = [row for query in wanted for row in reading.rows(self._database, query)]
        found.sort(key=lambda row: row.seq, reverse=newest_first)
        return [reading.record(self._codec, row) for row in found[:limit]]

    def verify(self) -> list[str]:
        """Everything that is wrong with what is stored, a sentence each; empty is well."""
        return problems(self._database, self._codec)

    def prune(self, before: Instant) -> int:
        """Drop finished jobs that ended before this instant, and records of that age whose job is gone.

        Returns how many jobs and records were found and dropped. A call is bounded: call again until it is 0.
        Errors: as commit(); StoreUnavailable also while a commit waits to be tried again.
        """
        with self._writing:
            if self._is_in_doubt:
                raise StoreUnavailable("a commit waits to be tried again")
            ended = reading.rows(self._database, queries.jobs_ended_before(before, PRUNED_JOBS_MAX))
            oldest = reading.rows(self._database, queries.oldest_records_without_job(PRUNED_RECORDS_MAX))
            jobs = [(row.id,) for row in ended]
            records = [(row.seq,) for row in oldest if row.at_us < before]
            if not jobs and not records:
                return 0
            drop = self._database.statements
            guard = (self._term, self._number, self._number, self._record_sequence, self._newest)
            steps = (
                (drop.delete_records_of_job, jobs),
                (drop.delete_finished_job, jobs),
                (drop.delete_record, records),
            )
            if not self._write(guard, steps):
                self._require_stored(self._number)
                return 0
            return len(jobs) + len(records)

    def newest_audit_sequence(self) -> int:
        """The sequence of the newest row of the audit; 0 where there is none."""
        return reading.rows(self._database, audit_rows.newest_sequence_of_audit())[0][0] or 0

    def write_audit(self, rows: Sequence[AuditRow]) -> None:
        """Make rows of the audit durable, beside all commits; those that are there already stay as they are.

        Errors: StoreUnavailable (call again with the same rows), TermSuperseded, StoreCorrupt.
        """
        self._write_beside((self._database.statements.add_audit, [audit_rows.audit_values(row) for row in rows]))

    def audit_rows(self, query: AuditQuery) -> list[AuditRow]:
        """A page of the audit, newest first."""
        first = 0
        if query.since is not None:
            found = reading.rows(self._database, audit_rows.first_since(query.since))[0][0]
            if found is None:
                return []
            first = found
        return [audit_rows.audit_row(row) for row in reading.rows(self._database, audit_rows.audit_page(query, first))]

    def prune_audit(self, before: Instant, rows_max: int) -> int:
        """Drop rows of the audit of before this instant, and the oldest beyond so many, of refused calls and of others.

        Returns how many were found and dropped. A call is bounded: call again until it is 0. Errors: as write_audit().
        """
        beyond = (audit_rows.audited_beyond(rows_max, PRUNED_AUDIT_MAX, is_refused=each) for each in (True, False))
        queries_of_old = (audit_rows.audited_before(before, PRUNED_AUDIT_MAX), *beyond)
        old = {(row.seq,) for query in queries_of_old for row in reading.rows(self._database, query)}
        if old:
            self._write_beside((self._database.statements.delete_audit, sorted(old)))
        return len(old)

    def _write_beside(self, step: Step) -> None:
        """Run a step that is no part of a commit. What a commit asserts stays as it is, also one that is in doubt."""
        with self._writing:
            guard = (self._term, self._number, self._number, self._record_sequence, self._newest)
            try:
                self._database.write(guard, (step,))
            except GuardFailed:
                if reading.only_meta(self._database).term != self._term:
                    self._require_stored(self._number)
                raise StoreUnavailable("a commit waits to be tried again") from None

    def close(self) -> None:
        """Give the lock back."""
        with self._writing:
            self._database.close()

    def _steps(self, commit: Commit) -> list[Step]:
        codec, write = self._codec, self._database.statements
        stored = [without_sealed_value(record) for record in commit.records]
        numbered = enumerate(stored, self._record_sequence + 1)
        with codec.each_once():
            steps: tuple[Step, ...] = (
                (write.add_record, [record_row(codec, number, self._term, record) for number, record in numbered]),
                (write.put_entity, [entity_row(codec, entity) for entity in commit.upserts]),
                (write.delete_entity, [key_row(key) for key in commit.deletes]),
                (write.add_finished_job, [finished_row(codec, job) for job in commit.finished]),
            )
        return [step for step in steps if step[1]]

    def _write(self, guard: Row, steps: Sequence[Step]) -> bool:
        """Whether the guard let it pass; what is in the store is unknown after an error."""
        try:
            self._database.write(guard, [step for step in steps if step[1]])
        except GuardFailed:
            return False
        except StoreUnavailable:
            self._is_in_doubt = True
            raise
        self._is_in_doubt = False
        return True

    def _require_stored(self, number: int) -> None:
        """The guard failed: that is right only where this very commit was applied before."""
        stored = reading.only_meta(self._database)
        if stored.term > self._term:
            raise TermSuperseded(
                f"another scheduler has opened the store in term {stored.term}; the term of this one is {self._term}"
            )
        if stored.term < self._term:
            raise StoreCorrupt(f"meta: the store went back to term {stored.term} from term {self._term}")
        if stored.commit_number < number:
            raise StoreCorrupt(f"meta: commit {number} does not follow commit {stored.commit_number}")
        self._number, self._record_sequence, self._newest = stored.commit_number, stored.record_seq, stored.newest_us
        self._is_in_doubt = False
