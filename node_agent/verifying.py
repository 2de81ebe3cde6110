"""`--verify`: looks at what a node has written down of its attempts and at their spools, and says what is wrong.

It changes nothing and asks nobody: agent and keeper may run meanwhile. What the scheduler has may be deleted; what is
there must be without a hole and as its checksums say, and that of an attempt that has ended must go to its end.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from gpufleet.jobs.runs import RankKey

from .core.offsets import Segment
from .core.outcome import LossReason, Stream
from .keeper import records
from .keeper.records import Record
from .keeper.state_dir import StateDir
from .spool.layout import damaged_blocks, every_segment, segment_path

PROBLEMS_MAX = 100
"""After so many the rest is not looked for."""


@dataclass(slots=True)
class Looked:
    """How much was looked at."""

    living: int = 0
    ended: int = 0
    tombstones: int = 0
    spooled_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        """A sentence on what was looked at."""
        told = f"{self.living:,} living and {self.ended:,} ended attempts, {self.tombstones:,} that are forgotten"
        return f"{told}; {self.spooled_bytes:,} bytes of output wait for the scheduler"


def verify(root: Path) -> Looked:
    """What there is in the folder of a node's keepers, and what is wrong with it. Errors: OSError."""
    state, looked = StateDir(root), Looked()
    for problem in (*_attempts(state, looked), *_tombstones(state, looked)):
        looked.problems.append(problem)
        if len(looked.problems) >= PROBLEMS_MAX:
            break
    return looked


def _attempts(state: StateDir, looked: Looked) -> Iterator[str]:
    for directory in _entries(state.attempts):
        key = _key_of(directory.name)
        if key is None or not directory.is_dir():
            yield f"{directory}: it is not named like an attempt"
            continue
        # As it stands now: an attempt that is forgotten meanwhile has no record, and no directory either.
        record = records.read(directory)
        if record is None:
            if directory.exists() and any(directory.iterdir()):
                yield f"attempt {key}: its record is missing"
            continue
        yield from _record(directory / records.FILE, f"attempt {key}", key)
        looked.living, looked.ended = looked.living + (record.end is None), looked.ended + (record.end is not None)
        for stream in Stream:
            segments = every_segment(directory, stream)
            looked.spooled_bytes += sum(each.end - each.start for each in segments)
            yield from (f"attempt {key}: {problem}" for problem in _spool(stream, segments, record))
            yield from (f"attempt {key}: {problem}" for problem in _damages(directory, stream, segments))


def _tombstones(state: StateDir, looked: Looked) -> Iterator[str]:
    for file in _entries(state.ended):
        key = _key_of(file.name)
        if key is None:
            yield f"{file}: it is not named like an attempt"
            continue
        looked.tombstones += 1
        yield from _record(file, f"forgotten attempt {key}", key)


def _record(file: Path, whose: str, key: RankKey) -> Iterator[str]:
    """Whether each whole line of a record can be read; the last one may just be being written."""
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return  # it was forgotten meanwhile
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if not lines:
        yield f"{whose}: its record is empty, so that nobody knows what it was: {file}"
        return
    for number, line in enumerate(lines, 1):
        if not records.is_readable(line, key if number == 1 else None):
            yield f"{whose}: line {number} of its record cannot be read: {file}"
            return


def _spool(stream: Stream, segments: list[Segment], record: Record) -> Iterator[str]:
    """Whether a stream is on disk without a hole, and as far as its attempt's end says."""
    for before, after in itertools.pairwise(segments):
        if after.start > before.end:
            missing = after.start - before.end
            yield f"{missing:,} bytes of {stream.value} are missing from its spool, from byte {before.end:,} on"
        elif after.start < before.end:
            yield f"its spool has more of {stream.value} than was written, from byte {after.start:,} on"
    end = record.end
    if end is None or end.loss is LossReason.NODE_REBOOTED or not segments:
        return  # it may grow, or is not trusted, or the scheduler has all of it
    is_at, written = segments[-1].end, end.output_ends.of(stream)
    if is_at < written:
        missing = written - is_at
        yield f"{missing:,} bytes of {stream.value} are missing from its spool, which ends at byte {is_at:,}"
    elif is_at > written:
        yield f"its spool has {is_at - written:,} bytes of {stream.value} more than were written"


def _damages(directory: Path, stream: Stream, segments: list[Segment]) -> Iterator[str]:
    """Whether what is on disk is what the keeper wrote, by the checksums that it made."""
    for segment in segments:
        with suppress(FileNotFoundError):  # it was synced and deleted meanwhile
            for block in damaged_blocks(segment_path(directory, stream, segment.start)):
                begin, end = segment.start + block.start, segment.start + block.end
                yield f"bytes {begin:,} to {end - 1:,} of {stream.value} in its spool are not as they were written"


def _key_of(name: str) -> RankKey | None:
    with suppress(ValueError):
        return RankKey.parse(name)
    return None


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
