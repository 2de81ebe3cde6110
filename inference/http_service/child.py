"""The program that is served: started in a process group of its own, signalled as a group, never left behind."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpufleet.errors import GpufleetError, Reason
from gpufleet.security.tokens import TOKEN_VARIABLE

from ..options import SECRET_VARIABLE

SECRETS = frozenset({SECRET_VARIABLE, TOKEN_VARIABLE})
"""In the environment of the shim and not of the program: who has these speaks for the worker. The job's own stays."""

TIED = Path(__file__).with_name("tied.py")


@dataclass(frozen=True, slots=True)
class Exit:
    """How a program ended: its status as a shell has it, 128 and more for a signal, and a sentence."""

    status: int
    how: str


class Child:
    """A running program. `ended` is called on the loop, once, when it has; what it leaves in its group is killed then.

    Its output is that of this process; `files` is its soft limit of open files. Raises OSError when nothing can be
    started at all.
    """

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], files: int, ended: Callable[[Exit], None]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended = ended
        self._reaping = threading.Lock()
        # By the loop's own thread: the death of the thread that starts a program ends it.
        self._process, self._report_fd = _start(argv, environment, files)
        threading.Thread(target=self._wait, name="program", daemon=True).start()

    def terminate(self) -> None:
        """Ask it to end: SIGTERM for its group."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it: SIGKILL for its group."""
        self._signal(getattr(signal, "SIGKILL", signal.SIGTERM))

    def _signal(self, number: int) -> None:
        with self._reaping:
            if self._process.returncode is not None:
                return  # the number of the group may be another's by now
            if hasattr(os, "killpg"):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._process.pid, number)
            else:
                self._process.terminate()

    def _wait(self) -> None:
        not_run = ""
        if self._report_fd is not None:
            with open(self._report_fd, "rb") as report:  # noqa: PTH123
                not_run = report.read().decode(errors="replace")
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            self.kill()
            with self._reaping:
                code = self._process.wait()
        else:
            code = self._process.wait()
        found = Exit(code, f"the program cannot be run: {not_run}") if not_run else exit_of(code)
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._ended, found)


def exit_of(code: int) -> Exit:
    """What a return code of subprocess means."""
    if code >= 0:
        return Exit(code, f"the program ended with exit code {code}")
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return Exit(128 - code, f"the program was ended by {name}")


def _start(
    argv: Sequence[str], environment: Mapping[str, str], files: int
) -> tuple[subprocess.Popen[bytes], int | None]:
    """Start it; answers the descriptor that says why it could not be run, where there is one."""
    if not sys.platform.startswith("linux"):
        return subprocess.Popen(argv, env=environment, process_group=0 if os.name == "posix" else None), None
    read_fd, write_fd = os.pipe()
    try:
        tied = [sys.executable, "-I", "-S", str(TIED), str(os.getpid()), str(write_fd), str(files), *argv]
        return subprocess.Popen(tied, env=environment, pass_fds=(write_fd,), process_group=0), read_fd
    except BaseException:
        os.close(read_fd)
        raise
    finally:
        os.close(write_fd)


def environment_of(variable: str, port: int, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """What the program finds in its environment."""
    return {name: value for name, value in environment.items() if name not in SECRETS} | {variable: str(port)}


def check_program(name: str, path: str | None = None) -> None:
    """Raises PROGRAM_FAILED for a program that is not there, or is none."""
    if shutil.which(name, path=path) is not None:
        return
    if Path(name).name == name:
        why, step = f"there is no program {name} in PATH", "Install it on the nodes, or give its path there."
    elif Path(name).is_file():
        why, step = f"{name} is not executable", f"Make it so with: chmod +x {name}"
    else:
        why, step = f"there is no program {name} at {Path.cwd()}", "Install it on the nodes, or give its path there."
    raise GpufleetError(Reason.PROGRAM_FAILED, why, next_step=step)
