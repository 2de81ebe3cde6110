"""The supervisor of an isolated command: the first process of its namespace of process ids.

When it ends, the kernel ends all that is left in the namespace; so it serves one attempt and leaves with its leader.
It is root, and the command, its child, is the account of its user from its first instruction.
"""

import os
import socket

from ..core.launch import Isolation, NotRun, Process, Refusal, RefusalReason
from .jail import build, furnish
from .processes import look_at
from .spawn import Spawner
from .supervisor import Supervisor
from .values import process_from, to_json
from .wire import Json


class IsolatedSupervisor(Supervisor):
    """Starts one command in namespaces of its own. `stage` is an empty folder to build its /dev on."""

    def __init__(self, channel: socket.socket, spawner: Spawner, stage: str) -> None:
        super().__init__(channel, spawner)
        self._problem = ""
        self._devices_fd = -1
        try:
            self._devices_fd = build(stage)
        except OSError as error:
            self._problem = str(error)

    def spawn(self, told: Json) -> None:
        """Start the command and say so, or why not, and leave then."""
        descriptors, entrances = self._taken(told)
        process = process_from(told)
        assert process.isolation is not None, "whoever is not isolated has another supervisor"
        answer = self._start(process, process.isolation, told["space"], descriptors, entrances)
        for fd in (*descriptors, *entrances):
            os.close(fd)
        if not isinstance(answer, int):
            self.tell({"not_run" if isinstance(answer, NotRun) else "refused": to_json(answer)})
            os._exit(0)
        self._leader, self._process, self._is_busy = answer, process, True
        stat = look_at(answer)
        assert stat is not None, "a child stays visible until it is reaped"
        # The number is another one outside: the descriptor of the process tells it there.
        pidfd = os.pidfd_open(answer)
        self.tell({"pid": answer, "start_ticks": stat.start_ticks}, (pidfd,))
        os.close(pidfd)

    def leader_is_gone(self, said: Json, *, has_left: bool) -> None:
        """Leave, and with this process goes all that is left."""
        self.tell(said)
        os._exit(0)

    def _start(
        self, process: Process, isolation: Isolation, space: str, descriptors: list[int], entrances: list[int]
    ) -> int | NotRun | Refusal:
        if self._problem:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"this node cannot keep jobs apart: {self._problem}")
        try:
            furnish(self._devices_fd, space, isolation)
            for fd in descriptors:
                os.fchown(fd, isolation.uid, isolation.gid)  # else /dev/stdout could not be opened
        except OSError as error:
            return Refusal(RefusalReason.ISOLATION_FAILED, f"the job's surroundings cannot be made: {error}")
        return self._becoming.start(process, descriptors, entrances)
