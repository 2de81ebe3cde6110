"""HyperQueue by its package for Python: server, worker and client in this process, and nothing of it on a disk."""

import contextlib
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .peer import NotHere


@dataclass(frozen=True, slots=True)
class HyperQueue:
    """A local cluster of one worker."""

    client: Any
    job: Any
    folder: Path
    name: str = "HyperQueue"

    def starts_ms(self, stamp: Path, count: int, pause_s: float) -> list[float]:
        """See Peer; the output is a file."""
        times: list[float] = []
        out = self.folder / "stamp.out"
        for _ in range(count):
            job = self.job(default_workdir=self.folder)
            job.program([str(stamp)], stdout=str(out))
            begin = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            self._wait([self.client.submit(job)])
            times.append((int(out.read_text()) - begin) / 1e6)
            time.sleep(pause_s)
        return times

    def jobs_per_second(self, count: int) -> float:
        """See Peer; one job of as many tasks."""
        job = self.job(default_workdir=self.folder)
        for _ in range(count):
            job.program(["/bin/true"])
        begin = time.perf_counter()
        self._wait([self.client.submit(job)])
        return count / (time.perf_counter() - begin)

    def submits_per_second(self, count: int) -> float:
        """See Peer."""
        begin = time.perf_counter()
        submitted = []
        for _ in range(count):
            job = self.job(default_workdir=self.folder)
            job.program(["/bin/true"])
            submitted.append(self.client.submit(job))
        seconds = time.perf_counter() - begin
        self._wait(submitted)
        return count / seconds

    def _wait(self, submitted: list[Any]) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
            self.client.wait_for_jobs(submitted)


@contextmanager
def hyperqueue(folder: Path, cpus: int) -> Iterator[HyperQueue]:
    """Start it; stopped at the end. Errors: NotHere."""
    try:
        package, cluster = import_module("hyperqueue"), import_module("hyperqueue.cluster")
    except ImportError:
        raise NotHere("HyperQueue is not installed: pip install hyperqueue") from None
    folder.mkdir()
    with cluster.LocalCluster(str(folder), cluster.WorkerConfig(cores=cpus)) as running:
        yield HyperQueue(running.client(), package.Job, folder)
