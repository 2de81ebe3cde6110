"""Checksums of stored output: one flipped bit is found, and nothing that a crash or a stop leaves is called wrong."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.outputs import sums
from scheduler.outputs.errors import OutputStoreUnavailable
from scheduler.outputs.files import FileShelf
from scheduler.outputs.layout import OutputLimits
from scheduler.outputs.segment_store import SegmentCheck
from scheduler.outputs.segmented import SegmentedOutputStore
from scheduler.outputs.sums import ENTRY_BYTES, Block, GrowingSums, packed, unpacked
from scheduler.state.attempts import OutputStream
from scheduler.state.ids import JobId, RankKey
from tests.outputs.conftest import Reopen

OUT, ERR = OutputStream.STDOUT, OutputStream.STDERR
KEY = RankKey(JobId(7), 1, 0)
BLOCK = 1_000


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sums, "BLOCK_BYTES", BLOCK)


def numbered(start: int, count: int) -> bytes:
    return bytes((offset * 7 + offset // 251) % 251 for offset in range(start, start + count))


def examined(outputs: SegmentedOutputStore) -> SegmentCheck:
    """What is found of the job over all of its segments."""
    together = SegmentCheck((KEY, OUT))
    for check in outputs._shelf.examine(KEY.job):
        together.checked_bytes += check.checked_bytes
        together.unchecked_bytes += check.unchecked_bytes
        together.problems += check.problems
    return together


def write(outputs: SegmentedOutputStore, end: int, step: int, *, syncs: bool = True) -> None:
    """Write up to an end, in pieces."""
    while (offset := outputs.end(KEY, OUT)) < end:
        outputs.append(KEY, OUT, offset, numbered(offset, min(step, end - offset)))
        if syncs:
            outputs.sync()


@pytest.mark.parametrize("step", [170, 1_000, 2_999])
def test_every_byte_is_checked_however_it_came_and_across_restarts(reopen: Reopen, step: int) -> None:
    limits = OutputLimits(head_bytes=10_000, tail_bytes=40_000)
    for end in (50, 4_000, 4_500, 23_456):
        outputs = reopen(limits)
        write(outputs, end, step)
        outputs.append(KEY, ERR, outputs.end(KEY, ERR), b"oops")
        outputs.sync()
    check = examined(outputs)
    assert (check.checked_bytes, check.unchecked_bytes, check.problems) == (23_456 + 16, 0, [])


def test_output_that_grows_is_checked_as_far_as_it_was_synced(tmp_path: Path) -> None:
    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits())) as outputs:
        write(outputs, 2_500, 500)
        write(outputs, 2_700, 100, syncs=False)
        check = examined(outputs)
        assert (check.checked_bytes, check.unchecked_bytes, check.problems) == (2_500, 200, [])
    # As after kill -9: what was written and not synced is made durable by who asks how far it is.
    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits())) as outputs:
        assert outputs.synced(KEY, OUT) == 2_700
        assert examined(outputs).checked_bytes == 2_700


def test_a_failed_sync_takes_back_the_checksums_of_what_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits())) as outputs:
        write(outputs, 1_500, 300)
        outputs.append(KEY, OUT, 1_500, b"x" * 5_000)
        with monkeypatch.context() as patch, pytest.raises(OutputStoreUnavailable):
            patch.setattr(os, "fdatasync", fails)
            outputs.sync()
        write(outputs, 4_000, 700)
        check = examined(outputs)
        assert (check.checked_bytes, check.problems) == (4_000, [])


@pytest.mark.parametrize("at", [0, 999, 1_000, 2_499])
def test_one_flipped_bit_is_found_in_its_block(tmp_path: Path, at: int) -> None:
    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits())) as outputs:
        write(outputs, 2_500, 2_500)
        (file,) = tmp_path.rglob("1.0.stdout")
        data = bytearray(file.read_bytes())
        data[at] ^= 1 << (at % 8)
        file.write_bytes(data)
        begin = at // BLOCK * BLOCK
        end = min(begin + BLOCK, 2_500)
        (problem,) = examined(outputs).problems
    assert problem == f"output of 7/1, stdout: bytes {begin:,} to {end:,} of {file} are not what was written"


def test_a_file_that_was_cut_off_and_a_damaged_checksum_are_found_and_lost_checksums_are_not_called_wrong(
    tmp_path: Path,
) -> None:
    with closing(SegmentedOutputStore(FileShelf(tmp_path), OutputLimits())) as outputs:
        write(outputs, 2_500, 2_500)
        (file,) = tmp_path.rglob("1.0.stdout")
        sums_file = file.with_name("1.0.stdout.sums")
        stored = sums_file.read_bytes()
        assert sums_file.stat().st_mode & 0o777 == 0o600 and len(stored) == 3 * ENTRY_BYTES
        os.truncate(file, 1_700)
        (problem,) = examined(outputs).problems
        assert problem.endswith("is cut off: it has 1,700 bytes, and 2,000 were stored")
        file.write_bytes(numbered(0, 2_500))
        assert examined(outputs).problems == []
        sums_file.write_bytes(stored[:-1] + bytes([stored[-1] ^ 8]))
        (problem,) = examined(outputs).problems
        assert problem == f"output of 7/1, stdout: a checksum in {sums_file} is damaged"
        for left, checked in (
            (stored[: 2 * ENTRY_BYTES + 5], 2_000),
            (stored[:ENTRY_BYTES] + bytes(48), 1_000),
            (b"", 0),
        ):
            sums_file.write_bytes(left)
            check = examined(outputs)
            assert (check.checked_bytes, check.unchecked_bytes, check.problems) == (checked, 2_500 - checked, [])


@pytest.mark.postgres
def test_a_flipped_bit_and_a_missing_row_are_found_in_rows(reopen: Reopen, store_url: str, shelf_kind: str) -> None:
    if shelf_kind != "rows":
        pytest.skip("of rows")
    outputs = reopen()
    write(outputs, 50_000, 50_000)
    assert examined(outputs).checked_bytes == 50_000
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(
            "UPDATE output_chunk SET data = set_byte(data, 5, get_byte(data, 5) # 32) WHERE start = 16384"
        )
        (problem,) = examined(outputs).problems
        assert problem == "output of 7/1, stdout: bytes 16,384 to 32,768 in output_chunk are not what was written"
        connection.execute("DELETE FROM output_chunk WHERE start = 16384")
        (problem,) = examined(outputs).problems
        assert problem == "output of 7/1, stdout: the rows of bytes 16,384 to 32,768 are missing"
        connection.execute("UPDATE output_chunk SET checksum = NULL WHERE start = 0")
        assert examined(outputs).unchecked_bytes == 16_384


@given(
    pieces=st.lists(st.integers(1, 2_500), max_size=20), settles=st.sets(st.integers(0, 20)), size=st.integers(0, 9_000)
)
def test_sums_that_go_on_from_what_is_stored_are_those_of_one_run(
    pieces: list[int], settles: set[int], size: int
) -> None:
    data = numbered(0, sum(pieces))
    stored: list[Block | None] = []
    growing = GrowingSums()
    for number, piece in enumerate(pieces):
        growing.add(memoryview(data)[growing.end : growing.end + piece])
        if number in settles:
            index, blocks = growing.unsettled()
            stored[index:] = blocks
            assert unpacked(packed([each for each in stored if each])) == stored
            growing.settle()
    resumed = GrowingSums.following(stored, min(size, len(data)))
    assert resumed.end <= min(size, len(data))
    resumed.add(memoryview(data)[resumed.end :])
    index, blocks = resumed.unsettled()
    whole = GrowingSums()
    whole.add(memoryview(data))
    assert [*stored[:index], *blocks] == whole.unsettled()[1]
