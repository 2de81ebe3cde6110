"""The supervisor of an isolated command: the first process of its namespace of process ids.

When it ends, the kernel ends all that is left in the namespace; so it serves one attempt and leaves with its leader.
It is root, and the command, its child, is the account of its user from its first instruction.
"""

import contextlib
import fcntl
import json
import os
import resource
import signal
import socket
import termios
from typing import NoReturn

from gpufleet.jobs.runs import InputMode

from ..core.launch import Isolation, NotRun, Process, Refusal, RefusalReason
from .jail import build, furnish
from .linux import give_up_privileges
from .processes import look_at
from .spawn import Spawner, failure_of, find_command, rlimit
from .supervisor import Supervisor
from .values import not_run_from, process_from, refusal_from, to_json
from .wire import Json, send

ANSWER_BYTES_MAX = 65_536


class IsolatedSupervisor(Supervisor):
    """Starts one command in namespaces of its own. `stage` is an empty folder to build its /dev on."""

    def __init__(self, channel: socket.socket, spawner: Spawner, stage: str) -> None:
        super().__init__(channel, spawner)
        self._soft_descriptors = spawner.descriptors_of_children
        self._problem = ""
        self._devices_fd = -1
        try:
            self._devices_fd = build(stage)
        except OSError as error:
            self._problem = str(error)

    def spawn(self, told: Json) -> None:
        """Start the command and say so, or why not, and leave then."""
        descriptors = self._received.take_descriptors()
        process = process_from(told)
        assert process.isolation is not None, "whoever is not isolated has another supervisor"
        answer = self._start(process, process.isolation, told["space"], descriptors)
        for fd in descriptors:
            os.close(fd)
        if not isinstance(answer, int):
            self.tell({"not_run" if isinstance(answer, NotRun) else "refused": to_json(answer)})
            os._exit(0)
        self._leader, self._is_busy = answer, True
        stat = look_at(answer)
        assert stat is not None, "a child stays visible until it is reaped"
        # The number is another one outside: the descriptor of the process tells it there.
        pidfd = os.pidfd_open(answer)
        send(self._channel, {"pid": answer, "start_ticks": stat.start_ticks}, (pidfd,))
        os.close(pidfd)

    def leader_is_gone(self, said: Json, *, has_left: bool) -> None:
        """Leave, and with this process goes all that is left."""
        self.tell(said)
        os._exit(0)

    def _start(
        self, process: Process, isolation: Isolation, space: str, descriptors: list[int]
    ) -> int | NotRun | Refusal:
        if self._problem:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"this node cannot keep jobs apart: {self._problem}")
        try:
            furnish(self._devices_fd, space, isolation)
            for fd in descriptors:
                os.fchown(fd, isolation.uid, isolation.gid)  # else /dev/stdout could not be opened
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's surroundings cannot be made: {error}")
        ours, its = os.pipe2(os.O_CLOEXEC)
        try:
            pid = os.fork()
        except OSError as error:
            return Refusal(RefusalReason.SPAWN_FAILED, f"no process can be had: {error.strerror}")
        if pid == 0:
            self._be(process, isolation, descriptors, its)
        os.close(its)
        with os.fdopen(ours, "rb") as file:
            said = file.read(ANSWER_BYTES_MAX)  # nothing, once the command's program has taken over
        if not said:
            return pid
        os.waitpid(pid, 0)
        told = json.loads(said)
        return not_run_from(told["not_run"]) if "not_run" in told else refusal_from(told["refused"])

    def _be(self, process: Process, isolation: Isolation, descriptors: list[int], told_fd: int) -> NoReturn:
        """Become the command."""
        try:
            problem = self._become(process, isolation, descriptors)
            name = "not_run" if isinstance(problem, NotRun) else "refused"
            os.write(told_fd, json.dumps({name: to_json(problem)}).encode())
        finally:
            os._exit(1)

    def _become(self, process: Process, isolation: Isolation, descriptors: list[int]) -> NotRun | Refusal:
        """Run its program in place of this one; answers only when that is not possible, and why."""
        found = process.argv[0]
        try:
            os.setsid()
            _take_descriptors(process, descriptors)
            for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            resource.setrlimit(resource.RLIMIT_NOFILE, self._soft_descriptors)
            for name, both in process.rlimits.items():
                resource.setrlimit(rlimit(name), both)
            if process.nice > os.getpriority(os.PRIO_PROCESS, 0):
                os.setpriority(os.PRIO_PROCESS, 0, process.nice)
            give_up_privileges(isolation.uid, isolation.gid, isolation.groups)
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's account cannot be taken on: {error}")
        try:
            os.chdir(process.cwd)
        except OSError as error:
            hint = f"; the node runs the job as uid {isolation.uid}" if isinstance(error, PermissionError) else ""
            return Refusal(RefusalReason.CWD_MISSING, f"cwd {process.cwd[:500]!r}: {error.strerror}{hint}")
        looked_up = find_command(found, process.env.get("PATH", os.defpath))
        if isinstance(looked_up, NotRun):
            return looked_up
        try:
            os.execve(looked_up, process.argv, process.env)
        except OSError as error:
            return failure_of(error, looked_up, process)


def _take_descriptors(process: Process, descriptors: list[int]) -> None:
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
