"""A model of the head and the tail, held against the store under random appends, syncs and restarts."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.outputs import layout
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.ports import Gap, Piece
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from tests.rings.choosing import examples

LIMITS = OutputLimits(head_bytes=20, tail_bytes=64)
STREAMS = [(RankKey(JobId(1), 1, rank), stream) for rank in (0, 1) for stream in OutputStream]

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, len(STREAMS) - 1), st.integers(0, 30), st.integers(0, 5)),
        st.tuples(st.just("sync")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


def byte_at(stream: int, offset: int) -> int:
    return (offset * 7 + stream * 31) % 256


def content(stream: int, start: int, end: int) -> bytes:
    return bytes(byte_at(stream, offset) for offset in range(start, end))


@dataclass
class Model:
    """How long each stream is, how much of it must be readable, and how much of it the head took."""

    ends: dict[int, int] = field(default_factory=dict)
    heads: dict[int, int] = field(default_factory=dict)

    def append(self, stream: int, count: int) -> None:
        end = self.ends.get(stream, 0)
        room = LIMITS.head_bytes - sum(self.heads.values())
        if count and self.heads.get(stream, 0) == end:
            self.heads[stream] = end + min(room, count)
        self.ends[stream] = end + count


def kept_parts(store: SegmentedOutputStore, stream: int, chunk: int) -> list[Piece | Gap]:
    parts: list[Piece | Gap] = []
    offset = 0
    while (part := store.read(*STREAMS[stream], offset, chunk)) is not None:
        assert part.offset == offset
        parts.append(part)
        offset = part.end if isinstance(part, Gap) else offset + len(part.data)
    assert offset == store.end(*STREAMS[stream])
    return parts


def check(store: SegmentedOutputStore, model: Model, chunk: int) -> None:
    total = 0
    for stream, end in model.ends.items():
        assert store.end(*STREAMS[stream]) == end
        parts = kept_parts(store, stream, chunk)
        gaps = [part for part in parts if isinstance(part, Gap)]
        assert len(gaps) <= 1, "a stream has one gap at most"
        for part in parts:
            if isinstance(part, Piece):
                assert part.data == content(stream, part.offset, part.offset + len(part.data))
                total += len(part.data)
        if gaps:
            assert gaps[0].offset == model.heads.get(stream, 0), "the head stays whole"
            assert gaps[0].end < end or end == gaps[0].offset, "the newest bytes stay"
    # With four streams the tail of one is cut into pieces of SEGMENT_BYTES_MIN, so that little more than it needs goes.
    everything = sum(model.ends.values())
    assert total <= LIMITS.head_bytes + LIMITS.tail_bytes
    assert total >= min(everything, sum(model.heads.values()) + LIMITS.tail_bytes - 2 * layout.SEGMENT_BYTES_MIN)


@settings(max_examples=examples(150))
@given(script=steps, chunk=st.integers(1, 30))
def test_head_and_tail_keep_what_the_rule_says(script: list[tuple[object, ...]], chunk: int) -> None:
    model = Model()
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        patch.setattr(layout, "SEGMENT_BYTES_MIN", 4)
        store = SegmentedOutputStore(FileShelf(Path(folder)), LIMITS)
        with closing(store):
            for step in script:
                match step:
                    case ("append", int(stream), int(count), int(overlap)):
                        end = model.ends.get(stream, 0)
                        start = max(end - overlap, 0)
                        store.append(*STREAMS[stream], start, content(stream, start, end + count))
                        model.append(stream, count)
                    case ("sync",):
                        for key, of_stream, synced in store.sync():
                            assert synced == model.ends[STREAMS.index((key, of_stream))]
                    case ("restart",):
                        store.sync()
                        store.close()
                        store._shelf = FileShelf(Path(folder))
                        store._jobs.clear()
                check(store, model, chunk)
