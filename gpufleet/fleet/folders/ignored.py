"""Counts the files that ignore files leave out of an upload, so that nobody has to wonder where their data is."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from gpufleet.text.units import counted, format_size

LARGEST_SHOWN = 3
COUNTED_MAX = 100_000
"""Files; a folder of data may hold millions."""
SECONDS_MAX = 3.0
"""A file server may take a millisecond for each file."""


@dataclass(slots=True)
class IgnoredFiles:
    """How many files stay here by a pattern, their size, and the largest of them."""

    count: int = 0
    size_bytes: int = 0
    is_complete: bool = True
    largest: list[tuple[int, str]] = field(default_factory=list)
    """Size and path; a heap with the smallest in front."""
    _seconds_left: float = field(default_factory=lambda: SECONDS_MAX)

    def add(self, entry: os.DirEntry[str], path: str) -> None:
        """Count a file, or all that is below a folder. What cannot be read counts as empty; no link is followed."""
        began = time.monotonic()
        for each, name in _files_of(entry, path):
            if self.count >= COUNTED_MAX or time.monotonic() - began > self._seconds_left:
                self.is_complete = False
                break
            self._add_file(each, name)
        self._seconds_left -= time.monotonic() - began

    def _add_file(self, entry: os.DirEntry[str], path: str) -> None:
        size = 0
        with suppress(OSError):
            size = entry.stat(follow_symlinks=False).st_size if entry.is_file(follow_symlinks=False) else 0
        self.count += 1
        self.size_bytes += size
        heapq.heappush(self.largest, (size, path))
        if len(self.largest) > LARGEST_SHOWN:
            heapq.heappop(self.largest)

    def __str__(self) -> str:
        """`12 files, 3.1GB; largest: data/a.bin 2GB, data/b.bin 1GB, x.log 5kB`."""
        least = "" if self.is_complete else "at least "
        largest = ", ".join(f"{_printable(path)} {format_size(size)}" for size, path in sorted(self.largest)[::-1])
        counts = f"{least}{counted(self.count, 'file')}, {format_size(self.size_bytes)}"
        return f"{counts}; largest: {largest}" if largest else counts


def _files_of(entry: os.DirEntry[str], path: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    waiting = [(entry, path)]
    while waiting:
        entry, path = waiting.pop()
        with suppress(OSError):
            if not entry.is_dir(follow_symlinks=False):
                yield entry, path
                continue
            with os.scandir(entry.path) as inner:
                waiting += [(each, f"{path}/{each.name}") for each in inner]


def _printable(path: str) -> str:
    return path if path.isprintable() else ascii(path)
