"""Checksums beside the spool: every flipped bit is found, and nothing else is taken for one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from node_agent.core.offsets import SPOOL_BYTES_MIN
from node_agent.core.outcome import Offsets, Stream
from node_agent.spool import Read, SpoolReader, SpoolWriter
from node_agent.spool.layout import damaged_blocks, segment_path
from node_agent.spool.sums import BLOCK_BYTES, sums_path
from tests.node_agent.spool.test_spool import Feed

BOUND_BYTES = 16 * SPOOL_BYTES_MIN
"""Segments of four blocks each."""


def spooled(folder: Path, data: bytes, *, pieces: int = 30_000, bound_bytes: int = BOUND_BYTES) -> SpoolWriter:
    """Write it as it would come from a process, and leave the last segment open."""
    writer, feed = SpoolWriter(folder, bound_bytes), Feed()
    for at in range(0, len(data), pieces):
        assert feed.write(data[at : at + pieces]) == len(data[at : at + pieces])
        while writer.ends.stdout < at + len(data[at : at + pieces]):
            writer.take(Stream.STDOUT, feed.fd)
    feed.close()
    return writer


def some(length: int) -> bytes:
    return random.Random(length).randbytes(length)


def read_all(folder: Path) -> list[Read]:
    reader, found, at = SpoolReader(folder), list[Read](), 0
    while (read := reader.read(Stream.STDOUT, at, 50_000)).data:
        found.append(read)
        at += len(read.data)
    return found


def flip(file: Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 4
    file.write_bytes(data)


def segments(folder: Path) -> list[Path]:
    return sorted(folder.glob("stdout.*"))


@pytest.mark.parametrize("pieces", [1, 1_000, 16_384, 30_000])
@pytest.mark.parametrize("length", [1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES - 7])
def test_what_nobody_changed_is_whole_while_it_is_written_and_after(tmp_path: Path, length: int, pieces: int) -> None:
    if pieces == 1:
        length = min(length, 3_000)
    data = some(length)
    writer = spooled(tmp_path, data, pieces=pieces)
    for _ in ("open", "sealed"):
        found = read_all(tmp_path)
        assert b"".join(each.data for each in found) == data
        assert not any(each.is_damaged for each in found)
        assert [list(damaged_blocks(each)) for each in segments(tmp_path)] == [[]] * len(segments(tmp_path))
        writer.seal()


@pytest.mark.parametrize("is_sealed", [True, False])
def test_one_flipped_bit_is_found_in_its_block_and_all_else_is_whole(tmp_path: Path, is_sealed: bool) -> None:
    data = some(10 * BLOCK_BYTES + 100)
    writer = spooled(tmp_path, data)
    if is_sealed:
        writer.seal()
    chosen = random.Random(7)
    for at in (0, len(data) - 1, *(chosen.randrange(len(data)) for _ in range(20))):
        (segment,) = (each for each in segments(tmp_path) if 0 <= at - int(each.suffix[1:]) < each.stat().st_size)
        start = int(segment.suffix[1:])
        flip(segment, at - start)
        block = start + (at - start) // BLOCK_BYTES * BLOCK_BYTES
        offset, bad = 0, list[tuple[int, int]]()
        for read in read_all(tmp_path):
            if read.is_damaged:
                bad.append((offset, offset + len(read.data)))
            else:
                assert read.data == data[offset : offset + len(read.data)]
            offset += len(read.data)
        assert offset == len(data), "what is damaged is there all the same"
        assert bad == [(block, min(block + BLOCK_BYTES, start + segment.stat().st_size))]
        assert [each.start + start for each in damaged_blocks(segment)] == [block]
        flip(segment, at - start)
    writer.seal()


def test_a_spool_of_before_goes_on_unchecked_and_so_does_one_whose_sums_cannot_be_read(tmp_path: Path) -> None:
    data = some(2 * BLOCK_BYTES)
    spooled(tmp_path, data).seal()
    (segment,) = segments(tmp_path)
    flip(sums_path(segment), 0)
    assert b"".join(each.data for each in read_all(tmp_path)) == data
    assert not any(each.is_damaged for each in read_all(tmp_path))
    sums_path(segment).unlink()
    flip(segment, 5)
    assert not any(each.is_damaged for each in read_all(tmp_path))


def test_a_reader_that_is_ahead_of_the_last_sum_takes_it_as_it_is(tmp_path: Path) -> None:
    """Its keeper was killed between the bytes and their sum."""
    spooled(tmp_path, some(100)).seal()
    (segment,) = segments(tmp_path)
    with segment.open("ab") as file:
        file.write(b"more")
    assert [(len(each.data), each.is_damaged) for each in read_all(tmp_path)] == [(104, False)]


def test_sums_go_with_the_segments_that_they_are_of(tmp_path: Path) -> None:
    writer = spooled(tmp_path, some(10 * BLOCK_BYTES))
    assert len(segments(tmp_path)) > 1
    writer.delete_below(Offsets(10 * BLOCK_BYTES, 0))
    writer.seal()
    assert [sums_path(each).name for each in segments(tmp_path)] == sorted(
        each.name for each in tmp_path.iterdir() if each not in segments(tmp_path)
    )


def test_sums_that_the_disk_refuses_come_with_the_next_bytes(tmp_path: Path) -> None:
    refused = sums_path(segment_path(tmp_path, Stream.STDOUT, 0))
    refused.mkdir()
    writer, feed = SpoolWriter(tmp_path, BOUND_BYTES), Feed()
    feed.write(b"first")
    writer.take(Stream.STDOUT, feed.fd)
    refused.rmdir()
    feed.write(b"second")
    writer.take(Stream.STDOUT, feed.fd)
    writer.seal()
    feed.close()
    flip(segment_path(tmp_path, Stream.STDOUT, 0), 0)
    assert [each.is_damaged for each in read_all(tmp_path)] == [True]


def test_a_cut_is_no_damage(tmp_path: Path) -> None:
    spooled(tmp_path, some(100)).seal()
    (segment,) = segments(tmp_path)
    os.truncate(segment, 40)
    assert [(len(each.data), each.is_damaged) for each in read_all(tmp_path)] == [(40, False)]
