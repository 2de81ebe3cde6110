"""A program that was started from here: its last words, and whether it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from typing import IO

from gpufleet.errors import GpufleetError, Reason

from .folders import Started, started

LAST_LINES_MAX = 30
LINE_BYTES_MAX = 4096


class Child:
    """A running program of ours.

    Its stderr is read while we are there; programs keep their whole log in a file, and go on when nobody reads.
    A session of its own keeps a Ctrl-C at our terminal from it: stopping is ours to order.
    """

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        environment = {key: value for key, value in os.environ.items() if key not in _OURS}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment,
        )
        self.started: Started = started(name, self._process.pid)
        self._lines: deque[bytes] = deque(maxlen=LAST_LINES_MAX)
        stderr = self._process.stderr
        assert stderr is not None
        self._reader = threading.Thread(target=self._read, args=(stderr,), name=f"{name}-stderr", daemon=True)
        self._reader.start()

    def has_ended(self) -> bool:
        """Whether it has ended; waits for nothing, and reaps it."""
        return self._process.poll() is not None

    def failure(self) -> GpufleetError:
        """Why it ended, from its own last words."""
        self._reader.join(1.0)
        words = [line.decode(errors="replace").rstrip() for line in self._lines]
        said = [line for line in words if line.strip()][-8:]
        code = self._process.returncode
        if not said:
            return GpufleetError(Reason.INTERNAL, f"the {self.name} ended with code {code} and said nothing")
        return GpufleetError(
            Reason.INTERNAL,
            f"the {self.name} ended with code {code}: " + "\n  ".join(said[:-1] or said),
            next_step=said[-1],
        )

    def let_go(self) -> None:
        """Leave it running, on its own."""
        # Popen would complain about a child that is not waited for; init will wait for it.
        self._process.returncode = 0

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while line := stream.readline(LINE_BYTES_MAX):
                self._lines.append(line)


_OURS = frozenset({"GPUCTL_SCHEDULER", "GPUCTL_TOKEN", "GPUCTL_TOKEN_FILE", "GPUCTL_CONTEXT"})
"""Variables for people who submit. The programs get these settings as flags."""
