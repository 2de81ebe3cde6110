"""Which bytes of an attempt's output are kept where: the arithmetic of docs/rules/jobs.md 5.5, without any bytes.

All streams of an attempt share its limit. The first bytes to arrive are its head and stay. What comes after the head is
full goes to the tail, in segments; when the tail is full, the stream that holds most of it gives up its oldest segment.
Offsets stay those of the original stream, so what was given up is a gap, and a stream has at most one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ..ports import Gap, Mark
from ..state.attempts import OutputStream
from ..state.units import Instant
from .times import TURNS_MAX, Marked

MIB = 1024 * 1024

TAIL_SEGMENTS = 16
"""Into how many segments, at least, a stream's equal part of the tail is cut: the grain of what is given up."""

SEGMENT_BYTES_MIN = 4096

RankStream = tuple[int, OutputStream]


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputLimits:
    """How much of an attempt's output is kept, over all its ranks and streams."""

    head_bytes: int = 256 * MIB
    tail_bytes: int = 768 * MIB


@dataclass(slots=True)
class Segment:
    """Consecutive bytes of one stream that are kept, and given up, together."""

    start: int
    is_head: bool
    size: int = 0

    @property
    def end(self) -> int:
        """Offset behind its last byte."""
        return self.start + self.size


@dataclass(slots=True)
class StreamLayout:
    """The segments of one stream in order, and how far they are durable (None: nobody has made sure yet).

    `marked` is what is known of its marks of time; None: nobody has looked yet. `turns` are marks that wait for the
    next sync: another stream of the attempt went on there.
    """

    segments: list[Segment] = field(default_factory=list)
    synced: int | None = 0
    marked: Marked | None = Marked()
    turns: list[Mark] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Offset behind the last byte known."""
        return self.segments[-1].end if self.segments else 0

    @property
    def has_tail(self) -> bool:
        """Whether the stream has grown beyond the head."""
        return bool(self.segments) and not self.segments[-1].is_head

    @property
    def oldest_tail(self) -> int:
        """Index of the oldest segment of the tail."""
        return 1 if self.segments and self.segments[0].is_head else 0

    @property
    def tail_bytes(self) -> int:
        """How much of the tail it holds: all there is beyond the head is in one piece."""
        return self.end - self.segments[self.oldest_tail].start if self.has_tail else 0

    def at(self, offset: int) -> Segment | Gap | None:
        """The segment that holds the byte at an offset, or the gap from there on, or None at and beyond the end."""
        before = 0
        for segment in self.segments:
            if before <= offset < segment.start:
                return Gap(offset=offset, end=segment.start)
            if offset < segment.end:
                return segment
            before = segment.end
        return None

    def turned(self, at: Instant) -> None:
        """Another stream goes on: mark how long this one is."""
        newest = self.turns[-1] if self.turns else None if self.marked is None else self.marked.newest
        if newest is not None and self.end <= newest.end:
            return
        del self.turns[TURNS_MAX - 1 :]
        self.turns.append(Mark(at, self.end))

    def unsynced(self) -> list[Segment]:
        """The segments with bytes that are not known to be durable."""
        return [segment for segment in self.segments if self.synced is None or self.synced < segment.end]


@dataclass(slots=True)
class AttemptLayout:
    """All streams of one attempt under its limits."""

    limits: OutputLimits
    streams: dict[RankStream, StreamLayout] = field(default_factory=dict)
    head_bytes: int = 0
    tail_bytes: int = 0
    written: RankStream | None = None
    newest_mark: Instant = Instant(0)

    def turn_to(self, rank_stream: RankStream, now: Callable[[], Instant]) -> None:
        """Bytes of a stream arrive: where those before were another one's, mark how far it came."""
        before, self.written = self.written, rank_stream
        if before is not None and before != rank_stream:
            self.stream(before).turned(self.mark_time(now()))

    def mark_time(self, now: Instant) -> Instant:
        """The time of the next mark: it rises over all streams, so that marks tell who came first."""
        self.newest_mark = Instant(max(now, self.newest_mark + 1))
        return self.newest_mark

    def stream(self, rank_stream: RankStream) -> StreamLayout:
        """A stream's layout, empty at first."""
        return self.streams.setdefault(rank_stream, StreamLayout())

    def restore(self, rank_stream: RankStream, found: Iterable[Segment]) -> list[Segment]:
        """Take over the segments found after a restart; returns leftovers of the tail that belong to nothing.

        A segment is durable before the next begins, so one that does not join those after it was given up before,
        and its removal did not survive.
        """
        newest_first = sorted(found, key=lambda segment: (segment.is_head, -segment.start))
        kept: list[Segment] = []
        strays: list[Segment] = []
        for segment in newest_first:
            if segment.is_head or not kept or segment.end == kept[-1].start:
                kept.append(segment)
            else:
                strays.append(segment)
        self.streams[rank_stream] = restored = StreamLayout(kept[::-1], synced=None, marked=None)
        self.head_bytes += sum(segment.size for segment in kept if segment.is_head)
        self.tail_bytes += restored.tail_bytes
        return strays

    def place(self, stream: StreamLayout, wanted: int) -> tuple[Segment, int]:
        """Where the next bytes of a stream go, and how many of `wanted` go there; begin() a segment that is new."""
        newest = stream.segments[-1] if stream.segments else None
        head_room = self.limits.head_bytes - self.head_bytes
        if not stream.has_tail and head_room > 0:
            return newest or Segment(0, is_head=True), min(wanted, head_room)
        capacity = max(SEGMENT_BYTES_MIN, self.limits.tail_bytes // (TAIL_SEGMENTS * len(self.streams)))
        if newest is None or newest.is_head or newest.size >= capacity:
            return Segment(stream.end, is_head=False), min(wanted, capacity)
        return newest, min(wanted, capacity - newest.size)

    def begin(self, stream: StreamLayout, segment: Segment) -> None:
        """Add a segment behind the others, all of which must be durable: restore() relies on it."""
        assert stream.synced == segment.start == stream.end
        stream.segments.append(segment)

    def victim(self, segment: Segment, count: int) -> tuple[RankStream, Segment] | None:
        """What must give way before `count` bytes go to that segment, one at a time.

        A stream's newest segment never does, since its end is where the stream goes on. With very many streams under
        a very small limit the tail may therefore grow beyond it, by SEGMENT_BYTES_MIN for each stream.
        """
        if segment.is_head or self.tail_bytes + count <= self.limits.tail_bytes:
            return None
        holders = [(key, each) for key, each in self.streams.items() if len(each.segments) - each.oldest_tail > 1]
        if not holders:
            return None
        key, largest = max(holders, key=lambda holder: holder[1].tail_bytes)
        return key, largest.segments[largest.oldest_tail]

    def give_up(self, rank_stream: RankStream) -> None:
        """Forget the oldest segment of a stream's tail."""
        stream = self.streams[rank_stream]
        self.tail_bytes -= stream.segments.pop(stream.oldest_tail).size

    def grow(self, segment: Segment, count: int) -> None:
        """Count bytes that were written to a segment of this attempt."""
        segment.size += count
        if segment.is_head:
            self.head_bytes += count
        else:
            self.tail_bytes += count

    def go_on_without(self, stream: StreamLayout, *, keeps_head: bool) -> list[Segment]:
        """Begin a tail at the end of a stream whose stored bytes are gone; the segments that are kept no more.

        What they held becomes a gap, since offsets stay those of the original stream.
        """
        end, kept = stream.end, [each for each in stream.segments if each.is_head and keeps_head]
        lost = [each for each in stream.segments if each not in kept]
        for each in lost:
            self.grow(each, -each.size)
        stream.segments = [*kept, Segment(end, is_head=False)]
        stream.synced = end
        return lost

    def cut_unsynced(self, stream: StreamLayout) -> Segment | None:
        """Forget the bytes of a stream that are not known to be durable; the segment that lost them, if any."""
        newest = stream.segments[-1] if stream.segments else None
        if newest is None or stream.synced is None or stream.synced >= newest.end:
            return None
        # Only the newest segment can hold such bytes: it began when all before it were durable.
        assert stream.synced >= newest.start
        stream.turns = [turn for turn in stream.turns if turn.end <= stream.synced]
        self.grow(newest, stream.synced - newest.end)
        return newest
