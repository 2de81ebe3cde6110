"""The spool by itself: a pipe at one end, a reader at the other, and a bound between them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node_agent.core.offsets import SPOOL_BYTES_MIN
from node_agent.core.outcome import FullReason, Offsets, Stream
from node_agent.spool import ReadOutcome, SpoolGap, SpoolReader, SpoolWriter
from node_agent.spool.layout import segment_path
from tests.rings.choosing import examples


class Feed:
    """A pipe whose reading end does not block."""

    def __init__(self) -> None:
        self.fd, self.end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, data: bytes) -> int:
        try:
            return os.write(self.end, data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        os.close(self.fd)
        os.close(self.end)


def read_all(reader: SpoolReader, stream: Stream, offset: int) -> bytes:
    pieces = []
    while piece := reader.read(stream, offset, 1000).data:
        pieces.append(piece)
        offset += len(piece)
    return b"".join(pieces)


steps = st.lists(
    st.tuples(
        st.sampled_from(("write", "take", "delete")),
        st.sampled_from(list(Stream)),
        st.integers(1, 20_000),
    ),
    max_size=60,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=examples(60))
@given(steps)
def test_what_is_written_is_what_is_read_whatever_the_order_of_writing_taking_and_deleting(
    todo: list[tuple[str, Stream, int]],
) -> None:
    with TemporaryDirectory() as place:
        writer = SpoolWriter(Path(place), SPOOL_BYTES_MIN)
        reader = SpoolReader(place)
        feeds = {stream: Feed() for stream in Stream}
        written = {stream: bytearray() for stream in Stream}
        synced = dict.fromkeys(Stream, 0)
        for number, (step, stream, count) in enumerate(todo):
            if step == "write":
                data = bytes([number % 256]) * count
                written[stream] += data[: feeds[stream].write(data)]
            elif step == "take":
                taken = writer.take(stream, feeds[stream].fd)
                assert taken is not ReadOutcome.END
                assert (taken is ReadOutcome.FULL) == (writer.full is FullReason.BOUND)
            else:
                synced[stream] = min(synced[stream] + count, writer.ends.of(stream))
                writer.delete_below(Offsets(*(synced[each] for each in Stream)))
            ends, starts = writer.ends, writer.starts
            assert reader.ends() == ends
            assert sum(ends.of(each) - starts.of(each) for each in Stream) <= SPOOL_BYTES_MIN
            for each in Stream:
                assert starts.of(each) <= synced[each]
                begin, end = starts.of(each), ends.of(each)
                assert read_all(reader, each, begin) == written[each][begin:end]
        writer.seal()
        for feed in feeds.values():
            feed.close()


def test_the_end_of_the_pipe_is_told_apart_from_an_empty_one(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, SPOOL_BYTES_MIN)
    feed = Feed()
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.NOTHING
    feed.write(b"last")
    os.close(feed.end)
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.SOME
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.END
    os.close(feed.fd)
    writer.seal()
    assert SpoolReader(tmp_path).read(Stream.STDOUT, 0, 100).data == b"last"


def test_the_end_of_the_pipe_is_seen_also_when_there_is_no_room(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, SPOOL_BYTES_MIN)
    feed, silent = Feed(), Feed()
    while writer.take(Stream.STDOUT, feed.fd) is not ReadOutcome.FULL:
        feed.write(b"x" * 4096)
    assert writer.take(Stream.STDERR, silent.fd) is ReadOutcome.FULL, "it may say something yet"
    os.close(silent.end)
    assert writer.take(Stream.STDERR, silent.fd) is ReadOutcome.END
    os.close(silent.fd)
    os.close(feed.end)
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.FULL, "closed, and there is more in it"
    os.close(feed.fd)
    writer.seal()


def test_when_everything_is_synced_a_full_spool_has_room_again(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path, SPOOL_BYTES_MIN)
    feed = Feed()
    while writer.take(Stream.STDERR, feed.fd) is not ReadOutcome.FULL:
        feed.write(b"x" * 3000)
    assert writer.full is FullReason.BOUND
    freed = writer.delete_below(writer.ends)
    assert freed >= SPOOL_BYTES_MIN * 3 // 4
    assert writer.take(Stream.STDERR, feed.fd) is ReadOutcome.SOME
    assert writer.full is None
    writer.seal()
    feed.close()


def test_what_the_disk_had_no_room_for_keeps_its_place(tmp_path: Path) -> None:
    place = tmp_path / "not there yet"
    writer = SpoolWriter(place, SPOOL_BYTES_MIN)
    feed = Feed()
    feed.write(b"first ")
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.FULL
    assert writer.full is FullReason.DISK_FULL
    assert writer.ends == Offsets()
    feed.write(b"second")
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.FULL
    place.mkdir()
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.SOME
    writer.seal()
    feed.close()
    assert SpoolReader(place).read(Stream.STDOUT, 0, 100).data == b"first second"


def test_reading_below_what_is_kept_or_above_the_end_is_a_gap(tmp_path: Path) -> None:
    reader = SpoolReader(tmp_path)
    assert reader.read(Stream.STDOUT, 0, 10).data == b""
    with pytest.raises(SpoolGap, match="stdout at 5: the spool holds nothing"):
        reader.read(Stream.STDOUT, 5, 10)
    segment_path(tmp_path, Stream.STDOUT, 100).write_bytes(b"hello")
    assert reader.read(Stream.STDOUT, 102, 10).data == b"llo"
    assert reader.read(Stream.STDOUT, 105, 10).data == b""
    for offset in (99, 106):
        with pytest.raises(SpoolGap, match=f"stdout at {offset}: the spool holds 100 to 105"):
            reader.read(Stream.STDOUT, offset, 10)


def test_a_hole_ends_what_is_clean(tmp_path: Path) -> None:
    for start, data in ((0, b"abc"), (3, b"de"), (6, b"gone")):
        segment_path(tmp_path, Stream.STDERR, start).write_bytes(data)
    reader = SpoolReader(tmp_path)
    assert reader.ends() == Offsets(0, 5)
    assert read_all(reader, Stream.STDERR, 0) == b"abcde"


def test_a_segment_that_is_deleted_while_one_looks_for_another_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for start in (0, 10, 20):
        segment_path(tmp_path, Stream.STDOUT, start).write_bytes(b"x" * 10)
    scandir = os.scandir

    @contextmanager
    def listed_and_then_deleted(directory: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(directory) as entries:
            listed = list(entries)
        segment_path(tmp_path, Stream.STDOUT, 0).unlink(missing_ok=True)
        yield listed

    monkeypatch.setattr(os, "scandir", listed_and_then_deleted)
    assert SpoolReader(tmp_path).read(Stream.STDOUT, 20, 100).data == b"x" * 10


@pytest.mark.parametrize("kept_bytes", [0, 1, 4, 5])
def test_what_comes_behind_a_cut_never_takes_the_place_of_what_is_missing(tmp_path: Path, kept_bytes: int) -> None:
    writer = SpoolWriter(tmp_path, SPOOL_BYTES_MIN)
    feed = Feed()
    feed.write(b"first ")
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.SOME
    os.truncate(segment_path(tmp_path, Stream.STDOUT, 0), kept_bytes)
    feed.write(b"second")
    assert writer.take(Stream.STDOUT, feed.fd) is ReadOutcome.SOME
    writer.seal()
    feed.close()
    assert writer.ends == Offsets(12, 0)
    reader = SpoolReader(tmp_path)
    assert read_all(reader, Stream.STDOUT, 0) == b"first "[:kept_bytes]
    assert segment_path(tmp_path, Stream.STDOUT, 6).read_bytes() == b"second"
