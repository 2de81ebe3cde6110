"""The command of every job of a drill: it prints what can be computed from its id, and tells when it lived.

    job.py STAMPS SECONDS LINES CODE FAILS_BELOW MANNERS

`STAMPS` is a folder: each process of a job writes a file there, outside of everything that is drilled, with the times
(CLOCK_BOOTTIME, one for all machines of a drill) at which it certainly lived. It runs for SECONDS, prints LINES
meanwhile, and ends with CODE, or with 3 in attempts below FAILS_BELOW. MANNERS: `polite` ends at SIGTERM with 7,
`plain` dies of it, `stubborn` ignores it and has a child that does so as well.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

BEAT_SECONDS = 0.05
TICK_SECONDS = 0.02
LINES_AT_ONCE = 500
FAILED_CODE, POLITE_CODE = 3, 7
STDERR_EVERY = 10
"""One line goes to stderr for so many to stdout."""

STDOUT, STDERR = 1, 2


def lines(job: int, attempt: int, rank: int, stream: int, first: int, end: int) -> bytes:
    """Lines `first` to before `end` of what a process prints."""
    head = f"{job}.{attempt}.{rank} {stream}"
    return "".join(f"{head} {number} {'.' * (number * 7 % 61)}\n" for number in range(first, end)).encode()


def blocks(job: int, attempt: int, rank: int, stream: int) -> Iterator[bytes]:
    """The same without an end, in blocks."""
    first = 0
    while True:
        yield lines(job, attempt, rank, stream, first, first + LINES_AT_ONCE)
        first += LINES_AT_ONCE


class Stamps:
    """The file of one process: a line for each moment at which it certainly lived."""

    def __init__(self, folder: str, who: str) -> None:
        self._job, self._attempt = os.environ["GPUFLEET_JOB_ID"], os.environ["GPUFLEET_ATTEMPT"]
        rank = os.environ.get("GPUFLEET_NODE_RANK", "0")
        # A number may come twice: in the history that a gap lost, and behind it, perhaps as another account.
        moment = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        name = f"{self._job}.{self._attempt}.{rank}.{os.getpid()}.{moment}"
        self._file = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)  # noqa: PTH118
        self._writing, self._has_ended = threading.Lock(), False
        devices = os.environ.get("GPUFLEET_VIRTUAL_GPUS") or os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.write("began", who, os.uname().nodename, devices or "-")

    def write(self, what: str, *more: object) -> None:
        """Write a line, behind all that were begun before; the thread that beats says nothing behind the end."""
        with self._writing:
            if not self._has_ended:
                words = [what, str(time.clock_gettime_ns(time.CLOCK_BOOTTIME)), *map(str, more)]
                os.write(self._file, (" ".join(words) + "\n").encode())
                self._has_ended = what == "ended"


class Printer:
    """Writes the lines that are due, and knows how many bytes the pipes have taken."""

    def __init__(self, job: int, attempt: int, rank: int) -> None:
        self._who = (job, attempt, rank)
        self._lines = {STDOUT: 0, STDERR: 0}
        self.written = {STDOUT: 0, STDERR: 0}

    def print_up_to(self, count: int) -> None:
        for stream, end in ((STDOUT, count), (STDERR, count // STDERR_EVERY)):
            while self._lines[stream] < end:
                until = min(end, self._lines[stream] + LINES_AT_ONCE)
                data = lines(*self._who, stream, self._lines[stream], until)
                self._lines[stream] = until
                while data:
                    taken = os.write(stream, data)
                    self.written[stream] += taken
                    data = data[taken:]


def main() -> None:
    folder, seconds, count, code, fails_below, manners = sys.argv[1:]
    stopped = threading.Event()
    if manners == "polite":
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    elif manners == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            beat_for_ever(Stamps(folder, "child"))
    stamps = Stamps(folder, "leader")
    attempt = int(os.environ["GPUFLEET_ATTEMPT"])
    printer = Printer(int(os.environ["GPUFLEET_JOB_ID"]), attempt, int(os.environ.get("GPUFLEET_NODE_RANK", "0")))
    threading.Thread(target=beat_for_ever, args=(stamps, printer), daemon=True).start()
    began, span = time.monotonic(), float(seconds)
    while not stopped.is_set():
        passed = time.monotonic() - began
        printer.print_up_to(int(int(count) * min(1.0, passed / span if span else 1.0)))
        if passed >= span:
            break
        time.sleep(TICK_SECONDS)
    own = POLITE_CODE if stopped.is_set() else FAILED_CODE if attempt < int(fails_below) else int(code)
    stamps.write("ended", own, printer.written[STDOUT], printer.written[STDERR])
    os._exit(own)


def beat_for_ever(stamps: Stamps, printer: Printer | None = None) -> None:
    while True:
        if printer is None:
            stamps.write("lives", 0, 0)
        else:
            stamps.write("lives", printer.written[STDOUT], printer.written[STDERR])
        time.sleep(BEAT_SECONDS)


if __name__ == "__main__":
    main()
