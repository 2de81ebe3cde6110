"""The small process above each command: whatever the command leaves behind comes to it, and is ended by it.

It is forked from the keeper and has nothing of its own to load. It is the subreaper of all below it: a descendant that
left group, session and environment, and whose parents have died, becomes its child. So nothing outlives its attempt,
and nobody has to be recognised. It serves one attempt at a time, and another when nothing of that one is left.

It says `{"pid", "start_ticks"}`, or why the command does not run; then `{"exit"}` when the leader has ended, and
`{"done"}` when all the rest has, in one message where nothing was left. It hears `{"spawn"}`, `{"kill"}` and
`{"enter"}` (`entering/`). When the keeper has gone it ends all and leaves.
"""

import contextlib
import gc
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from ..core.launch import Container, NotRun, Process
from .becoming import Becoming
from .containers.ending import end as end_container
from .descriptors import close_all_but
from .entering.commands import EnteredCommands
from .linux import (
    CLONE_NEWPID,
    become_subreaper,
    enter_namespace,
    give_up_out_of_memory_score,
    name_process,
    unshare,
)
from .processes import children, look_at
from .spawn import Spawner
from .values import process_from, to_json
from .wire import Json, Received, send

NAME = "supervisor"
"""How `ps -c` and /proc/PID/comm show it; its command line is the keeper's."""

ORPHANED_S_MAX = 1.0
"""How long what a dead keeper left is waited for before it is left to the agent, which waits without an end."""

ORPHANED_PAUSE_S = 0.005

_IGNORED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
"""Asked of the keeper's whole group: to end the attempts, by the grace rule, is the keeper's to do."""


def fork_supervisor(
    keep: set[int], be: Callable[[socket.socket], None], *, is_isolated: bool = False
) -> tuple[int, socket.socket]:
    """Fork a process that is `be` until it returns; answers its pid and the keeper's end of the channel to it.

    Of the keeper's descriptors it has those in `keep`. Isolated it is the first of a namespace of process ids. OSError
    when there is no room for another process, or no right to such a namespace.
    """
    ours, its = socket.socketpair()
    try:
        pid = fork_first() if is_isolated else os.fork()
    except OSError:
        ours.close()
        its.close()
        raise
    if pid == 0:
        _begin(its, keep, be)
    its.close()
    return pid, ours


def fork_first() -> int:
    """Fork into a new namespace of process ids; the keeper's later children are of its own again."""
    own_fd = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        unshare(CLONE_NEWPID)
        try:
            pid = os.fork()
        finally:
            if os.getpid() != 1:
                enter_namespace(own_fd, CLONE_NEWPID)
    finally:
        os.close(own_fd)
    return pid


def _begin(channel: socket.socket, keep: set[int], be: Callable[[socket.socket], None]) -> NoReturn:
    code = 1
    try:
        gc.disable()  # a collection would touch, and so copy, all that it shares with the keeper
        name_process(NAME)
        give_up_out_of_memory_score()
        signal.set_wakeup_fd(-1)
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        close_all_but({0, 1, 2, channel.fileno()} | keep)
        be(channel)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


class Wakings:
    """A descriptor that is readable when a child has ended."""

    def __init__(self) -> None:
        self.fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        os.set_blocking(write_fd, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)

    def clear(self) -> None:
        """Take the readiness back."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)


class Supervisor:
    """Starts the commands that it is given, one after the other."""

    def __init__(self, channel: socket.socket, spawner: Spawner) -> None:
        self._channel = channel
        self._received = Received(channel)
        self._spawner = spawner
        self._becoming = Becoming(spawner.descriptors_of_children)
        self._wakings = Wakings()
        self._leader: int | None = None
        self._process: Process | None = None
        self._is_busy = False
        self._poll = select.poll()
        self._entered = EnteredCommands(self._becoming, self._poll)
        self._container: Container | None = None

    def run(self) -> None:
        """Serve until the keeper has gone."""
        become_subreaper()
        self._poll.register(self._channel, select.POLLIN)
        self._poll.register(self._wakings.fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in self._poll.poll(self._entered.wait_ms())}
            if self._wakings.fd in ready:
                self._wakings.clear()
                self._reap()
            if self._channel.fileno() in ready:
                message = self._received.next()
                while message is not None:
                    self._hear(message)
                    message = self._received.next() if self._received.has_more else None
                if self._received.has_ended:
                    break
            self._entered.act(ready)
        self._end_all()

    def _hear(self, message: Json) -> None:
        if "spawn" in message:
            self.spawn(message["spawn"])
        elif "enter" in message:
            channel_fd, *entrances = self._received.take_descriptors(message["enter"])
            self._entered.let_in(None if self._leader is None else self._process, channel_fd, entrances)
        else:
            _kill_all()

    def spawn(self, told: Json) -> None:
        """Start the command and say so, or why not."""
        descriptors, entrances = self._taken(told)
        process = process_from(told)
        try:
            if entrances or process.rlimits:
                answer = self._becoming.start(process, descriptors, entrances)
            else:
                answer = self._spawner.spawn(process, descriptors)
        finally:
            for fd in (*descriptors, *entrances):
                os.close(fd)
        if isinstance(answer, int):
            self._leader, self._process, self._is_busy = answer, process, True
            self._container = process.container
            stat = look_at(answer)
            assert stat is not None, "a child stays visible until it is reaped"
            self.tell({"pid": answer, "start_ticks": stat.start_ticks})
        else:
            self.tell({"not_run" if isinstance(answer, NotRun) else "refused": to_json(answer)})

    def _taken(self, told: Json) -> tuple[list[int], list[int]]:
        """The descriptors of a command, and those by which it enters its control group; to be closed here."""
        taken = self._received.take_descriptors()
        count = len(taken) - told.get("entrances", 0)
        return taken[:count], taken[count:]

    def _reap(self) -> None:
        """Take in who has ended. The leader's group is killed while its pid still is its own."""
        said: Json = {}
        has_left = True
        while True:
            try:
                seen = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                has_left = False
                break
            if seen is None:
                break
            if seen.si_pid == self._leader or self._entered.has(seen.si_pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(seen.si_pid, signal.SIGKILL)
            _, status, usage = os.wait4(seen.si_pid, 0)
            self._entered.has_ended(seen.si_pid, status)
            if seen.si_pid == self._leader:
                self._leader = self._process = None
                cpu_us = int((usage.ru_utime + usage.ru_stime) * 1_000_000)
                said["exit"] = {"status": status, "cpu_us": cpu_us, "max_rss_bytes": usage.ru_maxrss * 1024}
        if self._is_busy and self._leader is None:
            self.leader_is_gone(said, has_left=has_left)

    def leader_is_gone(self, said: Json, *, has_left: bool) -> None:
        """Kill what it has left; called whenever some of that has ended. `said` is its exit, where that is news."""
        if self._container is not None:
            container, self._container = self._container, None
            end_container(container)
        if not has_left or not _kill_all():
            self._is_busy = False
            self._entered.leave()
            said["done"] = True
        if said:
            self.tell(said)

    def tell(self, message: Json, descriptors: tuple[int, ...] = ()) -> None:
        """Say it, if anybody hears."""
        with contextlib.suppress(OSError):  # the keeper has gone, which is seen next, and all is ended then
            send(self._channel, message, descriptors)

    def _end_all(self) -> None:
        """Nobody hears any more: end all that there is."""
        container, self._container = self._container, None
        deadline = time.monotonic() + ORPHANED_S_MAX
        while _kill_all() and time.monotonic() < deadline:
            time.sleep(ORPHANED_PAUSE_S)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG) != (0, 0):
                    pass
        if container is not None:
            end_container(container)


def _kill_all() -> int:
    """Kill every child; answers how many there are. What they leave comes here as they end, and is killed then."""
    found = children(os.getpid())
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # a setuid program
            os.kill(pid, signal.SIGKILL)
    return len(found)
