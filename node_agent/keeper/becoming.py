"""Starts a command by a fork that becomes it: where more is to be done before its program than a spawn can do.

It enters its control group, has its resource limits, and an isolated one takes its account on. What hinders it, it says
by a pipe that closes as its program begins.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import termios
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from gpufleet.jobs.runs import InputMode

from ..core.launch import Container, NotRun, Process, Refusal, RefusalReason
from .containers.entered import CommandInside, StandIn
from .descriptors import close_all_but
from .linux import die_with_parent, give_up_privileges
from .seccomp import take_filter
from .spawn import failure_of, find_command, private_hint, rlimit
from .values import Json, not_run_from, refusal_from, to_json

ANSWER_BYTES_MAX = 65_536

ENTER = b"0"
"""What stands for whoever writes it, in the list of a group's processes."""


class Becoming:
    """How a supervisor's child becomes a command. `soft_descriptors`: its limits of open ones, soft and hard."""

    def __init__(self, soft_descriptors: tuple[int, int]) -> None:
        self._soft_descriptors = soft_descriptors

    def start(
        self, process: Process, descriptors: Sequence[int], entrances: Sequence[int] = ()
    ) -> int | NotRun | Refusal:
        """Start it, and answer its pid once its program has begun. It enters the groups whose `entrances` are open."""
        begun = self.begin(process, descriptors, entrances)
        if isinstance(begun, Refusal):
            return begun
        pid, told_fd = begun
        with os.fdopen(told_fd, "rb") as file:
            said = file.read(ANSWER_BYTES_MAX)  # nothing, once the command's program has taken over
        if not said:
            return pid
        os.waitpid(pid, 0)
        return problem_from(json.loads(said))

    def begin(
        self, process: Process, descriptors: Sequence[int], entrances: Sequence[int]
    ) -> tuple[int, int] | Refusal:
        """Begin to start it: answers its pid, and what ends as its program begins, behind what hinders it, if anything.

        That descriptor is the caller's to read and to close.
        """
        return self._forked(lambda told_fd: self._be(process, descriptors, entrances, told_fd))

    def begin_inside(
        self, container: Container, process: Process, descriptors: Sequence[int]
    ) -> tuple[int, int] | Refusal:
        """Begin to run a command in a container, by a process that stands for it: answers as `begin` does.

        Before the end stands `{"inside"}`, where the command's own process is seen.
        """
        command = CommandInside(container=container, argv=process.argv, env=dict(process.env), input=process.input)
        return self._forked(lambda told_fd: _stand_in(command, process, descriptors, told_fd))

    def _forked(self, be: Callable[[int], NoReturn]) -> tuple[int, int] | Refusal:
        ours, its = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError as error:
            os.close(ours)
            os.close(its)
            return Refusal(RefusalReason.SPAWN_FAILED, f"no process can be had: {error.strerror}")
        if pid == 0:
            be(its)
        os.close(its)
        return pid, ours

    def _be(self, process: Process, descriptors: Sequence[int], entrances: Sequence[int], told_fd: int) -> NoReturn:
        """Become the command."""
        try:
            problem = self._become(process, descriptors, entrances)
            name = "not_run" if isinstance(problem, NotRun) else "refused"
            os.write(told_fd, json.dumps({name: to_json(problem)}).encode())
        finally:
            os._exit(1)

    def _become(self, process: Process, descriptors: Sequence[int], entrances: Sequence[int]) -> NotRun | Refusal:
        """Run its program in place of this one; answers only when that is not possible, and why."""
        isolation = process.isolation
        try:
            for fd in entrances:
                os.write(fd, ENTER)
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's control group cannot be entered: {error}")
        try:
            os.setsid()
            _take_descriptors(process, descriptors)
            _reset_signals()
            resource.setrlimit(resource.RLIMIT_NOFILE, self._soft_descriptors)
            if process.nice > os.getpriority(os.PRIO_PROCESS, 0):
                os.setpriority(os.PRIO_PROCESS, 0, process.nice)
            if isolation is not None:
                give_up_privileges(isolation.uid, isolation.gid, isolation.groups)
                take_filter(has_user_namespaces=isolation.user_namespaces)
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's account cannot be taken on: {error}")
        try:
            os.chdir(process.cwd)
        except OSError as error:
            hint = ""
            if isolation is not None and isinstance(error, PermissionError):
                hint = f"; the node runs the job as uid {isolation.uid}"
            elif isinstance(error, FileNotFoundError):
                hint = private_hint(process, process.cwd)
            return Refusal(RefusalReason.CWD_MISSING, f"cwd {process.cwd[:500]!r}: {error.strerror}{hint}")
        found = find_command(process.argv[0], process.env.get("PATH", os.defpath))
        if isinstance(found, NotRun):
            folders = process.env.get("PATH", os.defpath).split(os.pathsep)
            hints = (private_hint(process, folder) for folder in folders)
            return replace(found, detail=found.detail + next(filter(None, hints), ""))
        for name, both in process.rlimits.items():  # last: what is left to be done may need more than they leave
            try:
                resource.setrlimit(rlimit(name), both)
            except (OSError, ValueError) as error:
                return Refusal(RefusalReason.RLIMIT_TOO_HIGH, f"{name} {both}: {error}")
        try:
            os.execve(found, process.argv, process.env)
        except OSError as error:
            return failure_of(error, found, process)


def _stand_in(command: CommandInside, process: Process, descriptors: Sequence[int], told_fd: int) -> NoReturn:
    """Be a command in a container, on the node; no program takes over that would close what is the supervisor's."""
    try:
        die_with_parent()
        os.setsid()
        _take_descriptors(process, descriptors)
        _reset_signals()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        close_all_but({0, 1, 2, told_fd})
        os._exit(StandIn(command, told_fd).run() & 0xFF)
    finally:
        os._exit(1)


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)


def problem_from(told: Json) -> NotRun | Refusal:
    """Read what hindered a command."""
    return not_run_from(told["not_run"]) if "not_run" in told else refusal_from(told["refused"])


def _take_descriptors(process: Process, descriptors: Sequence[int]) -> None:
    """Have them as 0, 1 and 2; the session's terminal, where it is one. All others close as the program begins."""
    if process.input is InputMode.TERMINAL:
        fcntl.ioctl(descriptors[0], termios.TIOCSCTTY, 0)
        wanted = [descriptors[0]] * 3
    else:
        stdin = descriptors[2] if process.input is InputMode.PIPE else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        wanted = [stdin, descriptors[0], descriptors[1]]
    # What comes has numbers above 2: the supervisor has 0, 1 and 2 open.
    for number, fd in enumerate(wanted):
        os.dup2(fd, number, inheritable=True)
