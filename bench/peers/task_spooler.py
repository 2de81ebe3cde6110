"""task-spooler: a queue of one user on one machine, started by its first job; nothing of it is on a disk."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from . import commands


@dataclass(frozen=True, slots=True)
class TaskSpooler:
    """A queue of its own, with its slots."""

    program: str
    environment: dict[str, str]
    name: str = "task-spooler"

    def starts_ms(self, stamp: Path, count: int, pause_s: float) -> list[float]:
        """See Peer; by `tsp -f`, which waits for its job."""
        return commands.starts_ms([self.program, "-nf", str(stamp)], self.environment, count, pause_s)

    def jobs_per_second(self, count: int) -> float:
        """See Peer; a command for each."""
        begin = time.perf_counter()
        self._submit(count)
        self._wait()
        return count / (time.perf_counter() - begin)

    def submits_per_second(self, count: int) -> float:
        """See Peer."""
        begin = time.perf_counter()
        self._submit(count)
        seconds = time.perf_counter() - begin
        self._wait()
        return count / seconds

    def _submit(self, count: int) -> None:
        for _ in range(count):
            commands.called([self.program, "-n", "/bin/true"], self.environment)

    def _wait(self) -> None:
        commands.called([self.program, "-w"], self.environment)
        commands.called([self.program, "-C"], self.environment)


@contextmanager
def task_spooler(folder: Path, cpus: int) -> Iterator[TaskSpooler]:
    """Start it; stopped at the end. Errors: NotHere."""
    program = commands.find("tsp", "task-spooler")
    folder.mkdir()
    environment = {"TS_SOCKET": str(folder / "socket"), "TS_SLOTS": str(cpus), "TMPDIR": str(folder)}
    commands.called([program, "-S", str(cpus)], environment)
    try:
        yield TaskSpooler(program, environment)
    finally:
        commands.called([program, "-K"], environment)
