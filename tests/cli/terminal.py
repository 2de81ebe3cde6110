"""A terminal of 24 rows and 80 columns with a program on it, as a person would have."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

WAIT_S_MAX = 60.0
"""How long anything may take that a test waits for; far more than it takes, and never a measure of speed."""

GPUCTL = ("-m", "gpufleet.cli")
PATIENT = """
from gpufleet.cli.submitting import attached
from gpufleet.cli.__main__ import main
from gpufleet.fleet.following import core
from gpufleet.cli.local import up
core.SECOND_WITHIN_S = up.SECOND_WITHIN_S = 3600.0
main()
"""
"""gpuctl, to which a second Ctrl-C is one however late it comes: on a busy machine a test has no 3 s for it."""


class Terminal:
    """gpuctl with a controlling terminal: what is typed arrives as from a keyboard, Ctrl-C as a signal."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] = os.environ,
        is_patient: bool = False,
        is_controlling: bool = True,
    ) -> None:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        program = ("-c", PATIENT) if is_patient else GPUCTL
        controls = ["--ctty"] if is_controlling else []
        command = ["setsid", *controls, "--wait", sys.executable, "-P", *program, *arguments]
        self.process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=dict(environment))
        os.close(slave)
        self.shown = b""

    def type(self, keys: str) -> None:
        """Type these keys; `\\x03` is Ctrl-C."""
        os.write(self._master, keys.encode())

    def wait_for(self, text: str, after: int = 0) -> int:
        """Wait until the text was shown after that offset; answers the offset behind it."""
        wanted = text.encode()
        deadline = time.monotonic() + WAIT_S_MAX
        while (found := self.shown.find(wanted, after)) < 0:
            assert time.monotonic() < deadline, f"{text!r} was not shown, but: {self.shown!r}"
            assert self._read(0.05), f"the program ended without {text!r}, but with: {self.shown!r}"
        return found + len(wanted)

    def resize(self, rows: int, columns: int) -> None:
        """Give it another size, as dragging a window's corner does."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """Send the program a signal, as `kill` does."""
        os.kill(self._program_pid(), number)

    def suspend(self) -> None:
        """Suspend the program as a shell does, which waits until the program has stopped."""
        self.signal(signal.SIGTSTP)
        stat = Path(f"/proc/{self._program_pid()}/stat")
        self.wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", "its stop")

    def modes(self) -> list[int]:
        """How it treats what is typed and shown: the flags of termios(3)."""
        return termios.tcgetattr(self._master)[:4]

    def wait_until(self, is_so: Callable[[], object], what: str) -> None:
        """Wait until it is so, while the program goes on."""
        deadline = time.monotonic() + WAIT_S_MAX
        while not is_so():
            assert time.monotonic() < deadline, f"{what} did not come; it showed: {self.shown!r}"
            assert self._read(0.01), f"the program ended without {what}, but with: {self.shown!r}"

    def end(self) -> int:
        """Wait for its end, and answer its exit code."""
        deadline = time.monotonic() + WAIT_S_MAX
        while self._read(0.05):
            assert time.monotonic() < deadline, f"it does not end; it showed: {self.shown!r}"
        return self.process.wait(WAIT_S_MAX)

    def close_window(self) -> int:
        """Take the terminal away, as closing its window does, and answer the program's exit code."""
        os.close(self._master)
        self._master = os.open(os.devnull, os.O_RDONLY)
        return self.process.wait(WAIT_S_MAX)

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _program_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else self.process.pid  # setsid forks where it has to

    def _read(self, wait_s: float) -> bool:
        """Take in what is shown; False when the program has closed the terminal."""
        if select.select([self._master], [], [], wait_s)[0]:
            try:
                self.shown += os.read(self._master, 65536)
            except OSError:  # the last process on it is gone
                return False
        return True
