"""A command that runs as if gpuctl were not there: its terminal, input, output, signals and exit code are ours."""

from __future__ import annotations

import os
import signal
import sys
from typing import NamedTuple

from .errors import SIGNALLED

FORWARDED = frozenset(
    {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM}
)
RESTORED = (signal.SIGPIPE, signal.SIGXFSZ)
"""Python ignores them; a command must not inherit that."""
FROM_KERNEL = 0x80
"""`si_code` of a signal that the terminal sent: the whole foreground group has it, the command too."""

NOT_FOUND, NOT_EXECUTABLE = 127, 126
"""What shells give for a command that could not be run."""


class Ended(NamedTuple):
    """How a command ended: its exit code, 128 + n for a signal, and the processor time of all that it waited for."""

    code: int
    cpu_seconds: float


class CommandFailed(Exception):
    """The command could not be started; `code` is what a shell would give."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class CommandRun:
    """Made before any other thread is started: from then on signals wait for `until_end`, which passes them on."""

    def __init__(self) -> None:
        self._own_mask = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED | {signal.SIGCHLD})
        self._pid = 0

    def start(self, argv: tuple[str, ...]) -> int:
        """Start it, and answer its pid. Raises CommandFailed."""
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            self._pid = os.posix_spawnp(argv[0], argv, os.environ, setsigmask=self._own_mask, setsigdef=RESTORED)
        except FileNotFoundError:
            raise CommandFailed(NOT_FOUND, f"{argv[0]}: there is no such command") from None
        except OSError as problem:
            raise CommandFailed(NOT_EXECUTABLE, f"{argv[0]}: {problem.strerror}") from None
        return self._pid

    def until_end(self) -> Ended:
        """Wait for its end; every signal that comes meanwhile is the command's."""
        while True:
            told = signal.sigwaitinfo(FORWARDED | {signal.SIGCHLD})
            if told.si_signo != signal.SIGCHLD:
                if told.si_code != FROM_KERNEL:
                    os.kill(self._pid, told.si_signo)
                continue
            pid, status, used = os.wait4(self._pid, os.WNOHANG)
            if pid:
                code = os.waitstatus_to_exitcode(status)
                return Ended(SIGNALLED - code if code < 0 else code, used.ru_utime + used.ru_stime)

    def close(self) -> None:
        """Take signals as before."""
        signal.pthread_sigmask(signal.SIG_SETMASK, self._own_mask)
