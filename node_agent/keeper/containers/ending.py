"""Reaching a container from outside of it: a signal to its processes, its death, its removal.

By process ids where its first process is seen on this machine, as with any process: no engine need answer for that.
What remains, and all of it where the engine has a machine of its own, is asked of the engine.
"""

import contextlib
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpufleet.jobs.runs import ExitCode, ExitSignal, ExitStatus

from ...core.launch import Container
from ...core.outcome import AttemptEnd, LaunchFailure, Shortage
from ..processes import children, look_at
from .asking import ask
from .state import ContainerState, read_state

GONE = 404
SIGNALLED = 128
ENDING_SIGNALS = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGQUIT,
        signal.SIGILL,
        signal.SIGTRAP,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGKILL,
        signal.SIGUSR1,
        signal.SIGSEGV,
        signal.SIGUSR2,
        signal.SIGPIPE,
        signal.SIGALRM,
        signal.SIGTERM,
        signal.SIGXCPU,
        signal.SIGXFSZ,
        signal.SIGSYS,
    }
)
"""Signals that end what does not catch them, and that programs are ended by."""

PAUSE_S = 0.2
REMOVE_S_MAX = 20.0
"""How long an engine may take to remove what is dead already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInside:
    """A process of a container, by its number on this machine; `start_ticks` tell it from a later one of that.

    `group_id` is that of its process group, 0 where it has none of its own.
    """

    pid: int
    start_ticks: int
    group_id: int


PROCESSES_MAX = 65_536
"""Processes of a container that are looked at for those of one group."""


def process_inside(pid: int) -> ProcessInside | None:
    """A process that an engine has started in a container; None where it is over."""
    stat = look_at(pid)
    if stat is None or stat.is_dead:
        return None
    outside = look_at(stat.parent_pid)
    # Some run times begin its session in a process that is gone by now: the group has the number of that.
    is_own = stat.group_id == pid or (outside is not None and outside.group_id != stat.group_id)
    return ProcessInside(pid=pid, start_ticks=stat.start_ticks, group_id=stat.group_id if is_own else 0)


def signal_inside(process: ProcessInside, number: int) -> None:
    """Send a signal to a process's group, or to it alone where it has none; one that has ended gets none."""
    stat = look_at(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks:
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.group_id and stat.group_id == process.group_id:
            os.killpg(process.group_id, number)
        else:
            os.kill(process.pid, number)


def kill_inside(container: Container, process: ProcessInside) -> None:
    """End a process and its group, whether it lives itself or not. What has left its group goes on."""
    signal_inside(process, signal.SIGKILL)
    first = first_process(read_state(container.state))
    # The group's number may be another's by now, but not below the container's first process.
    for pid in () if first is None or not process.group_id else _below(first):
        stat = look_at(pid)
        if stat is not None and stat.group_id == process.group_id:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _below(first: int) -> Iterator[int]:
    waiting = deque(children(first))
    for _ in range(PROCESSES_MAX):
        if not waiting:
            return
        pid = waiting.popleft()
        yield pid
        waiting += children(pid)


def send_signal(container: Container, number: int, *, is_for_leader: bool = False) -> bool:
    """Send a signal to the process group of its command, or that process alone; False where it is not seen here."""
    first = first_process(read_state(container.state))
    if first is None:
        return False
    leader = _leader(first, has_init=container.has_init)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        group = os.getpgid(leader)
        # It leads a group of its own, or is in that of the container's first process: no other is reached.
        if is_for_leader or group not in (leader, first):
            os.kill(leader, number)
        else:
            os.killpg(group, number)
    return True


def kill(container: Container) -> bool:
    """End its first process, and with that the kernel ends all of them. False where that is not seen here."""
    first = first_process(read_state(container.state))
    if first is None:
        return False
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(first, signal.SIGKILL)
    return True


def end(container: Container, timeout_s: float = REMOVE_S_MAX) -> bool:
    """End it and have it removed; again: nothing. False when the engine does not say in time that it is gone.

    Blocks: for a process or a thread that has nothing else to do.
    """
    state = read_state(container.state)
    if state.is_removed:
        return True
    deadline = time.monotonic() + timeout_s
    is_dead = _killed(state, timeout_s)
    while True:
        with contextlib.suppress(OSError):
            path = f"/containers/{container.id}?force=1&v=1"
            if (answer := ask(container.engine, "DELETE", path, timeout_s=timeout_s)).is_ok or answer.status == GONE:
                return True
        if is_dead or time.monotonic() >= deadline:
            return is_dead  # what the engine still keeps of it is no process; the agent sweeps it
        time.sleep(PAUSE_S)


def end_in_container(end: AttemptEnd, container: Container) -> AttemptEnd:
    """The end of an attempt whose own process only ran a container: as if what ran there had been its process.

    An engine tells 128 + N of what signal N has ended, and nobody can tell that from such an exit code. A worker's
    status is its own: it knows whether the program was to end. What that process took of the node is not the job's.
    """
    state = read_state(container.state)
    status = end.status if container.has_worker or state.exit_code is None else _status_of(state.exit_code)
    shortage = Shortage(oom_kills=1, memory_bytes_max=container.memory_bytes) if state.is_out_of_memory else None
    failure = LaunchFailure(state.failure) if state.failure in set(LaunchFailure) else None
    return replace(
        end, status=status, failure=failure, detail=state.detail, shortage=shortage, cpu_us=0, max_rss_bytes=0
    )


def _status_of(code: int) -> ExitStatus:
    number = code - SIGNALLED
    return ExitSignal(signal=number) if number in ENDING_SIGNALS else ExitCode(code=code)


def first_process(state: ContainerState) -> int | None:
    """Its first process, while that lives and is seen here."""
    if not state.pid:
        return None
    now = look_at(state.pid)
    return None if now is None or now.is_dead or now.start_ticks != state.start_ticks else state.pid


def _killed(state: ContainerState, timeout_s: float) -> bool:
    """Kill its first process; whether it is dead now, as far as this machine sees."""
    if not state.pid:
        return False
    try:
        pidfd = os.pidfd_open(state.pid)
    except ProcessLookupError:
        return True
    try:
        if first_process(state) is None:
            return True
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))
    except (ProcessLookupError, PermissionError):
        return first_process(state) is None
    finally:
        os.close(pidfd)


def _leader(first: int, *, has_init: bool) -> int:
    """The process of its command: the first child of its init, where it has one."""
    found = sorted(children(first)) if has_init else []
    known = [(stat.start_ticks, pid) for pid in found if (stat := look_at(pid)) is not None]
    return min(known)[1] if known else first
