"""The process of an attempt in a container: it starts the container, carries its streams, and ends with its exit code.

It runs as the agent does, and no job can reach it: what it has of the engine is its own. It is told the engine's
socket, the container's id, where to write its state, which input it has ("none", "pipe", "terminal"), and what its
first process has as the variable MARK. Whoever kills it ends the container by what it has written.
"""

import contextlib
import errno
import fcntl
import os
import re
import signal
import socket
import struct
import termios
import time
import tty
from collections.abc import Sequence
from typing import Any

from ..processes import environment_of, look_at
from .asking import Answer, ask, upgraded
from .engine_words import OF_A_DRIVER, OF_A_PROGRAM, OF_CONTROL_GROUPS, OF_GPUS, OF_WHAT_IS_NO_PROGRAM
from .memory import kills, open_kills
from .state import ContainerState, write_state
from .streams import DETACH_KEYS_IN_PATH, Streams

PIPE, TERMINAL = "pipe", "terminal"

MARK = b"GPUFLEET_CONTAINER"
"""The variable by which a container's first process is known on this machine."""

ATTACH_S_MAX, START_S_MAX = 120.0, 300.0
"""How long an engine may take to be attached to, and to start a container: it may be busy with others."""

END_S_MAX = 60.0
"""How long an engine that has hung up is waited for where nothing of the container lives."""

SEEN_S_MAX = 2.0
"""How long its first process is looked for, once it was started."""

SETTLED_S = 5.0
"""How long an engine that has hung up has to hear that the container has ended, where its process is not seen here:
its streams may be the first to tell, and Podman makes a container that has ended ready anew for who attaches to it.
"""

PAUSE_S = 0.02

LIVES = frozenset({"running", "paused", "stopping"})
OVER = frozenset({"exited", "stopped", "dead"})
READY_ANEW = frozenset({"created", "configured", "initialized"})
"""Words of engines for how a container is. What is ready although it was started has ended and was made so anew."""

FORWARDED = sorted(
    signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD, signal.SIGWINCH, signal.SIGPIPE}
)

ENGINE_FAILED = 125
"""The exit code where it is the engine that failed, as `docker run` has it."""


class NotStarted(Exception):
    """The container cannot run; with the word for it, and the exit code."""

    def __init__(self, failure: str, code: int, detail: str) -> None:
        super().__init__(detail)
        self.failure, self.code, self.detail = failure, code, detail


class Runner:
    """One container from its start to its end."""

    def __init__(self, engine: str, container: str, state_file: str, input_mode: str, mark: str) -> None:
        self._engine = engine
        self._id = container
        self._state_file = state_file
        self._input_mode = input_mode
        self._mark = os.fsencode(mark)
        self._kills_fd = -1
        self._kills = 0
        self._streams = Streams(
            has_input=input_mode in (PIPE, TERMINAL), is_terminal=input_mode == TERMINAL, died=self._note_kills
        )

    def run(self) -> int:
        """Run it to its end; answers its exit code."""
        try:
            channel = self._attached()
            self._forward_signals()
            self._start()
        except NotStarted as problem:
            self._remove(ContainerState(exit_code=problem.code, failure=problem.failure, detail=problem.detail))
            return problem.code
        except OSError as problem:
            detail = f"the container engine does not answer: {problem}"
            self._remove(ContainerState(exit_code=ENGINE_FAILED, failure="CONTAINER_FAILED", detail=detail))
            return ENGINE_FAILED
        ended = self._carried(channel)
        while ended is None:
            ended = self._carried(self._attached_again())
        self._remove(ended)
        return ENGINE_FAILED if ended.exit_code is None else ended.exit_code

    # --- its beginning

    def _attached(self) -> socket.socket:
        """A connection on which its streams come, from its first byte on."""
        wanted = f"stream=1&stdout=1&stderr=1&stdin={int(not self._streams.is_input_closed)}"
        path = f"/containers/{self._id}/attach?{wanted}&detachKeys={DETACH_KEYS_IN_PATH}"
        channel = upgraded(self._engine, path, timeout_s=ATTACH_S_MAX)
        if isinstance(channel, Answer):
            said = f"the container engine attaches nobody: {channel.sentence() or channel.status}"
            raise NotStarted("CONTAINER_FAILED", ENGINE_FAILED, said)
        return channel

    def _start(self) -> None:
        answer = ask(self._engine, "POST", f"/containers/{self._id}/start", timeout_s=START_S_MAX)
        if not answer.is_ok:
            raise not_started(answer.sentence())

    def _carried(self, channel: socket.socket | None) -> ContainerState | None:
        """Carry its streams, where there are any; then how it ended, None when it lives."""
        if self._streams.pidfd < 0:
            self._note_first_process()
        if channel is not None:
            if self._input_mode == TERMINAL:
                self._resize()
            self._streams.carry(channel, self._is_over)
        self._note_kills()
        return self._ended()

    def _note_first_process(self) -> None:
        """Find its first process on this machine, and write it down. Where the engine is elsewhere there is none."""
        deadline = time.monotonic() + SEEN_S_MAX
        while time.monotonic() < deadline:
            try:
                pid = int(self._inspected().get("Pid") or 0)
            except Gone:
                return
            except OSError:
                time.sleep(PAUSE_S)
                continue
            if pid == 0:
                return  # it has ended already
            stat = look_at(pid)
            if stat is None:
                return
            if environment_of(pid).get(MARK) == self._mark:
                with contextlib.suppress(OSError):
                    self._streams.pidfd = os.pidfd_open(pid)
                self._kills_fd = open_kills(pid)
                with contextlib.suppress(OSError):
                    write_state(self._state_file, ContainerState(pid=pid, start_ticks=stat.start_ticks))
                return
            time.sleep(PAUSE_S)

    def _note_kills(self) -> None:
        """Read what the kernel has ended for want of memory: the group goes soon after its processes."""
        self._kills = max(self._kills, kills(self._kills_fd))

    def _forward_signals(self) -> None:
        """Pass on what comes to this process. Its keeper reaches the container's by itself where it sees them."""

        def forward(number: int, frame: object) -> None:
            with contextlib.suppress(OSError):
                ask(self._engine, "POST", f"/containers/{self._id}/kill?signal={number}")

        for number in FORWARDED:
            with contextlib.suppress(OSError, ValueError):
                signal.signal(number, forward)
        if self._input_mode == TERMINAL:
            tty.setraw(0, termios.TCSANOW)
            signal.signal(signal.SIGWINCH, lambda number, frame: self._resize())

    def _resize(self) -> None:
        rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
        with contextlib.suppress(OSError):
            ask(self._engine, "POST", f"/containers/{self._id}/resize?h={rows}&w={columns}")

    # --- its end

    def _is_over(self) -> bool:
        """Whether the engine knows that it lives no more."""
        try:
            return str(self._inspected().get("Status", "")) not in LIVES
        except Gone:
            return True
        except OSError:
            return False

    def _ended(self) -> ContainerState | None:
        """How it ended; None when it lives, and it was the engine that hung up."""
        now = time.monotonic()
        deadline, settled = now + END_S_MAX, now + SETTLED_S
        problem = "the container engine does not say how the container ended"
        while time.monotonic() < deadline or self._streams.is_seen_alive:
            try:
                told = self._inspected()
            except OSError as error:
                problem = f"the container engine went away, and with it how the container ended: {error}"
            except Gone:
                problem = "the container was removed from outside"
                break
            else:
                status = str(told.get("Status", ""))
                if status in OVER and not self._streams.is_seen_alive:
                    if (found := NOT_RUN_BY_INIT.search(self._streams.last_said)) is not None and told.get("ExitCode"):
                        return _not_run(found[1].decode(errors="replace"))
                    return ContainerState(
                        exit_code=int(told.get("ExitCode") or 0),
                        is_out_of_memory=bool(told.get("OOMKilled")) or self._kills > 0,
                    )
                if status in READY_ANEW and not self._streams.is_seen_alive:
                    break
                is_unseen = self._streams.pidfd < 0 and time.monotonic() >= settled
                if status in LIVES and (is_unseen or self._streams.is_seen_alive):
                    return None
            time.sleep(PAUSE_S)
        return ContainerState(exit_code=ENGINE_FAILED, failure="CONTAINER_FAILED", detail=problem)

    def _attached_again(self) -> socket.socket | None:
        """It seems to live, and its engine was started anew: its streams from where that is, None where it has none."""
        with contextlib.suppress(OSError, NotStarted):
            return self._attached()
        time.sleep(PAUSE_S)
        return None

    def _inspected(self) -> dict[str, Any]:
        answer = ask(self._engine, "GET", f"/containers/{self._id}/json")
        if answer.status == 404:
            raise Gone
        if not answer.is_ok:
            raise OSError(errno.EIO, f"it answers {answer.status}")
        state = answer.as_object().get("State")
        if not isinstance(state, dict):
            raise OSError(errno.EIO, "its answer says nothing of its state")
        return state

    def _remove(self, ended: ContainerState) -> None:
        """Write down how it ended, and have it removed; what could not be removed others do."""
        is_removed = False
        with contextlib.suppress(OSError):
            write_state(self._state_file, ended)
        with contextlib.suppress(OSError):
            answer = ask(self._engine, "DELETE", f"/containers/{self._id}?force=1&v=1")
            is_removed = answer.is_ok or answer.status == 404
        with contextlib.suppress(OSError):
            write_state(
                self._state_file,
                ContainerState(
                    exit_code=ended.exit_code,
                    is_out_of_memory=ended.is_out_of_memory,
                    failure=ended.failure,
                    detail=ended.detail,
                    is_removed=is_removed,
                ),
            )


NOT_RUN_BY_INIT = re.compile(
    rb"(?:ERROR \(catatonit:\d+\): failed to exec pid1|\[FATAL tini \(\d+\)\] exec [^\n]* failed): ([^\r\n]*)\s*$"
)
"""An engine has started a container when its init runs; that this cannot run the command, it says in its own words."""


def _not_run(why: str) -> ContainerState:
    is_missing = "no such file" in why.lower()
    return ContainerState(
        exit_code=127 if is_missing else 126,
        failure="COMMAND_NOT_FOUND" if is_missing else "NOT_EXECUTABLE",
        detail=f"the image {'has no such program' if is_missing else 'cannot run its command'}: {why}",
    )


class Gone(Exception):
    """The engine knows no such container."""


def not_started(said: str) -> NotStarted:
    """What it means that an engine did not start a container: engines say it in words alone."""
    if OF_A_DRIVER.search(said):
        return NotStarted("IMAGE_NEEDS_DRIVER", ENGINE_FAILED, f"the image needs a newer GPU driver: {said}")
    if OF_GPUS.search(said):
        return NotStarted("NO_GPU_CONTAINERS", ENGINE_FAILED, f"the container engine gives it no GPUs: {said}")
    if OF_CONTROL_GROUPS.search(said):
        return NotStarted("CONTAINER_FAILED", ENGINE_FAILED, f"the container engine did not start it: {said}")
    if OF_WHAT_IS_NO_PROGRAM.search(said):
        return NotStarted("NOT_EXECUTABLE", 126, f"the image's program cannot be run: {said}")
    if OF_A_PROGRAM.search(said):
        return NotStarted("COMMAND_NOT_FOUND", 127, f"the image has no such program: {said}")
    return NotStarted("CONTAINER_FAILED", ENGINE_FAILED, f"the container engine did not start it: {said}")


def main(words: Sequence[str]) -> None:
    """Run a container as these words say, and be gone."""
    engine, container, state_file, input_mode, mark = words
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    code = Runner(engine, container, state_file, input_mode, mark).run()
    os._exit(code & 0xFF)
