"""The commands that were let into the world of one attempt, as its supervisor has them.

By its connection it says `{"welcome"}`, or why nobody is let in; hears `{"run"}` with the descriptors of the command;
says `{"began"}`, or why the command does not run; hears `{"signal"}`; says `{"exit"}`, and hangs up. Whoever hangs up
first wants the command to end: it is hung up upon, and killed after GRACE_S. With the attempt's leader all end.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from gpufleet.jobs.runs import SIGNAL_MAX, InputMode

from ...core.launch import NotRun, Process, Refusal, RefusalReason
from ..becoming import ANSWER_BYTES_MAX, Becoming, problem_from
from ..containers.ending import ProcessInside, kill_inside
from ..values import NO_INPUT, to_json
from ..wire import Json, Received, send

COMMANDS_MAX = 64
"""Commands in the world of one attempt at once, beside its own."""

GRACE_S = 5.0
"""How long a command whose caller has gone may take to end."""


@dataclass(slots=True, eq=False)
class RunningCommand:
    """One of them. `told_fd` ends as its program begins; `kill_at` is when it is killed, by the monotonic clock.

    In a container `inside` is its process, where that is seen, and `pid` that which stands for it on the node.
    """

    process: Process
    channel: socket.socket
    received: Received
    entrances: list[int]
    pid: int = 0
    told_fd: int = -1
    said: bytearray = field(default_factory=bytearray)
    kill_at: float | None = None
    inside: ProcessInside | None = None


class EnteredCommands:
    """Those of one supervisor. What is to be waited for is registered in `poll`; `act` is given what is ready."""

    def __init__(self, becoming: Becoming, poll: select.poll) -> None:
        self._becoming = becoming
        self._poll = poll
        self._commands: list[RunningCommand] = []

    def let_in(self, process: Process | None, channel_fd: int, entrances: list[int]) -> None:
        """Have somebody run a command as this process runs; None: nothing runs that it could be let into."""
        channel = socket.socket(fileno=channel_fd)
        command = RunningCommand(process or _NOBODY, channel, Received(channel), entrances)
        channel.setblocking(False)
        if process is None:
            self._refuse(command, Refusal(RefusalReason.NOT_RUNNING, "the job does not run any more"))
        elif len(self._commands) >= COMMANDS_MAX:
            said = f"{COMMANDS_MAX} commands run in the job already, beside its own"
            self._refuse(command, Refusal(RefusalReason.TOO_MANY_COMMANDS, said))
        else:
            self._commands.append(command)
            self._poll.register(channel_fd, select.POLLIN)
            self._say(command, {"welcome": True})

    def wait_ms(self) -> int | None:
        """How long nothing is due; None: nothing is."""
        due = min((each.kill_at for each in self._commands if each.kill_at is not None), default=None)
        return None if due is None else max(0, int((due - time.monotonic()) * 1000) + 1)

    def act(self, ready: set[int]) -> None:
        """Take in what is ready, and end what is due."""
        for command in tuple(self._commands):
            if command.told_fd in ready:
                self._take_told(command)
            if command.channel.fileno() in ready:
                self._hear(command)
            if command.kill_at is not None and time.monotonic() >= command.kill_at:
                command.kill_at = None
                _signal(command, signal.SIGKILL)

    def has(self, pid: int) -> bool:
        """Whether this is one of the commands; it is not reaped yet."""
        return any(each.pid == pid for each in self._commands)

    def has_ended(self, pid: int, wait_status: int) -> None:
        """Take in that a child was reaped."""
        for command in tuple(self._commands):
            if command.pid == pid:
                if command.told_fd >= 0:
                    self._take_told(command)
                command.pid = 0
                if command.inside is not None and command.process.container is not None:
                    kill_inside(command.process.container, command.inside)
                self._say(command, {"exit": wait_status})
                self._drop(command)

    def leave(self) -> None:
        """Let all go: their attempt is over, and they are with it."""
        for command in tuple(self._commands):
            self._drop(command)

    def _hear(self, command: RunningCommand) -> None:
        try:
            while (message := command.received.next()) is not None:
                self._understand(command, message)
                if command not in self._commands or not command.received.has_more:
                    return
        except BlockingIOError:
            return
        except (OSError, ValueError, KeyError, TypeError):
            pass  # it says nothing whole
        self._gone(command)

    def _understand(self, command: RunningCommand, message: Json) -> None:
        if "run" in message and not command.pid:
            self._run(command, message["run"])
        elif "signal" in message and 1 <= message["signal"] <= SIGNAL_MAX:
            _signal(command, message["signal"])

    def _run(self, command: RunningCommand, told: Json) -> None:
        descriptors = command.received.take_descriptors()
        process = command.process
        mode = None if told["input"] == NO_INPUT else InputMode(told["input"])
        wanted = replace(process, argv=tuple(told["argv"]), input=mode)
        try:
            if process.container is not None:
                begun = self._becoming.begin_inside(process.container, replace(wanted, env=told["env"]), descriptors)
            else:
                if process.isolation is not None:
                    for fd in descriptors:  # else /dev/stdout could not be opened
                        os.fchown(fd, process.isolation.uid, process.isolation.gid)
                wanted = replace(wanted, env={**process.env, **told["env"]})
                begun = self._becoming.begin(wanted, descriptors, command.entrances)
        except OSError as error:
            begun = Refusal(RefusalReason.SPAWN_FAILED, f"the command cannot be started: {error}")
        finally:
            _close(descriptors)
            _close(command.entrances)
            command.entrances = []
        if isinstance(begun, Refusal):
            self._refuse(command, begun)
            return
        command.pid, command.told_fd = begun
        os.set_blocking(command.told_fd, False)
        self._poll.register(command.told_fd, select.POLLIN)

    def _take_told(self, command: RunningCommand) -> None:
        """Read what hinders it; once nothing more comes it has begun, or will not."""
        try:
            piece = os.read(command.told_fd, ANSWER_BYTES_MAX)
        except BlockingIOError:
            return
        command.said += piece
        if piece:
            return
        self._poll.unregister(command.told_fd)
        os.close(command.told_fd)
        command.told_fd = -1
        said = json.loads(command.said) if command.said else {}
        if said and "inside" not in said:
            self._refuse(command, problem_from(said))
            return
        if said:
            command.inside = ProcessInside(**said["inside"])
        self._say(command, {"began": command.pid})

    def _refuse(self, command: RunningCommand, problem: NotRun | Refusal) -> None:
        self._say(command, {"not_run" if isinstance(problem, NotRun) else "refused": to_json(problem)})
        self._drop(command)

    def _say(self, command: RunningCommand, message: Json) -> None:
        try:
            send(command.channel, message)
        except OSError:  # it has gone, or leaves unread what it is told
            self._gone(command)

    def _gone(self, command: RunningCommand) -> None:
        """Nobody is there for it any more."""
        if not command.pid:
            self._drop(command)
            return
        if command.channel.fileno() >= 0:
            self._poll.unregister(command.channel.fileno())
            command.channel.close()
        if command.kill_at is None:
            command.kill_at = time.monotonic() + GRACE_S
            _signal(command, signal.SIGHUP)
            _signal(command, signal.SIGCONT)

    def _drop(self, command: RunningCommand) -> None:
        if command in self._commands:
            self._commands.remove(command)
            if command.channel.fileno() >= 0:
                self._poll.unregister(command.channel.fileno())
            if command.told_fd >= 0:
                self._poll.unregister(command.told_fd)
                os.close(command.told_fd)
        _close([*command.received.take_descriptors(), *command.entrances])
        command.channel.close()


_NOBODY = Process(argv=(), env={}, cwd="/")
"""What nobody is let into."""


def _signal(command: RunningCommand, number: int) -> None:
    """Its group, which is its own for as long as it is not reaped. Before it has one it is alone."""
    if command.pid:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            try:
                os.killpg(command.pid, number)
            except ProcessLookupError:
                os.kill(command.pid, number)


def _close(descriptors: Sequence[int]) -> None:
    for fd in descriptors:
        os.close(fd)
