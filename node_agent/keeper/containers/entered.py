"""The process of a command that is let into an attempt's container: the engine runs it there, beside the attempt's own.

It is the container's in all: account, capabilities, control group, variables, folder and GPUs. This process, forked
by the attempt's supervisor, stands for it on the node: it carries its streams, passes signals on, and ends with its
exit code. It says by `told_fd`, once, which process the command is here, or why there is none, and closes that.
"""

import contextlib
import fcntl
import json
import os
import signal
import struct
import termios
import time
import tty
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpufleet.jobs.runs import InputMode

from ...core.launch import Container, NotRun, Refusal, RefusalReason
from ...core.outcome import LaunchFailure
from ..values import Json, to_json
from .asking import Answer, ask, upgraded
from .ending import ProcessInside, first_process, process_inside, signal_inside
from .runner import END_S_MAX, ENGINE_FAILED, FORWARDED, PAUSE_S, not_started
from .state import read_state
from .streams import DETACH_KEYS, Streams, write_all

RUNNING_S_MAX = 20.0
"""How long a container that is only starting is waited for."""

BEGUN_S_MAX = 20.0
"""How long an engine may take to begin a command."""

ENGINE_SAID_BYTES = 4096
"""An engine tells of a command that it cannot begin in the command's own output, in no more than this."""

KILLED = 128 + signal.SIGKILL
"""The exit code of a command that was killed, as engines tell it."""

SAYS_NOT_WHY = b"container create failed"
NOT_BEGUN = (b"OCI ", SAYS_NOT_WHY)
"""What such words hold; a command that did begin may exit with 126 or 127 as well."""


class NotBegun(Exception):
    """No command runs; with what is said of that."""

    def __init__(self, problem: NotRun | Refusal) -> None:
        super().__init__(problem.detail)
        self.problem = problem


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandInside:
    """What is to run there, and the container. `env` goes over that of the container."""

    container: Container
    argv: tuple[str, ...]
    env: dict[str, str]
    input: InputMode | None


class StandIn:
    """One command in a container, from its start to its end."""

    def __init__(self, command: CommandInside, told_fd: int) -> None:
        self._container = command.container
        self._command = command
        self._told_fd = told_fd
        self._is_terminal = command.input is InputMode.TERMINAL
        self._streams = Streams(has_input=command.input is not None, is_terminal=self._is_terminal)
        self._id = ""
        self._inside: ProcessInside | None = None

    def run(self) -> int:
        """Run it to its end; answers its exit code, or ENGINE_FAILED."""
        try:
            self._await_container()
            self._make()
            self._begin()
        except NotBegun as not_begun:
            problem = not_begun.problem
            self._tell({"not_run" if isinstance(problem, NotRun) else "refused": to_json(problem)})
            return ENGINE_FAILED
        except OSError as problem:
            detail = f"the container engine does not answer: {problem}"
            self._tell({"refused": to_json(Refusal(RefusalReason.NO_ENGINE, detail))})
            return ENGINE_FAILED
        return self._ended()

    def _tell(self, message: Json) -> None:
        with contextlib.suppress(OSError):
            os.write(self._told_fd, json.dumps(message).encode() if message else b"")
        os.close(self._told_fd)

    def _await_container(self) -> None:
        deadline = time.monotonic() + RUNNING_S_MAX
        while first_process(state := read_state(self._container.state)) is None:
            if state.exit_code is not None:
                raise NotBegun(Refusal(RefusalReason.NOT_RUNNING, "the job's container has ended"))
            path = f"/containers/{self._container.id}/json"
            if time.monotonic() >= deadline:
                # An engine with a machine of its own shows no process here.
                told = ask(self._container.engine, "GET", path)
                if told.is_ok and (told.as_object().get("State") or {}).get("Running"):
                    return
                raise NotBegun(Refusal(RefusalReason.NOT_RUNNING, "the job's container does not run yet: try again"))
            time.sleep(PAUSE_S)

    def _make(self) -> None:
        wanted = {
            "AttachStdin": self._command.input is not None,
            "AttachStdout": True,
            "AttachStderr": True,
            "Tty": self._is_terminal,
            "DetachKeys": DETACH_KEYS,
            "Env": [f"{name}={value}" for name, value in sorted(self._command.env.items())],
            "Cmd": list(self._command.argv),
        }
        answer = ask(self._container.engine, "POST", f"/containers/{self._container.id}/exec", wanted)
        if answer.status in (404, 409):
            raise NotBegun(Refusal(RefusalReason.NOT_RUNNING, "the job's container does not run any more"))
        if not answer.is_ok:
            said = f"the container engine runs no command in it: {answer.sentence()}"
            raise NotBegun(Refusal(RefusalReason.CONTAINER_FAILED, said))
        self._id = str(answer.as_object().get("Id", ""))

    def _begin(self) -> None:
        # From now on it has to be told of before this process may be ended by a signal.
        signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
        started = {"Detach": False, "Tty": self._is_terminal}
        channel = upgraded(self._container.engine, f"/exec/{self._id}/start", started, timeout_s=BEGUN_S_MAX)
        if isinstance(channel, Answer):
            raise NotBegun(_problem(channel.sentence(), self._command.argv[0]))
        deadline = time.monotonic() + BEGUN_S_MAX
        while True:
            told = self._inspected()
            is_over = not told.get("Running") and told.get("ExitCode") is not None
            if is_over or told.get("Pid") or time.monotonic() >= deadline:
                break
            time.sleep(PAUSE_S)
        if is_over and told["ExitCode"] in (ENGINE_FAILED, 126, 127):
            said = self._streams.peek(channel, ENGINE_SAID_BYTES)
            if any(each in said for each in NOT_BEGUN):
                channel.close()
                raise NotBegun(_problem(" ".join(said.decode(errors="replace").split()), self._command.argv[0]))
        self._see(int(told.get("Pid") or 0))
        self._forward_signals()
        self._tell({} if self._inside is None else {"inside": to_json(self._inside)})
        signal.pthread_sigmask(signal.SIG_UNBLOCK, FORWARDED)
        self._streams.carry(channel, self._is_over)

    def _see(self, pid: int) -> None:
        """Know it by its process on this machine, where that is one of the container's."""
        first = first_process(read_state(self._container.state))
        if not pid or first is None:
            return
        with contextlib.suppress(OSError):
            if _space_of(pid) == _space_of(first):
                self._inside = process_inside(pid)
                self._streams.pidfd = os.pidfd_open(pid)

    def _forward_signals(self) -> None:
        def forward(number: int, frame: object) -> None:
            if self._inside is not None:
                signal_inside(self._inside, number)

        for number in FORWARDED:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, forward)
        if self._is_terminal:
            tty.setraw(0, termios.TCSANOW)
            signal.signal(signal.SIGWINCH, lambda number, frame: self._resize())
            self._resize()

    def _resize(self) -> None:
        rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
        with contextlib.suppress(OSError):
            ask(self._container.engine, "POST", f"/exec/{self._id}/resize?h={rows}&w={columns}")

    def _is_over(self) -> bool:
        """Whether the engine knows that it runs no more."""
        try:
            told = self._inspected()
        except OSError:
            return False
        return not told.get("Running") and (not told or told.get("ExitCode") is not None)

    def _ended(self) -> int:
        """Its exit code, once the engine has it."""
        deadline = time.monotonic() + END_S_MAX
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                told = self._inspected()
                if not told:
                    return KILLED  # the container has gone, and whatever was in it
                if not told.get("Running") and (code := told.get("ExitCode")) is not None:
                    return int(code)
            if self._streams.is_seen_alive:
                break  # nobody has its streams any more: the engine hung up on it
            time.sleep(PAUSE_S)
        write_all(2, b"gpufleet: the container engine went away, and with it how the command ended\n")
        return ENGINE_FAILED

    def _inspected(self) -> dict[str, Any]:
        """What the engine says of it; nothing when it knows it no more. OSError when it says nothing."""
        answer = ask(self._container.engine, "GET", f"/exec/{self._id}/json")
        if answer.status == 404:
            return {}
        if not answer.is_ok:
            raise OSError(f"it answers {answer.status}")
        return answer.as_object()


def _space_of(pid: int) -> str:
    """The namespace of process ids that a process is in. OSError when that cannot be seen."""
    return str(Path(f"/proc/{pid}/ns/pid").readlink())


def _problem(said: str, program: str) -> NotRun | Refusal:
    """What it means that an engine did not begin a command."""
    if SAYS_NOT_WHY.decode() in said:  # so says Podman where there is to be a terminal
        why = f"the container engine could not begin it: most likely the image has no program {program[:200]!r}"
        return NotRun(LaunchFailure.COMMAND_NOT_FOUND, f"{why} ({said})")
    found = not_started(said)
    if found.failure in (LaunchFailure.COMMAND_NOT_FOUND, LaunchFailure.NOT_EXECUTABLE):
        return NotRun(LaunchFailure(found.failure), str(found))
    return Refusal(RefusalReason.CONTAINER_FAILED, f"the container engine did not begin it: {said}")
