"""What keeps a standby warm: the state of the store, brought up to date by its records, as the leader's own was.

It is read whole once. From then on the records that follow are applied to it, so that a takeover need not read and
decode everything that lives. Values of secrets are in no record: they are read when it takes over, and so is whatever
then turns out to differ.
"""

import logging
from collections.abc import Iterable, Sequence

from sqlalchemy import select, tuple_

from gpufleet.telemetry.logs import fields

from ..known_store import KnownStore
from ..state.apply import apply
from ..state.durable import Durable, Entity, key_of, load
from ..store import reading, schema
from ..store.codec import Codec
from ..store.database import Database
from ..store.errors import read_as_stored
from ..store.kinds import KINDS_WITHOUT_STORY, key_row
from ..store.opening import database_at
from ..store.snapshot import open_snapshot

log = logging.getLogger(__name__)

RECORDS_AT_ONCE = 2_000
"""Records that are read and applied in one step; between two steps the leader is looked at."""

REPAIRED_MAX = 1_000
"""So many entities that differ are read one by one; beyond them everything is read again."""

Row = tuple[str, str]


class Follower:
    """The state of a store as of `sequence`. It may be used by one thread at a time.

    Errors: StoreUnavailable, StoreTooNew, StoreTooOld, StoreCorrupt.
    """

    def __init__(self, url: str, identity: str) -> None:
        self._url = url
        self._identity = identity
        self._database: Database | None = None
        self._codec = Codec()
        self.durable = Durable()
        self.sequence = -1
        """The newest record that it has; -1 before anything was read."""

    @property
    def is_warm(self) -> bool:
        """Whether it was read once."""
        return self.sequence >= 0

    def follow(self, newest: int) -> bool:
        """Come nearer to the newest record, by one step. Answers whether there is more to do."""
        if not self.is_warm:
            self._read_all()
        elif newest > self.sequence and not self._apply_next():
            self.forget()
        return self.sequence < newest

    def forget(self) -> None:
        """Begin anew with the next step."""
        self.durable, self.sequence = Durable(), -1

    def entities(self, newest: int) -> list[Entity] | None:
        """All that lives, of a store to which nobody else writes any more; None where it is to be read instead."""
        while self.is_warm and self.follow(newest):
            pass
        if self.sequence != newest:
            return None
        database = self._opened()
        known = {key_row(key_of(entity)): entity for entity in self.durable.entities()}
        stored, differing = self._compared(database, known)
        gone = [key for key in known if key not in stored]
        if len(differing) + len(gone) > REPAIRED_MAX:
            log.warning("what was followed differs: all of it is read", extra=fields(entities=len(differing)))
            return None
        for key in gone:
            del known[key]
        known.update(self._read(database, differing))
        return list(known.values())

    def stored(self) -> tuple[reading.Meta, list[reading.Began]]:
        """What the store says of itself now, and its starts."""
        database = self._opened()
        # In this order: records of an earlier start belong to the newest as well, and not the other way round.
        newest = reading.only_meta(database)
        return newest, reading.starts(database)

    def known(self, newest: reading.Meta, starts: Sequence[reading.Began]) -> KnownStore:
        """How far the store has come, for the data folder: what this one has of it, and never more."""
        began = starts[-1]
        counters = self.durable.counters
        return KnownStore(
            store_id=newest.store_id,
            lineage=began.lineage,
            term=began.term,
            sequence=min(self.sequence, newest.record_seq),
            next_job=counters.next_job,
            next_session=counters.next_session,
        )

    def close(self) -> None:
        """Let go of the connections."""
        database, self._database = self._database, None
        if database is not None:
            database.close()

    def _read_all(self) -> None:
        with open_snapshot(self._url) as snapshot, read_as_stored("what is stored"):
            rows = snapshot.rows(schema.entity)
            self.durable = load(reading.entity(self._codec, row) for row in rows)
            self.sequence = snapshot.meta.record_seq
        _settle(self.durable)

    def _apply_next(self) -> bool:
        """Apply the records that come next. False where some are missing: what was pruned cannot be followed."""
        table = schema.record.c
        query = select(schema.record).where(table.seq > self.sequence).order_by(table.seq).limit(RECORDS_AT_ONCE)
        rows = reading.rows(self._opened(), query)
        for row in rows:
            if row.seq != self.sequence + 1:
                log.warning("records are missing: all is read again", extra=fields(behind=self.sequence))
                return False
            stored = reading.record(self._codec, row)
            with read_as_stored(f"record {row.seq} {row.kind}"):
                apply(self.durable, stored.record)
            self.sequence = row.seq
        _settle(self.durable)
        return bool(rows)

    @staticmethod
    def _compared(database: Database, known: dict[Row, Entity]) -> tuple[set[Row], list[Row]]:
        """Keys of all that is stored, and of what of it is not known, or in another version, or told by no record."""
        table = schema.entity.c
        stored: set[Row] = set()
        differing: list[Row] = []
        for row in reading.all_rows(database, select(table.kind, table.id, table.version)):
            key = (row.kind, row.id)
            stored.add(key)
            found = known.get(key)
            is_known = found is not None and getattr(found, "version", 0) == row.version
            if not is_known or row.kind in KINDS_WITHOUT_STORY:
                differing.append(key)
        return stored, differing

    def _read(self, database: Database, keys: Iterable[Row]) -> dict[Row, Entity]:
        table, wanted = schema.entity.c, list(keys)
        if not wanted:
            return {}
        query = select(schema.entity).where(tuple_(table.kind, table.id).in_(wanted))
        return {(row.kind, row.id): reading.entity(self._codec, row) for row in reading.rows(database, query)}

    def _opened(self) -> Database:
        if self._database is None:
            self._database = database_at(self._url, is_read_only=True, is_kept=False, identity=self._identity)
        return self._database


def _settle(durable: Durable) -> None:
    """What changed is nobody's to store here."""
    durable.touched.clear()
    durable.finished.clear()
