"""The contract of the output store, on files and on rows."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import pytest

from scheduler.outputs import layout, rows, segmented
from scheduler.outputs.errors import OutputHole
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.ports import Gap, OutputStore, Piece
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from scheduler.state.units import Instant
from tests.outputs.conftest import Reopen

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
KEY = RankKey(JobId(7), 1, 0)

FOLLOWER_SECONDS = 0.001
"""So long a follower waits where nothing is there to read: one that spins takes the time of who writes."""


Parts = list[Piece | Gap]


def everything(outputs: OutputStore, key: RankKey = KEY, stream: OutputStream = OUT, limit: int = 1000) -> Parts:
    """What a follower from the beginning is given, pieces that meet joined."""
    found: Parts = []
    offset = 0
    while (part := outputs.read(key, stream, offset, limit)) is not None:
        assert part.offset == offset
        offset = part.end if isinstance(part, Gap) else offset + len(part.data)
        if found and isinstance(part, Piece) and isinstance(before := found[-1], Piece):
            assert 0 < len(part.data) <= limit
            found[-1] = Piece(offset=before.offset, data=before.data + part.data)
        else:
            found.append(part)
    return found


def text(outputs: OutputStore, key: RankKey = KEY, stream: OutputStream = OUT, limit: int = 1000) -> bytes:
    """All bytes of a stream that has no gap."""
    parts = everything(outputs, key, stream, limit)
    assert all(isinstance(part, Piece) for part in parts), parts
    return b"".join(part.data for part in parts if isinstance(part, Piece))


def numbered(start: int, count: int) -> bytes:
    """Bytes that say where in the stream they are."""
    return bytes((offset * 7 + offset // 251) % 251 for offset in range(start, start + count))


def test_a_stream_never_seen_is_empty(outputs: SegmentedOutputStore) -> None:
    port: OutputStore = outputs
    assert (port.end(KEY, OUT), port.synced(KEY, OUT), port.read(KEY, OUT, 0, 10)) == (0, 0, None)
    assert port.streams(KEY.job) == []
    assert port.sync() == []


def test_bytes_are_read_where_they_were_appended_before_and_after_a_sync(outputs: SegmentedOutputStore) -> None:
    assert outputs.append(KEY, OUT, 0, b"hello ") == 6
    assert outputs.append(KEY, OUT, 6, b"world") == 11
    for _ in range(2):
        assert outputs.read(KEY, OUT, 0, 100) == Piece(offset=0, data=b"hello world")
        assert outputs.read(KEY, OUT, 6, 3) == Piece(offset=6, data=b"wor")
        assert outputs.read(KEY, OUT, 11, 100) is None
        outputs.sync()


def test_what_is_known_is_ignored_and_only_the_rest_is_added(outputs: SegmentedOutputStore) -> None:
    outputs.append(KEY, OUT, 0, b"abcdef")
    assert outputs.append(KEY, OUT, 0, b"abc") == 6
    assert outputs.append(KEY, OUT, 6, b"") == 6
    outputs.sync()
    assert outputs.append(KEY, OUT, 4, b"efgh") == 8
    assert text(outputs) == b"abcdefgh"


def test_a_hole_is_refused_with_the_offset_to_go_on_from(outputs: SegmentedOutputStore) -> None:
    outputs.append(KEY, OUT, 0, b"abc")
    with pytest.raises(OutputHole, match="stdout of 7/1: bytes from 5 on would leave a hole behind 3") as refused:
        outputs.append(KEY, OUT, 5, b"x")
    assert refused.value.end == 3
    assert text(outputs) == b"abc"


def test_a_sync_says_which_streams_are_durable_how_far_and_once(outputs: SegmentedOutputStore) -> None:
    other = RankKey(JobId(7), 1, 3)
    outputs.append(KEY, OUT, 0, b"abc")
    outputs.append(other, ERR, 0, b"defg")
    assert outputs.synced(KEY, OUT) == 0
    assert sorted(outputs.sync()) == [(KEY, OUT, 3), (other, ERR, 4)]
    assert outputs.synced(KEY, OUT) == 3
    outputs.append(KEY, OUT, 0, b"abc")
    assert outputs.sync() == []
    outputs.append(KEY, OUT, 3, b"h")
    assert outputs.sync() == [(KEY, OUT, 4)]


def test_streams_do_not_mix_and_are_listed_in_order(outputs: SegmentedOutputStore) -> None:
    keys = [RankKey(JobId(job), attempt, rank) for job in (7, 70) for attempt in (1, 2, 10) for rank in (0, 1)]
    for key, stream in itertools.product(reversed(keys), (ERR, OUT)):
        outputs.append(key, stream, 0, f"{key} {stream}".encode())
    for key, stream in itertools.product(keys, (OUT, ERR)):
        assert text(outputs, key, stream) == f"{key} {stream}".encode()
    assert outputs.streams(JobId(7)) == [(key, stream) for key in keys[:6] for stream in (OUT, ERR)]


def test_attempts_of_other_lineages_with_the_same_numbers_do_not_mix(reopen: Reopen) -> None:
    keys = [replace(KEY, lineage=lineage) for lineage in ("", "00f067aa0ba902b7", "a3ce929d0e0e4736")]
    outputs = reopen()
    for key in keys[:2]:
        outputs.append(key, OUT, 0, f"of {key.lineage}".encode())
        outputs.append(key, ERR, 0, b"!")
    outputs.sync()
    outputs = reopen()
    assert outputs.streams(KEY.job) == [(key, stream) for key in keys[:2] for stream in (OUT, ERR)]
    assert (outputs.end(keys[2], OUT), outputs.synced(keys[2], OUT), outputs.arrivals(keys[2], OUT)) == (0, 0, [])
    outputs.append(keys[2], OUT, 0, b"of the third")
    outputs.append(keys[1], OUT, 19, b", and more")
    outputs.sync()
    outputs = reopen()
    assert [text(outputs, key) for key in keys] == [b"of ", b"of 00f067aa0ba902b7, and more", b"of the third"]
    assert [mark.end for mark in outputs.arrivals(keys[1], OUT)][-1] == 29
    outputs.delete(KEY.job)
    assert outputs.streams(KEY.job) == []


def test_what_was_synced_is_there_after_a_restart_and_goes_on(reopen: Reopen) -> None:
    outputs = reopen()
    written = b""
    for number in range(4):
        written += numbered(len(written), 10_000 + number)
        outputs.append(KEY, OUT, 0, written)
        outputs.sync()
        outputs = reopen()
        assert outputs.end(KEY, OUT) == len(written)
        assert outputs.synced(KEY, OUT) == len(written)
        assert text(outputs, limit=7_000) == written
        assert outputs.streams(KEY.job) == [(KEY, OUT)]
    assert outputs.sync() == []


def test_after_a_restart_a_sync_reports_what_was_appended_to_since(reopen: Reopen) -> None:
    first = reopen()
    first.append(KEY, OUT, 0, b"abc")
    first.sync()
    second = reopen()
    second.append(KEY, OUT, 1, b"bcd")
    assert second.sync() == [(KEY, OUT, 4)]


def test_bytes_beyond_the_limit_leave_a_gap_between_the_first_and_the_last(reopen: Reopen) -> None:
    limits = OutputLimits(head_bytes=20_000, tail_bytes=8 * layout.SEGMENT_BYTES_MIN)
    outputs = reopen(limits)
    total = 200_000
    for start in range(0, total, 3_000):
        outputs.append(KEY, OUT, start, numbered(start, min(3_000, total - start)))
    for _ in range(2):
        assert outputs.end(KEY, OUT) == total
        before, *after = everything(outputs)
        head = numbered(0, limits.head_bytes)
        assert before == Piece(offset=0, data=head)
        gap, tail = after
        assert isinstance(gap, Gap) and isinstance(tail, Piece)
        assert tail.data == numbered(gap.end, total - gap.end)
        assert limits.tail_bytes - layout.SEGMENT_BYTES_MIN < len(tail.data) <= limits.tail_bytes
        assert outputs.read(KEY, OUT, gap.offset + 1, 10) == Gap(offset=gap.offset + 1, end=gap.end)
        outputs.sync()
        outputs = reopen(limits)
    outputs.append(KEY, OUT, total, numbered(total, 50_000))
    assert outputs.end(KEY, OUT) == total + 50_000


def test_a_flood_on_one_stream_does_not_drown_the_others_of_its_attempt(reopen: Reopen) -> None:
    outputs = reopen(OutputLimits(head_bytes=5_000, tail_bytes=100_000))
    other = RankKey(KEY.job, KEY.attempt, 1)
    outputs.append(KEY, OUT, 0, numbered(0, 60_000))
    outputs.append(other, OUT, 0, numbered(0, 9_000))
    outputs.append(KEY, OUT, 60_000, numbered(60_000, 500_000))
    outputs.append(KEY, ERR, 0, b"warning")
    assert text(outputs, other) == numbered(0, 9_000)
    assert text(outputs, KEY, ERR) == b"warning"
    assert outputs.read(KEY, OUT, 0, 5_000) == Piece(offset=0, data=numbered(0, 5_000))


def test_the_next_attempt_has_a_limit_of_its_own(reopen: Reopen) -> None:
    outputs = reopen(OutputLimits(head_bytes=5_000, tail_bytes=10_000))
    outputs.append(KEY, OUT, 0, numbered(0, 90_000))
    second = RankKey(KEY.job, 2, 0)
    outputs.append(second, OUT, 0, numbered(0, 14_000))
    assert text(outputs, second) == numbered(0, 14_000)


def test_a_changed_limit_holds_for_what_comes(reopen: Reopen) -> None:
    outputs = reopen(OutputLimits(head_bytes=0, tail_bytes=80_000))
    outputs.append(KEY, OUT, 0, numbered(0, 80_000))
    outputs.change_limits(OutputLimits(head_bytes=0, tail_bytes=20_000))
    outputs.append(KEY, OUT, 80_000, b"x")
    assert sum(len(part.data) for part in everything(outputs) if isinstance(part, Piece)) <= 20_000
    assert everything(outputs)[-1].offset <= 80_000
    assert outputs.end(KEY, OUT) == 80_001


def test_deleted_output_is_gone_and_others_stay(reopen: Reopen) -> None:
    outputs = reopen()
    other = RankKey(JobId(8), 1, 0)
    outputs.append(KEY, OUT, 0, b"synced")
    outputs.append(other, OUT, 0, b"other")
    outputs.sync()
    outputs.append(KEY, ERR, 0, b"not synced")
    outputs.delete(KEY.job)
    outputs.delete(JobId(99))
    assert outputs.sync() == []
    for _ in range(2):
        assert outputs.streams(KEY.job) == []
        assert outputs.end(KEY, OUT) == 0
        assert outputs.read(KEY, OUT, 0, 10) is None
        assert text(outputs, other) == b"other"
        outputs = reopen()


def test_old_output_is_dropped_and_then_the_oldest_until_the_rest_fits_but_never_of_a_live_job(
    outputs: SegmentedOutputStore,
) -> None:
    for job in range(1, 6):
        outputs.append(RankKey(JobId(job), 1, 0), OUT, 0, b"x" * 1000)
        outputs.sync()
    long_ago, far_ahead = Instant(0), Instant((time.time_ns() // 1000) + 3600_000_000)
    nobody: frozenset[JobId] = frozenset()
    assert outputs.retain(long_ago, 10**9, nobody) == []
    assert outputs.retain(long_ago, 5_000, nobody) == []
    assert outputs.retain(long_ago, 3_500, frozenset({JobId(1)})) == [2, 3]
    assert outputs.streams(JobId(1)) and not outputs.streams(JobId(2))
    assert outputs.retain(far_ahead, 10**9, frozenset({JobId(4)})) == [1, 5]
    assert text(outputs, RankKey(JobId(4), 1, 0)) == b"x" * 1000


def test_followers_read_while_a_flood_is_appended(reopen: Reopen) -> None:
    outputs = reopen(OutputLimits(head_bytes=10_000, tail_bytes=60_000))
    total = 600_000
    wrong: list[object] = []

    def follow() -> None:
        offset = 0
        while offset < total:
            match outputs.read(KEY, OUT, offset, 5_000):
                case None:
                    time.sleep(FOLLOWER_SECONDS)
                case Gap() as gap:
                    offset = gap.end
                case Piece() as piece:
                    if piece.offset != offset or piece.data != numbered(offset, len(piece.data)):
                        wrong.append(piece)
                        return
                    offset += len(piece.data)

    followers = [threading.Thread(target=follow) for _ in range(2)]
    for follower in followers:
        follower.start()
    for start in range(0, total, 20_000):
        outputs.append(KEY, OUT, start, numbered(start, 20_000))
        outputs.sync()
    for follower in followers:
        follower.join()
    assert wrong == []


def test_more_jobs_than_are_remembered_are_looked_up_again(reopen: Reopen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmented, "JOBS_REMEMBERED_MAX", 3)
    monkeypatch.setattr(rows, "OPEN_ENDS_MAX", 2)
    outputs = reopen()
    keys = [RankKey(JobId(job), 1, 0) for job in range(1, 9)]
    for part in range(3):
        for key in keys:
            outputs.append(key, OUT, 10 * part, numbered(10 * part, 10))
        if part:
            assert sorted(outputs.sync()) == [(key, OUT, 10 * part + 10) for key in keys]
    assert [text(outputs, key) for key in keys] == [numbered(0, 30)] * len(keys)


def test_an_append_syncs_first_when_too_much_waits(
    outputs: SegmentedOutputStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segmented, "UNSYNCED_BYTES_MAX", 1_000)
    monkeypatch.setattr(segmented, "UNSYNCED_STREAMS_MAX", 3)
    other = [RankKey(JobId(9), 1, rank) for rank in range(4)]
    outputs.append(KEY, OUT, 0, b"x" * 1_000)
    assert outputs.synced(KEY, OUT) == 0
    outputs.append(other[0], OUT, 0, b"y")
    assert outputs.synced(KEY, OUT) == 1_000
    for key in other[1:]:
        outputs.append(key, OUT, 0, b"y")
    assert outputs.synced(other[0], OUT) == 1
    # Nothing that became durable on the way goes unreported.
    assert sorted(outputs.sync()) == [(KEY, OUT, 1_000), *((key, OUT, 1) for key in other)]
