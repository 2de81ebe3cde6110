"""Reading a program's log while it is written and rotated: the last lines, then what comes, nothing left out.

A reader keeps its file open, so that a rotation under it changes nothing: it reads the renamed file to its end and goes
on with the next newer one. Only a reader that is slower than all kept files together misses lines, and says so.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from gpufleet.telemetry.logs import as_logged

READ_BYTES_MAX = 65_536
TAIL_LINES_MAX = 100_000
OLD_FILES_MAX = 100
FOLLOW_POLL_S = 0.2
"""How often a follower looks for new lines. Nothing in the standard library tells of them."""

_TIME = re.compile(rb'(?:\{"time": ")?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)')
"""How a line begins, as text and as JSON; such times sort as they are."""

MISSED_LINES = b"... older lines were rotated away before they were read\n"


class LogReader:
    """Reads a log and its older files in order, from some place on. Close it at the end."""

    def __init__(self, file: Path, *, tail_lines: int = TAIL_LINES_MAX, since: datetime | None = None) -> None:
        """Begin so many lines before the end; 0 begins at the end. The file need not exist yet.

        With `since` (aware), begin at the first of those lines that has this time, to the millisecond, or a later one.
        """
        self._file = file
        self._open: BinaryIO | None = None
        self._begin(min(tail_lines, TAIL_LINES_MAX), None if since is None else as_logged(since).encode())

    def read(self) -> bytes:
        """Up to READ_BYTES_MAX more bytes; empty when there are none at the moment."""
        while True:
            if self._open is None:
                self._open = _opened(self._file)
                if self._open is None:
                    return b""
            if data := self._open.read(READ_BYTES_MAX):
                return data
            if _is_same(self._file, self._open):
                return b""
            # It was rotated. A line may have come between the read and the look, so the end is asked for once more.
            if data := self._open.read(READ_BYTES_MAX):
                return data
            newer, missed = self._next_newer(self._open)
            if newer is None:
                return b""
            self._open.close()
            self._open = newer
            if missed:
                return MISSED_LINES

    def close(self) -> None:
        """Let go of the file."""
        if self._open is not None:
            self._open.close()
            self._open = None

    def __enter__(self) -> LogReader:
        return self

    def __exit__(self, *problem: object) -> None:
        self.close()

    def _begin(self, tail_lines: int, since: bytes | None) -> None:
        files = self._all_open()  # newest first
        missing = tail_lines
        for index, file in enumerate(files):
            place, found = _place_of_tail(file, missing)
            missing -= found
            if missing <= 0 or index == len(files) - 1:
                if since is not None:
                    file, place = _first_since(files[index::-1], place, since)
                file.seek(place)
                self._open = file
                break
        for file in files:
            if file is not self._open:
                file.close()

    def _next_newer(self, current: BinaryIO) -> tuple[BinaryIO | None, bool]:
        """The file that was begun after this one, and whether others between them are gone; None while unsure."""
        files = self._all_open()
        here = os.fstat(current.fileno())
        places = [index for index, file in enumerate(files) if os.path.samestat(os.fstat(file.fileno()), here)]
        wanted = places[0] - 1 if places else len(files) - 1  # ours was removed: the oldest that is left
        chosen = files[wanted] if wanted >= 0 else None
        for file in files:
            if file is not chosen:
                file.close()
        return chosen, chosen is not None and not places

    def _all_open(self) -> list[BinaryIO]:
        """All files of the log, newest first; looked at again when a rotation happens meanwhile.

        A rotation renames upwards, and so does this look: a file may be met twice, which changes no order, but none
        is passed by.
        """
        while True:
            files = []
            for number in range(OLD_FILES_MAX + 1):
                file = _opened(self._file if number == 0 else self._file.with_name(f"{self._file.name}.{number}"))
                if file is not None:
                    files.append(file)
            if not files or _is_same(self._file, files[0]) or not self._file.exists():
                return files
            for file in files:
                file.close()


async def follow(
    file: Path, *, tail_lines: int, since: datetime | None = None, poll_s: float = FOLLOW_POLL_S
) -> AsyncGenerator[bytes, None]:
    """The last lines, then everything that is written, without end; close the iterator to stop."""
    with LogReader(file, tail_lines=tail_lines, since=since) as reader:
        while True:
            if data := reader.read():
                yield data
            else:
                await asyncio.sleep(poll_s)


def _opened(file: Path) -> BinaryIO | None:
    try:
        return file.open("rb", buffering=0)
    except FileNotFoundError:
        return None


def _is_same(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _place_of_tail(file: BinaryIO, lines: int) -> tuple[int, int]:
    """Where the last so many lines begin, and how many were found; an unfinished last line counts as one."""
    end = file.seek(0, os.SEEK_END)
    if lines <= 0 or end == 0:
        return end, 0
    found, place = 0, end
    while place > 0:
        begin = max(0, place - READ_BYTES_MAX)
        file.seek(begin)
        block = file.read(place - begin)
        at = len(block)
        # The newline at the very end closes the last line and begins none.
        if place == end and block.endswith(b"\n"):
            at -= 1
        while (at := block.rfind(b"\n", 0, at)) >= 0:
            found += 1
            if found == lines:
                return begin + at + 1, found
        place = begin
    return 0, found + 1


def _first_since(files: Sequence[BinaryIO], place: int, since: bytes) -> tuple[BinaryIO, int]:
    """The first line with that time or a later one, from a place in the oldest of these files on; else the end."""
    for file in files:
        if (found := _place_since(file, place, since)) is not None:
            return file, found
        place = 0
    return files[-1], files[-1].seek(0, os.SEEK_END)


def _place_since(file: BinaryIO, low: int, since: bytes) -> int | None:
    """Where the first such line of a file begins, at `low` or behind it; None when there is none.

    Lines are taken to be in the order of their times. Those without one, as in a traceback, belong to the line before.
    """
    high = file.seek(0, os.SEEK_END)
    while high - low > READ_BYTES_MAX:
        middle = (low + high) // 2
        place, time = next(_timed_lines(file, middle, is_cut=True), (high, since))
        if time >= since:
            high = middle
        else:
            low = place
    return next((place for place, time in _timed_lines(file, low, is_cut=False) if time >= since), None)


def _timed_lines(file: BinaryIO, place: int, *, is_cut: bool) -> Iterator[tuple[int, bytes]]:
    """Place and time of each line that has a time, from a place on. `is_cut`: the first line may be a part of one."""
    file.seek(place)
    unfinished = b""
    while block := file.read(READ_BYTES_MAX):
        *lines, unfinished = (unfinished + block).split(b"\n")
        for line in lines:
            if not is_cut and (found := _TIME.match(line)):
                yield place, found[1]
            is_cut = False
            place += len(line) + 1
    if not is_cut and (found := _TIME.match(unfinished)):
        yield place, found[1]
