"""Rows become members: lines of JSON, packed, as many as fit into PART_BYTES; and back, within bounds."""

import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from gpufleet.errors import GpufleetError, Reason

from .archive import Archive
from .manifest import Member

PART_BYTES = 4 * 1024 * 1024
"""After so many bytes of lines a part is full; the row with which it became so is in it whole."""
PART_BYTES_MAX = 256 * 1024 * 1024
"""More than the longest row makes: so much memory reading a part takes at most."""
LINES_AT_ONCE = 1_000
PACKED_LEVEL = 1
"""How hard packing is tried: a backup is to be over soon, and lines of JSON pack well at once."""

Line = list[Any]


def written(prefix: str, lines: Iterable[Sequence[Any]], add: Callable[[str, bytes, int], None]) -> int:
    """Add the members PREFIX/000001.jsonl.gz and so on; the number of lines."""
    count = number = size = 0
    waiting: list[bytes] = []

    def flush() -> None:
        nonlocal number, size
        number += 1
        content = b"".join(waiting)
        add(f"{prefix}/{number:06d}.jsonl.gz", packed(content), len(content))
        waiting.clear()
        size = 0

    for line in lines:
        waiting.append(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        size += len(waiting[-1])
        count += 1
        if size >= PART_BYTES:
            flush()
    if waiting:
        flush()
    return count


def lines_of(archive: Archive, prefix: str) -> Iterator[list[Line]]:
    """The lines of the members PREFIX/000001.jsonl.gz and so on, a few at a time. Errors: BACKUP_INVALID."""
    for member in members_of(archive, prefix):
        content = io.BytesIO(content_of(archive, member))
        while texts := list(islice(content, LINES_AT_ONCE)):
            try:
                lines = [json.loads(text) for text in texts]
            except (ValueError, RecursionError) as error:
                raise _invalid(archive, f"{member.name} holds no lines of JSON: {error}") from None
            if not all(type(line) is list for line in lines):
                raise _invalid(archive, f"{member.name} holds a line that is no row")
            yield lines


def members_of(archive: Archive, prefix: str) -> Iterator[Member]:
    """The members PREFIX/000001… in order, without a gap. Errors: BACKUP_INVALID."""
    found = sorted(
        (each for each in archive.manifest.members if each.name.rpartition("/")[0] == prefix),
        key=lambda each: each.name,
    )
    for number, member in enumerate(found, 1):
        if not member.name.startswith(f"{prefix}/{number:06d}."):
            raise _invalid(archive, f"{prefix} has no part {number:06d}, and later ones")
        yield member


def content_of(archive: Archive, member: Member) -> bytes:
    """What a packed member holds: as much as the manifest says, and no more is unpacked. Errors: BACKUP_INVALID."""
    if member.content_bytes > PART_BYTES_MAX:
        raise _invalid(
            archive, f"{member.name} is said to hold {member.content_bytes:,} bytes, more than any part does"
        )
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        content = unpacking.decompress(archive.read(member.name), member.content_bytes + 1)
    except zlib.error as error:
        raise _invalid(archive, f"{member.name} cannot be unpacked: {error}") from None
    if len(content) != member.content_bytes or not unpacking.eof or unpacking.unused_data:
        raise _invalid(
            archive, f"{member.name} does not hold the {member.content_bytes:,} bytes that the manifest says"
        )
    return content


def packed(content: bytes) -> bytes:
    """The bytes, packed; the same each time."""
    return gzip.compress(content, PACKED_LEVEL, mtime=0)


def _invalid(archive: Archive, why: str) -> GpufleetError:
    return GpufleetError(Reason.BACKUP_INVALID, f"{archive.path}: {why}")
