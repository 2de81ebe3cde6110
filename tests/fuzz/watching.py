"""What the programs show from outside: their logs, and how much each holds of memory, descriptors and threads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

WRONG = re.compile(r"Traceback \(most recent|was never retrieved|was never awaited|Task exception|Unhandled exception")
"""What no log may hold, whatever is sent."""

_NEXT = re.compile(r"\n\d{4}-\d\d-\d\dT")

OF_GRPC = "grpc._cython.cygrpc.ExecuteBatchError: "
"""What a trace ends with that gRPC prints by itself, past every log: a caller has gone before it was told a status."""

SHOWN_CHARS_MAX = 4_000


@dataclass(frozen=True, slots=True)
class Size:
    """What a process holds."""

    memory_bytes: int
    descriptors: int
    threads: int


@dataclass(slots=True)
class Watched:
    """One program: its process and its log, which is read on from where it was read to."""

    name: str
    pid: int
    log: Path | None
    wrongs: int = 0
    found: list[str] = field(default_factory=list)
    _read: int = 0

    def size(self) -> Size | None:
        """What it holds now; None once it has ended."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
            descriptors = sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())
        except OSError:
            return None
        said = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
        if "VmRSS" not in said:
            return None  # a zombie
        return Size(int(said["VmRSS"].split()[0]) * 1024, descriptors, int(said["Threads"]))

    def look(self) -> list[str]:
        """What is newly wrong in its log, each with what stands around it."""
        if self.log is None or not self.log.exists():
            return []
        with self.log.open("rb") as log:
            log.seek(self._read)
            text = log.read().decode(errors="replace")
            self._read = log.tell()
        new = list(_wrongs(text))
        self.wrongs += len(new)
        self.found += new[: max(0, 20 - len(self.found))]
        return new


def _wrongs(text: str) -> Iterator[str]:
    """What is wrong, each with its lines: from the line that is before it up to the next that begins with a time.

    What one of them holds besides, the trace behind another or the same in other words, is a part of it.
    """
    told = 0
    for match in WRONG.finditer(text):
        if match.start() < told:
            continue
        line = text.rfind("\n", 0, match.start()) + 1
        begin = text.rfind("\n", 0, max(0, line - 1)) + 1
        end = _NEXT.search(text, match.start())
        told = end.start() if end else len(text)
        found = text[begin : min(told, begin + SHOWN_CHARS_MAX)]
        if not (match.start() == line and OF_GRPC in found):
            yield found
