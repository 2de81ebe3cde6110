"""Segments as rows on PostgreSQL: for a scheduler whose own disk is nothing to rely on.

Bytes wait in memory until a sync writes them. Rows hold ROW_BYTES each and begin at whole multiples of it within their
segment; the last one is written again as it grows. So a sync whose answer was lost can simply be done again.
"""

import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, delete, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import SQLAlchemyError

from ..ports import Mark
from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from ..state.units import Instant
from ..store.errors import TermSuperseded
from ..store.schema import meta, output_chunk, output_time
from .errors import OutputStoreUnavailable
from .layout import Segment
from .segment_store import SegmentCheck, SegmentKey, StoredJob, StreamKey

ROW_BYTES = 16 * 1024
ROWS_AT_ONCE = 64
"""How many rows are in memory at once while all are read."""
OPEN_ENDS_MAX = 1024
"""Last rows that stay in memory between syncs, so that they need not be read to be continued."""

column = output_chunk.c
mark_column = output_time.c


class OpenEnd:
    """The bytes of a segment from the beginning of its last row on: what no sync has written for good."""

    def __init__(self, start: int, data: bytes) -> None:
        self.start = start
        self.data = bytearray(data)
        self.synced = self.end

    @property
    def end(self) -> int:
        """Offset behind the last byte."""
        return self.start + len(self.data)

    def rows(self) -> list[tuple[int, bytes]]:
        """Start and content of the rows they make."""
        whole = bytes(self.data)
        return [(self.start + at, whole[at : at + ROW_BYTES]) for at in range(0, len(whole), ROW_BYTES)]

    def settle(self, synced: int) -> None:
        """Forget the rows that are full and below a synced offset."""
        full = (synced - self.start) // ROW_BYTES * ROW_BYTES
        del self.data[:full]
        self.start += full
        self.synced = synced


class RowShelf:
    """The shelf on PostgreSQL. `term` is the store's: a superseded scheduler writes nothing."""

    def __init__(self, engine: Engine, term: int) -> None:
        self._engine = engine
        self._term = term
        self._ends: OrderedDict[SegmentKey, OpenEnd] = OrderedDict()
        self._dropped: list[SegmentKey] = []
        self._memory = threading.Lock()

    def find(self, job: JobId) -> Iterator[tuple[StreamKey, Segment]]:
        of = (column.attempt, column.rank, column.lineage, column.stream, column.segment, column.is_head)
        end = func.max(column.start + func.length(column.data))
        for row in self._rows(select(*of, end.label("end")).where(column.job_id == job).group_by(*of)):
            key = (RankKey(job, row.attempt, row.rank, row.lineage), OutputStream(row.stream))
            yield key, Segment(row.segment, is_head=row.is_head, size=row.end - row.segment)

    def write(self, segment: SegmentKey, position: int, data: memoryview) -> None:
        end = self._ends.get(segment) or self._resumed(segment, position)
        with self._memory:
            assert end.end == segment.start + position
            end.data += data
            self._ends[segment] = end
            self._ends.move_to_end(segment)

    def read(self, segment: SegmentKey, position: int, limit: int) -> bytes:
        offset = segment.start + position
        until = offset + limit
        with self._memory:
            end = self._ends.get(segment)
            if end is not None:
                if offset >= end.start:
                    return bytes(end.data[offset - end.start : until - end.start])
                until = min(until, end.start)
        rows = self._rows(
            select(column.start, column.data)
            .where(_of(segment), column.start > offset - ROW_BYTES, column.start < until)
            .order_by(column.start)
        )
        return b"".join(row.data[max(offset - row.start, 0) : until - row.start] for row in rows)

    def sync(self, segments: Sequence[SegmentKey], marks: Mapping[StreamKey, Sequence[Mark]]) -> None:
        with self._memory:
            written = {each: end.rows() for each in segments if (end := self._ends.get(each)) is not None}
            dropped = list(self._dropped)
        values = [_row(each, start, data) for each, rows in written.items() for start, data in rows]
        times = [_mark_row(stream, mark) for stream, added in marks.items() for mark in added]
        grown = insert(output_chunk)
        grown = grown.on_conflict_do_update(
            index_elements=list(output_chunk.primary_key.columns),
            set_={"data": grown.excluded.data, "checksum": grown.excluded.checksum, "written_time": func.now()},
        )
        with self._transaction() as connection:
            for each in dropped:
                connection.execute(delete(output_chunk).where(_of(each)))
            if values:
                connection.execute(grown, values)
            if times:
                connection.execute(insert(output_time), times)
        with self._memory:
            del self._dropped[: len(dropped)]
            for each, rows in written.items():
                if (end := self._ends.get(each)) is not None and rows:
                    end.settle(rows[-1][0] + len(rows[-1][1]))
            self._forget_ends()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        """A superseded scheduler writes nothing, and does not know which jobs live."""
        with _explained(), self._engine.begin() as connection:
            # Held until this is written: it waits for no commit, and a scheduler that takes over waits for it.
            term = connection.execute(select(meta.c.term).with_for_update(read=True, key_share=True)).scalar()
            if term != self._term:
                raise TermSuperseded(f"another scheduler has opened the store in term {term}")
            yield connection

    def marks(self, stream: StreamKey) -> list[Mark]:
        found = self._rows(select(mark_column.at_us, mark_column.end).where(_marks_of(stream)).order_by("at_us"))
        return [Mark(Instant(row.at_us), row.end) for row in found]

    def replace_marks(self, stream: StreamKey, marks: Sequence[Mark]) -> None:
        with self._transaction() as connection:
            connection.execute(delete(output_time).where(_marks_of(stream)))
            connection.execute(insert(output_time), [_mark_row(stream, mark) for mark in marks])

    def _forget_ends(self) -> None:
        for each in list(self._ends)[: max(len(self._ends) - OPEN_ENDS_MAX, 0)]:
            if self._ends[each].synced == self._ends[each].end:
                del self._ends[each]

    def cut(self, segment: SegmentKey, size: int) -> None:
        raise AssertionError("a sync of rows writes them all or keeps them in memory; there is nothing to cut")

    def drop(self, segment: SegmentKey) -> None:
        with self._memory:
            self._ends.pop(segment, None)
            self._dropped.append(segment)

    def delete(self, job: JobId) -> None:
        with self._memory:
            for each in [each for each in self._ends if each.key.job == job]:
                del self._ends[each]
            self._dropped = [each for each in self._dropped if each.key.job != job]
        with self._transaction() as connection:
            connection.execute(delete(output_chunk).where(column.job_id == job))
            connection.execute(delete(output_time).where(mark_column.job_id == job))

    def examine(self, job: JobId) -> Iterator[SegmentCheck]:
        order = (column.attempt, column.rank, column.lineage, column.stream, column.segment, column.start)
        query = select(*order, column.is_head, column.data, column.checksum).where(column.job_id == job)
        with _explained(), self._engine.connect() as connection:
            rows = connection.execution_options(yield_per=ROWS_AT_ONCE).execute(query.order_by(*order))
            for (attempt, rank, lineage, stream, segment, _), of_segment in groupby(rows, key=_segment_of):
                key = RankKey(job, attempt, rank, lineage)
                check = SegmentCheck((key, OutputStream(stream)))
                _examine_rows(f"output of {key}, {OutputStream(stream).name.lower()}", segment, of_segment, check)
                yield check

    def inventory(self) -> list[StoredJob]:
        size = func.sum(func.length(column.data)).label("size")
        newest = func.extract("epoch", func.max(column.written_time)).label("newest")
        found = self._rows(select(column.job_id, size, newest).group_by(column.job_id))
        return [StoredJob(JobId(row.job_id), int(row.size), Instant(int(row.newest * 1_000_000))) for row in found]

    def close(self) -> None:
        self._engine.dispose()

    def _resumed(self, segment: SegmentKey, position: int) -> OpenEnd:
        """The last row of a segment that another run of this program began, or this one long ago."""
        row_start = position - position % ROW_BYTES
        begun = self.read(segment, row_start, position - row_start) if position > row_start else b""
        return OpenEnd(segment.start + row_start, begun)

    def _rows(self, query: Any) -> Sequence[Any]:
        with _explained(), self._engine.connect() as connection:
            return connection.execute(query).all()


def _of(segment: SegmentKey) -> ColumnElement[bool]:
    key = segment.key
    of_rank = (column.job_id == key.job) & (column.attempt == key.attempt) & (column.rank == key.rank)
    of_rank &= column.lineage == key.lineage
    of_stream = (column.stream == int(segment.stream)) & (column.segment == segment.start)
    return of_rank & of_stream & (column.is_head == segment.is_head)


def _marks_of(stream: StreamKey) -> ColumnElement[bool]:
    key, of = stream
    of_rank = (mark_column.job_id == key.job) & (mark_column.attempt == key.attempt) & (mark_column.rank == key.rank)
    of_rank &= mark_column.lineage == key.lineage
    return of_rank & (mark_column.stream == int(of))


def _stream_columns(key: RankKey, stream: OutputStream) -> dict[str, object]:
    of_rank = {"job_id": key.job, "attempt": key.attempt, "rank": key.rank, "lineage": key.lineage}
    return {**of_rank, "stream": int(stream)}


def _mark_row(stream: StreamKey, mark: Mark) -> dict[str, object]:
    return _stream_columns(*stream) | {"at_us": mark.at, "end": mark.end}


def _row(segment: SegmentKey, start: int, data: bytes) -> dict[str, object]:
    piece = {"start": start, "segment": segment.start, "is_head": segment.is_head, "data": data}
    piece["checksum"] = zlib.crc32(data)
    return _stream_columns(segment.key, segment.stream) | piece


def _segment_of(row: Any) -> tuple[int, int, str, int, int, bool]:
    return row.attempt, row.rank, row.lineage, row.stream, row.segment, row.is_head


def _examine_rows(name: str, begin: int, rows: Iterable[Any], check: SegmentCheck) -> None:
    """Compare the rows of a segment, in order, with their checksums, and with each other."""
    end = begin
    for row in rows:
        if row.start != end:
            check.problems.append(f"{name}: the rows of bytes {end:,} to {row.start:,} are missing")
        end = row.start + len(row.data)
        if row.checksum is None:
            check.unchecked_bytes += len(row.data)
        elif zlib.crc32(row.data) == row.checksum:
            check.checked_bytes += len(row.data)
        else:
            check.problems.append(f"{name}: bytes {row.start:,} to {end:,} in output_chunk are not what was written")


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        raise OutputStoreUnavailable(f"stored output: {str(cause).strip()}") from error
