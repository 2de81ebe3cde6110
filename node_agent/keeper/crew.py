"""The keeper's supervisors: those that hold an attempt, and a few that wait for one.

A supervisor that waits makes a launch as fast as a plain spawn: to fork one costs more than to start the command.
"""

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..control_groups.group import Group
from ..core.launch import SPACE_PATH, Container, NotRun, Process, Refusal, RefusalReason
from ..core.outcome import Stream
from .containers.ending import end as end_container
from .descriptors import Ends, open_ends
from .isolated import IsolatedSupervisor
from .jail import remove_space
from .linux import boottime_us
from .processes import children, look_at, pid_behind
from .reactor import Reactor
from .spawn import Spawner
from .supervisor import Supervisor, fork_supervisor
from .values import not_run_from, process_to, refusal_from
from .wire import Json, Received, send

WAITING_MAX = 64
"""Supervisors that wait for an attempt; beyond them one that has nothing left to do is let go. With fewer than short
jobs at once one would be forked for each of these, which costs more than the job."""

WAITING_IDLE_MAX, IDLE_US = 8, 60_000_000
"""So many still wait when for a minute none was freed."""

START_S_MAX = 30.0
"""How long a command may take to start: its program may lie on a file system that is slow."""


@dataclass(frozen=True, slots=True)
class LeaderExit:
    """How a leader ended, as its supervisor saw it. `wait_status` is that of wait(2)."""

    wait_status: int
    cpu_us: int = 0
    max_rss_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Spawned:
    """A command runs. The ends here do not block: those of its output are read, that of its input is written."""

    pid: int
    start_ticks: int
    pipes: dict[Stream, int]
    watch: "Watch"
    input_fd: int | None = None


class Watch:
    """One supervisor as the keeper sees it. `changed` is called once the leader has exited, and once all have."""

    def __init__(self, pid: int, channel: socket.socket, reactor: Reactor, crew: "Crew") -> None:
        self.pid = pid
        self.exit: LeaderExit | None = None
        self.is_done = True
        self.is_dead = False
        self.container: Container | None = None
        self.ender = 0
        self.changed: Callable[[], None] = _nobody
        self._channel = channel
        self._received = Received(channel)
        self._reactor = reactor
        self._crew = crew
        self._leader = 0
        self._start_ticks = 0
        reactor.call_when_readable(channel.fileno(), self._on_readable)

    def start(
        self, process: Process, ends: Ends, space: str = "", entrances: Sequence[int] = ()
    ) -> Spawned | NotRun | Refusal:
        """Have it start a command; waits for its answer. `space` is the folder of an isolated one; by `entrances` it
        enters its control group.
        """
        told = {**process_to(process), "space": space, "entrances": len(entrances)}
        self._channel.settimeout(START_S_MAX)
        try:
            send(self._channel, {"spawn": told}, (*ends.theirs, *entrances))
            answer = self._received.next()
        except OSError as error:  # a time-out is one, too
            self.is_done = False  # nobody knows what it has begun
            self.kill()
            return Refusal(RefusalReason.SPAWN_FAILED, f"the command's supervisor did not start it: {error}")
        finally:
            self._channel.setblocking(False)
        if answer is None:
            self.is_done = False
            return Refusal(RefusalReason.SPAWN_FAILED, "the command's supervisor died before it had started it")
        if "not_run" in answer:
            return not_run_from(answer["not_run"])
        if "refused" in answer:
            return refusal_from(answer["refused"])
        self.exit, self.is_done = None, False
        self.container, self.ender = process.container, 0
        self._leader, self._start_ticks = answer["pid"], answer["start_ticks"]
        for fd in self._received.take_descriptors():
            self._leader = pid_behind(fd)  # of another namespace, where it has another number
            os.close(fd)
        self._reactor.call_after_turn(self._on_readable)  # it may have said more already
        return Spawned(self._leader, self._start_ticks, ends.outputs, self, ends.input_fd)

    def enter(self, channel_fd: int, entrances: Sequence[int]) -> bool:
        """Have a command let in that is told by this channel; answers whether that is possible.

        The command is started, told of and ended there, without the keeper.
        """
        try:
            send(self._channel, {"enter": 1 + len(entrances)}, (channel_fd, *entrances))
        except OSError:
            return False
        return True

    @property
    def has_leader_exited(self) -> bool:
        """Say whether its leader has ended, reaped or not."""
        self._take_in()
        if self.exit is not None or self.is_dead:
            return True
        leader = look_at(self._leader)
        return leader is None or leader.is_dead or leader.start_ticks != self._start_ticks

    @property
    def left_count(self) -> int:
        """Count the processes of the attempt that are its children, its leader among them."""
        return 0 if self.is_done else max(1, len(children(self.pid)))

    def kill_all(self) -> None:
        """Kill all of its children; what they leave comes to it, and is killed when the leader has ended."""
        with contextlib.suppress(OSError):
            send(self._channel, {"kill": True})

    def kill(self) -> None:
        """It does not answer: end it. What is below it comes to the keeper."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Have it leave; again: nothing."""
        if self._channel.fileno() >= 0:
            self._reactor.forget(self._channel.fileno())
            self._channel.close()

    def died(self) -> None:
        """Take in that it is reaped. What it had said before counts."""
        self._take_in()
        self.is_dead = True

    def left_alone(self, wait_status: int | None) -> None:
        """Take in that nothing of its attempt is left; `wait_status` is its leader's, where the keeper reaped that."""
        if self.exit is None:
            self.exit = LeaderExit(signal.SIGKILL if wait_status is None else wait_status)
        self.is_done = True
        self._tell()

    @property
    def leader(self) -> int:
        """Answer the pid of the leader that it has, or had last."""
        return self._leader

    def _on_readable(self) -> None:
        self._take_in()
        if self._received.has_ended:
            self._reactor.forget(self._channel.fileno())

    def _take_in(self) -> None:
        """Read what it has said by now, and have it acted upon after this turn of the loop."""
        with contextlib.suppress(BlockingIOError):
            while (message := self._received.next()) is not None:
                self._understand(message)
                self._reactor.call_after_turn(self._tell)

    def _understand(self, message: Json) -> None:
        if "exit" in message:
            told: dict[str, Any] = message["exit"]
            self.exit = LeaderExit(told["status"], told["cpu_us"], told["max_rss_bytes"])
        if "done" in message:
            self.is_done = True

    def _tell(self) -> None:
        changed = self.changed
        if self.is_done:
            self.changed = _nobody
        changed()
        if self.is_done and not self.is_dead:
            self._crew.is_free(self)


class Crew:
    """All supervisors of a keeper. `keep` are the descriptors that they hold, too: the keeper's lock.

    `stage` is where an empty folder can be, for those of isolated commands to build on.
    """

    def __init__(self, reactor: Reactor, spawner: Spawner, keep: set[int], stage: str) -> None:
        self._reactor = reactor
        self._spawner = spawner
        self._keep = keep | {spawner.home_fd}
        self._all: dict[int, Watch] = {}
        self._waiting: list[Watch] = []
        self._orphaned: dict[int, int] = {}
        self._stage = stage
        self._is_isolating = False
        self._next_isolated: Watch | None = None
        self._removing: set[int] = set()

    def start(self, process: Process, space: str = "", group: Group | None = None) -> Spawned | NotRun | Refusal:
        """Start a command below a supervisor of its own, in its control group. Its environment is used as it is.

        `space` is the folder for what is an isolated command's own.
        """
        ends = Ends()
        entrances: list[int] = []
        try:
            entrances = [] if group is None else group.entrances()
            open_ends(ends, process.input)
            watch = self._taken() if process.isolation is None else self._taken_isolated()
        except OSError as error:
            ends.close()
            ends.close_theirs()
            _close(entrances)
            return Refusal(RefusalReason.SPAWN_FAILED, f"no pipe, terminal or process can be had: {error.strerror}")
        answer = watch.start(process, ends, space, entrances)
        ends.close_theirs()
        _close(entrances)
        if not isinstance(answer, Spawned):
            ends.close()
            if watch.is_done and process.isolation is None:
                self.is_free(watch)
        return answer

    def have_one_wait(self) -> None:
        """Have a supervisor ready for a launch that is like the last one, where that is possible."""
        with contextlib.suppress(OSError):
            if self._is_isolating:
                if self._next_isolated is None:
                    self._next_isolated = self._forked(is_isolated=True)
            elif not self._waiting:
                self._waiting.append(self._forked())

    def remove_space(self, space: str) -> None:
        """Remove the folder of an attempt that has ended, in a process of its own: nobody knows how much it holds."""
        pid = os.fork()
        if pid == 0:
            try:
                remove_space(space)
            finally:
                os._exit(0)
        self._removing.add(pid)

    def is_free(self, watch: Watch) -> None:
        """Take in that one has nothing left to do."""
        if watch.pid not in self._all or watch in self._waiting:
            return
        if len(self._waiting) >= WAITING_MAX:
            watch.let_go()
            return
        self._waiting.append(watch)
        if len(self._waiting) > WAITING_IDLE_MAX:
            self._reactor.call_at(self._let_idle_go, boottime_us() + IDLE_US)

    def _let_idle_go(self) -> None:
        """Let those go that only a flood needed; the first of them have waited for the longest."""
        for watch in self._waiting[:-WAITING_IDLE_MAX]:
            watch.let_go()
        del self._waiting[:-WAITING_IDLE_MAX]

    def reaped(self, pid: int, wait_status: int) -> None:
        """Take in that a child of the keeper has ended: a supervisor, or what came to the keeper from a dead one."""
        watch = self._all.get(pid)
        if pid in self._removing:
            self._removing.remove(pid)
            return
        if watch is self._next_isolated:
            self._next_isolated = None
        if watch is None:
            self._orphaned[pid] = wait_status
            return
        watch.died()
        if watch in self._waiting:
            self._waiting.remove(watch)
        if watch.is_done:
            del self._all[pid]
            watch.let_go()

    def settle(self) -> None:
        """Kill what dead supervisors left; once none of it is there any more their attempts are over.

        Only supervisors are children of the keeper; whatever else is comes from one that was killed.
        """
        dead = [watch for watch in self._all.values() if watch.is_dead]
        if not dead:
            self._orphaned.clear()
            return
        orphans = [pid for pid in children(os.getpid()) if pid not in self._all and pid not in self._removing]
        for pid in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not orphans:
            for watch in dead:
                if self._still_ends(watch):
                    continue
                del self._all[watch.pid]
                watch.left_alone(self._orphaned.get(watch.leader))
                watch.let_go()

    def _still_ends(self, watch: "Watch") -> bool:
        """Have the container ended that a dead supervisor's command ran, in a process: an engine takes its time."""
        if watch.container is not None:
            container, watch.container = watch.container, None
            try:
                pid = os.fork()
            except OSError:
                return False  # its agent sweeps it
            if pid == 0:
                try:
                    end_container(container)
                finally:
                    os._exit(0)
            self._removing.add(pid)
            watch.ender = pid
        return watch.ender in self._removing

    def _taken(self) -> Watch:
        """Answer one that waits, or a new one."""
        while self._waiting:
            watch = self._waiting.pop()
            if not watch.is_dead:
                return watch
        return self._forked()

    def _taken_isolated(self) -> Watch:
        """Answer one that waits in namespaces of its own, or a new one. Each is for one command."""
        if not self._is_isolating:
            self._is_isolating = True
            for folder in (self._stage, SPACE_PATH):
                Path(folder).mkdir(0o755, parents=True, exist_ok=True)
        watch, self._next_isolated = self._next_isolated, None
        return self._forked(is_isolated=True) if watch is None or watch.is_dead else watch

    def _forked(self, *, is_isolated: bool = False) -> Watch:
        def be(its: socket.socket) -> None:
            supervisor = IsolatedSupervisor(its, self._spawner, self._stage) if is_isolated else None
            (supervisor or Supervisor(its, self._spawner)).run()

        pid, channel = fork_supervisor(self._keep, be, is_isolated=is_isolated)
        channel.setblocking(False)
        watch = Watch(pid, channel, self._reactor, self)
        self._all[pid] = watch
        return watch


def _close(descriptors: list[int]) -> None:
    for fd in descriptors:
        os.close(fd)


def _nobody() -> None:
    """There is nobody to tell."""
