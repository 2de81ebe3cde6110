"""The output store: takes bytes at offsets, keeps what the limits allow, and says how far they are durable.

It is the same for files and for rows; what holds the bytes of a segment is a Shelf.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from ..clock import wall_time
from ..ports import Gap, Mark, Piece
from ..state.attempts import OutputStream
from ..state.ids import JobId, RankKey
from ..state.units import Instant
from .errors import OutputHole, OutputStoreUnavailable, SegmentsGone, UnsyncedBytesLost
from .layout import MIB, AttemptLayout, OutputLimits, Segment, StreamLayout
from .retention import DropMark, jobs_to_drop
from .segment_store import SegmentKey, SegmentStore, StreamKey, ends_on
from .times import MARKS_MAX, Marked, arrived_before, thinned

AttemptName = tuple[int, str]
"""The number and the lineage of an attempt of a job."""

JOBS_REMEMBERED_MAX = 4096
"""Jobs whose layouts stay in memory; others are looked up again when they are asked for."""

UNSYNCED_BYTES_MAX = 64 * MIB
UNSYNCED_STREAMS_MAX = 256
"""With more than this waiting to be synced, an append syncs first."""


class SegmentedOutputStore:
    """The port OutputStore. Several threads may call it; appends and syncs wait for each other, reads for neither."""

    def __init__(
        self,
        shelf: SegmentStore,
        limits: OutputLimits,
        wall_clock: Callable[[], Instant] = wall_time,
        drops: DropMark | None = None,
    ) -> None:
        self._shelf = shelf
        self._limits = limits
        self._wall_clock = wall_clock
        self._drops = drops
        self._jobs: OrderedDict[JobId, dict[AttemptName, AttemptLayout]] = OrderedDict()
        self._unsynced: dict[StreamKey, None] = {}
        self._unsynced_bytes = 0
        self._risen: dict[StreamKey, int] = {}
        # Whoever writes holds both, in this order; a sync lets readers in while the disk works.
        self._writing = threading.RLock()
        self._layouts = threading.RLock()

    def append(self, key: RankKey, stream: OutputStream, offset: int, data: bytes) -> int:
        """Add bytes at an offset; what is below the known end is ignored. Returns the end.

        Errors: OutputHole, OutputStoreUnavailable; then what was added before stays, as end() says.
        """
        with self._writing:
            if self._unsynced_bytes >= UNSYNCED_BYTES_MAX or len(self._unsynced) >= UNSYNCED_STREAMS_MAX:
                self._sync(list(self._unsynced))
            with self._layouts:
                attempt = self._attempt(key)
                layout = attempt.stream((key.rank, stream))
                # From here on its layout stays in memory until it is synced.
                self._unsynced[key, stream] = None
            if offset > layout.end:
                raise OutputHole(key, stream, offset, layout.end)
            if offset + len(data) > layout.end:
                with self._layouts:
                    attempt.turn_to((key.rank, stream), self._wall_clock)
            rest = memoryview(data)[layout.end - offset :]
            while rest:
                rest = rest[self._append_some(attempt, key, stream, layout, rest) :]
            return layout.end

    def _append_some(
        self, attempt: AttemptLayout, key: RankKey, stream: OutputStream, layout: StreamLayout, rest: memoryview
    ) -> int:
        segment, count = attempt.place(layout, len(rest))
        is_new = not layout.segments or segment is not layout.segments[-1]
        if is_new and layout.synced != layout.end:
            self._sync([(key, stream)])
        if is_new:
            with self._layouts:
                attempt.begin(layout, segment)
        while (victim := attempt.victim(segment, count)) is not None:
            (rank, of_stream), oldest = victim
            with self._layouts:
                attempt.give_up((rank, of_stream))
            self._shelf.drop(_named(replace(key, rank=rank), of_stream, oldest))
        self._shelf.write(_named(key, stream, segment), segment.size, rest[:count])
        with self._layouts:
            attempt.grow(segment, count)
            self._unsynced[key, stream] = None  # it may have been synced on the way
        self._unsynced_bytes += count
        return count

    def end(self, key: RankKey, stream: OutputStream) -> int:
        """Offset behind the last byte known; 0 for a stream never seen."""
        with self._layouts:
            layout = self._known(key, stream)
            return 0 if layout is None else layout.end

    def synced(self, key: RankKey, stream: OutputStream) -> int:
        """Offset below which every byte is durable; after a restart this makes sure of it first."""
        with self._layouts:
            layout = self._known(key, stream)
            if layout is None or layout.synced is not None:
                return 0 if layout is None or layout.synced is None else layout.synced
        with self._writing:
            self._sync([(key, stream)])
            self._risen.pop((key, stream), None)
            return layout.end

    def sync(self) -> list[tuple[RankKey, OutputStream, int]]:
        """Make everything appended so far durable; the streams whose synced offset rose, with that offset.

        Errors: OutputStoreUnavailable; the synced offsets stay, the ends may have gone back to them.
        """
        with self._writing:
            self._sync(list(self._unsynced))
            risen, self._risen = self._risen, {}
        return [(key, stream, synced) for (key, stream), synced in risen.items()]

    def _sync(self, streams: list[StreamKey]) -> None:
        with self._layouts:
            layouts = {each: layout for each in streams if (layout := self._known(*each)) is not None}
        segments = [_named(*each, segment) for each, layout in layouts.items() for segment in layout.unsynced()]
        marks = self._next_marks(layouts)
        try:
            if segments:
                self._shelf.sync(segments, marks)
        except UnsyncedBytesLost as error:
            self._forget_unsynced(layouts)
            if isinstance(error, SegmentsGone):
                self._go_on_without(error.lost)
            raise
        with self._layouts:
            for each, layout in layouts.items():
                if layout.synced != layout.end:
                    layout.synced = self._risen[each] = layout.end
                for mark in marks.get(each, ()):
                    layout.marked = (layout.marked or Marked()).grown(mark)
                if each in marks:
                    layout.turns.clear()
        self._settle(streams)

    def _next_marks(self, layouts: Mapping[StreamKey, StreamLayout]) -> dict[StreamKey, list[Mark]]:
        """Further marks of each stream that has grown since its newest one. Bytes never wait for a mark that fails."""
        now = self._wall_clock()
        marks: dict[StreamKey, list[Mark]] = {}
        with suppress(OutputStoreUnavailable):
            for each, layout in layouts.items():
                if layout.marked is None:
                    layout.marked = Marked.of(self._shelf.marks(each))
                if layout.marked.count + len(layout.turns) >= MARKS_MAX:
                    kept = thinned(self._shelf.marks(each))
                    self._shelf.replace_marks(each, kept)
                    layout.marked = Marked.of(kept)
                at = self._attempt(each[0]).mark_time(now)
                if fresh := layout.marked.following([*layout.turns, Mark(at, layout.end)]):
                    marks[each] = fresh
        return marks

    def _forget_unsynced(self, layouts: dict[StreamKey, StreamLayout]) -> None:
        """They are offered again, since nobody was told that they are durable."""
        for (key, stream), layout in layouts.items():
            with self._layouts:
                shortened = self._attempt(key).cut_unsynced(layout)
            if shortened is not None:
                self._shelf.cut(_named(key, stream, shortened), shortened.size)
        self._settle(layouts)

    def _go_on_without(self, gone: Sequence[SegmentKey]) -> None:
        """What was removed is a gap from now on, and the streams go on behind it."""
        without_head = {(each.key, each.stream) for each in gone if each.is_head}
        for key, stream in dict.fromkeys((each.key, each.stream) for each in gone):
            with self._layouts:
                layout = self._known(key, stream)
                assert layout is not None, "what is written is known"
                lost = self._attempt(key).go_on_without(layout, keeps_head=(key, stream) not in without_head)
            for each in lost:
                self._shelf.drop(_named(key, stream, each))

    def _settle(self, streams: Iterable[StreamKey]) -> None:
        with self._layouts:
            for each in streams:
                self._unsynced.pop(each, None)
            if not self._unsynced:
                self._unsynced_bytes = 0

    def read(self, key: RankKey, stream: OutputStream, offset: int, limit: int) -> Piece | Gap | None:
        """At most `limit` bytes from an offset, or the gap that begins there, or None at the end.

        Bytes that were stored and that somebody removed are a gap, too. Errors: OutputStoreUnavailable.
        """
        assert offset >= 0 and limit > 0, f"nothing can be read at {offset}, {limit} bytes"
        while True:
            with self._layouts:
                layout = self._known(key, stream)
                found = None if layout is None else layout.at(offset)
                if found is None or isinstance(found, Gap):
                    return found
                position, left = offset - found.start, found.end - offset
            data = self._shelf.read(_named(key, stream, found), position, min(limit, left))
            if data:
                return Piece(offset=offset, data=data)
            with self._layouts:
                if layout is not None and layout is self._known(key, stream) and layout.at(offset) is found:
                    return Gap(offset=offset, end=found.end)

    def arrived_before(self, key: RankKey, stream: OutputStream, at: Instant) -> int:
        """An offset below which every byte arrived before an instant of the wall clock; 0 when none is known to.

        It may be lower than it could be: by what came within a sync, and for old output within two hundredths of its
        age. What arrived at the instant or later is never below it. Errors: OutputStoreUnavailable.
        """
        with self._layouts:
            if (layout := self._known(key, stream)) is None:
                return 0
        return min(arrived_before(self._shelf.marks((key, stream)), at), layout.end)

    def arrivals(self, key: RankKey, stream: OutputStream) -> list[Mark]:
        """How long the stream was when, oldest first, wherever that is known. Errors: OutputStoreUnavailable."""
        with self._layouts:
            layout = self._known(key, stream)
            turns = [] if layout is None else list(layout.turns)
        stored = [] if layout is None else self._shelf.marks((key, stream))
        return [*stored, *Marked.of(stored).following(turns)]

    def streams(self, job: JobId) -> list[tuple[RankKey, OutputStream]]:
        """Every stream that is stored of a job, in order."""
        with self._layouts:
            attempts = self._job(job)
            names = [
                (RankKey(job, number, rank, lineage), stream)
                for (number, lineage), attempt in attempts.items()
                for (rank, stream), layout in attempt.streams.items()
                if layout.segments
            ]
        return sorted(names)

    def ends_found(self, job: JobId) -> dict[StreamKey, int]:
        """How far each stream of a job is there now, whatever was known of it; unsynced bytes may be left out."""
        return ends_on(self._shelf, job)

    def delete(self, job: JobId) -> None:
        """Drop all output of a job."""
        with self._writing:
            with self._layouts:
                self._jobs.pop(job, None)
                for each in [each for each in (*self._unsynced, *self._risen) if each[0].job == job]:
                    self._unsynced.pop(each, None)
                    self._risen.pop(each, None)
            self._shelf.delete(job)

    def retain(self, before: Instant, bytes_max: int, live: frozenset[JobId]) -> list[JobId]:
        """Delete output last written before an instant, and the oldest beyond a total size, never that of a live job.

        Returns the jobs whose output is gone. It looks at everything stored and may take seconds.
        """
        dropped = jobs_to_drop(self._shelf.inventory(), before=before, bytes_max=bytes_max, live=live)
        if dropped and self._drops is not None:
            self._drops.note(max(each.written_at for each in dropped))
        for each in dropped:
            self.delete(each.job)
        return [each.job for each in dropped]

    def change_limits(self, limits: OutputLimits) -> None:
        """Keep so much of every attempt from now on; what is stored beyond it goes when more is appended."""
        with self._writing, self._layouts:
            self._limits = limits
            for attempts in self._jobs.values():
                for attempt in attempts.values():
                    attempt.limits = limits

    def close(self) -> None:
        """Release what is held open; unsynced bytes may be lost."""
        with self._writing, self._layouts:
            self._shelf.close()

    def _attempt(self, key: RankKey) -> AttemptLayout:
        attempts = self._job(key.job)
        attempt = attempts.get(_attempt_of(key))
        if attempt is None:
            attempt = attempts[_attempt_of(key)] = AttemptLayout(self._limits)
        return attempt

    def _known(self, key: RankKey, stream: OutputStream) -> StreamLayout | None:
        attempt = self._job(key.job).get(_attempt_of(key))
        return None if attempt is None else attempt.streams.get((key.rank, stream))

    def _job(self, job: JobId) -> dict[AttemptName, AttemptLayout]:
        attempts = self._jobs.get(job)
        if attempts is None:
            attempts = self._jobs[job] = self._restored(job)
            self._forget_jobs()
        self._jobs.move_to_end(job)
        return attempts

    def _restored(self, job: JobId) -> dict[AttemptName, AttemptLayout]:
        found: dict[StreamKey, list[Segment]] = {}
        for each, segment in self._shelf.find(job):
            found.setdefault(each, []).append(segment)
        attempts: dict[AttemptName, AttemptLayout] = {}
        for (key, stream), segments in found.items():
            attempt = attempts.setdefault(_attempt_of(key), AttemptLayout(self._limits))
            for stray in attempt.restore((key.rank, stream), segments):
                self._shelf.drop(_named(key, stream, stray))
        return attempts

    def _forget_jobs(self) -> None:
        busy = {key.job for key, _ in self._unsynced}
        for job in list(self._jobs)[:-1]:
            if len(self._jobs) <= JOBS_REMEMBERED_MAX:
                return
            if job not in busy:
                del self._jobs[job]


def _attempt_of(key: RankKey) -> AttemptName:
    return key.attempt, key.lineage


def _named(key: RankKey, stream: OutputStream, segment: Segment) -> SegmentKey:
    return SegmentKey(key, stream, segment.start, segment.is_head)
