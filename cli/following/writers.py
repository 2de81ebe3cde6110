"""Where followed output goes: straight through, or line by line with a prefix that tells jobs and ranks apart."""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING, BinaryIO

from gpufleet.v1 import job_pb2

if TYPE_CHECKING:
    from ..render.terminal_text import TerminalText

LINE_BYTES_MAX = 65_536
"""A longer line is broken, so that a job without line ends cannot fill the memory."""


class Streams:
    """This process's own stdout and stderr, as bytes.

    A terminal gets what cannot change it, unless everything passes (`passes_all`), or a program of the job has it.
    """

    def __init__(
        self, stdout: BinaryIO | None = None, stderr: BinaryIO | None = None, *, passes_all: bool = False
    ) -> None:
        self._stdout = stdout or sys.stdout.buffer
        self._stderr = stderr or sys.stderr.buffer
        self._texts: dict[int, TerminalText] = {}
        for each in () if passes_all else (self._stdout, self._stderr):
            if each.isatty():
                from ..render.terminal_text import TerminalText

                self._texts[id(each)] = TerminalText()
        self.is_raw = False
        """Whether the terminal does not begin a new line by itself: a program of the job has it."""
        self._is_within_line = False
        self._is_one_place = _is_one_place(self._stdout, self._stderr)
        self._has_open_line: dict[bool, bool] = {}
        """By whether it is stderr: whether what was written there last had no end of line."""

    def write(self, stream: int, data: bytes) -> None:
        """Bytes of the job's standard output or error, to our own, at once."""
        out = self._stderr if stream == job_pb2.STREAM_STDERR else self._stdout
        text = None if self.is_raw else self._texts.get(id(out))
        if text is not None:
            data = text.passed(data)
        try:
            out.write(data)
            out.flush()
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
            # The terminal's window was closed. SIGHUP says so, too, and decides what comes of it.
        if data:
            self._is_within_line = not data.endswith(b"\n")
            self._has_open_line[out is self._stderr or self._is_one_place] = self._is_within_line

    def end_line(self) -> None:
        """Begin a new line, on a terminal that a program of the job has, unless one has just begun."""
        if self._is_within_line:
            self.write(job_pb2.STREAM_STDERR, b"\r\n")

    def note(self, text: str) -> None:
        """A line of ours, on stderr: a new one, however the job's own line ended there."""
        if self.is_raw:
            self.end_line()
        elif self._has_open_line.get(True):
            self.write(job_pb2.STREAM_STDERR, b"\n")
        line = f"gpuctl: {text}\r\n" if self.is_raw else f"gpuctl: {text}\n"
        self.write(job_pb2.STREAM_STDERR, line.encode(errors="surrogateescape"))


def _is_one_place(stdout: BinaryIO, stderr: BinaryIO) -> bool:
    """Whether both lead to one terminal, pipe or file."""
    try:
        return os.path.sameopenfile(stdout.fileno(), stderr.fileno())
    except OSError:  # no file at all
        return False


class Plain:
    """Bytes exactly as the job wrote them; with `is_raw` no line of ours is among them.

    Once a job is seen to have several ranks, whole lines go through, each with its rank: `[1] epoch 3`.
    """

    def __init__(self, streams: Streams, *, is_raw: bool = False) -> None:
        self._streams = streams
        self._is_raw = is_raw
        self._lines: Prefixed | None = None

    def has_ranks(self, count: int) -> None:
        """The job has so many ranks."""
        if count > 1 and not self._is_raw and self._lines is None:
            self._lines = Prefixed(self._streams, ranks_only=True)

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Pass the bytes on."""
        if self._lines is not None:
            self._lines.write(rank, stream, data)
        else:
            self._streams.write(stream, data)

    def note(self, text: str) -> None:
        """Tell it, unless only the job's bytes are wanted."""
        if not self._is_raw:
            self._streams.note(text)

    def finish(self) -> None:
        """Nothing is kept back but the last line of a rank, which may have no end."""
        if self._lines is not None:
            self._lines.finish()


class Prefixed:
    """Whole lines, each with a prefix such as `12| ` or `12[1]| ` (job and rank), or `[1] ` with `ranks_only`."""

    def __init__(self, streams: Streams, label: str = "", *, ranks_only: bool = False) -> None:
        self._streams = streams
        self._label = label
        self._ranks_only = ranks_only
        self._has_ranks = False
        self._unfinished: dict[tuple[int, int], bytes] = {}

    def has_ranks(self, count: int) -> None:
        """The job has so many ranks."""
        self._has_ranks = self._has_ranks or count > 1

    def write(self, rank: int, stream: int, data: bytes) -> None:
        """Pass on the lines that are complete, and keep the rest for later."""
        lines = (self._unfinished.pop((rank, stream), b"") + data).split(b"\n")
        rest = lines.pop()
        while len(rest) > LINE_BYTES_MAX:
            lines.append(rest[:LINE_BYTES_MAX])
            rest = rest[LINE_BYTES_MAX:]
        if rest:
            self._unfinished[rank, stream] = rest
        if lines:
            prefix = self._prefix(rank)
            self._streams.write(stream, b"".join(prefix + line + b"\n" for line in lines))

    def note(self, text: str) -> None:
        """A line of ours, with the same prefix."""
        self._streams.note(f"{self._label}: {text}")

    def finish(self) -> None:
        """Pass on the last line, which may have no end."""
        for (rank, stream), rest in self._unfinished.items():
            self._streams.write(stream, self._prefix(rank) + rest + b"\n")
        self._unfinished.clear()

    def _prefix(self, rank: int) -> bytes:
        if self._ranks_only:
            return f"[{rank}] ".encode()
        return (f"{self._label}[{rank}]| " if rank or self._has_ranks else f"{self._label}| ").encode()
