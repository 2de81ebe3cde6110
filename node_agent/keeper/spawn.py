"""Starts a command: its own session and group, nothing inherited but three descriptors."""

import contextlib
import errno
import os
import resource
import signal
import stat
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gpufleet.jobs.runs import RankKey, private_folder_above

from ..core.launch import NotRun, Process, Refusal, RefusalReason
from ..core.outcome import LaunchFailure
from .descriptors import actions_of

KEY_VARIABLE = "GPUFLEET_ATTEMPT_KEY"
"""In every environment a keeper gives; what a dead one left is recognised by it."""

_NOT_FOUND = frozenset({errno.ENOENT, errno.ENOTDIR})
_NOT_EXECUTABLE = frozenset(
    {errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR, errno.ETXTBSY, errno.ELOOP, errno.ENAMETOOLONG}
)
WORD_BYTES_MAX = 32 * 4096
"""MAX_ARG_STRLEN of Linux: one word of argv or env, with its end."""

WORDS_BYTES_MAX = 6 * 1024 * 1024
"""What argv and env together take at most on Linux; less where the stack is limited, never less than WORD_BYTES_MAX."""

Found = TypeVar("Found")

_SIGNALS_RESET = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})


class Spawner:
    """Starts commands from a single-threaded process, which visits their working directories to do so."""

    def __init__(self) -> None:
        self.home_fd = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.descriptors_of_children = (soft, hard)
        # Two pipes and three files per attempt: the keeper needs more than a program's usual 1,024.
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def spawn(self, process: Process, descriptors: list[int]) -> int | NotRun | Refusal:
        """Start a process's command and answer its pid; a Refusal when the node, not the command, is at fault.

        Resource limits it has none of its own: the hard ones are lowered by the process itself, see `becoming.py`.
        `descriptors` are what was opened for it (`descriptors.py`); its environment is used as it is.
        """
        return self._there(process, lambda: self._spawn_here(process, descriptors))

    def check(self, process: Process) -> NotRun | Refusal | None:
        """Say what would keep a process's command from being started, as far as it shows without starting it."""
        return self._there(process, lambda: _unfit_here(process))

    def _there(self, process: Process, act: Callable[[], Found]) -> Found | Refusal:
        """Act in the process's working directory."""
        try:
            cwd_fd = os.open(process.cwd, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            return Refusal(RefusalReason.CWD_MISSING, f"cwd {process.cwd[:500]!r}: {error.strerror}")
        try:
            os.fchdir(cwd_fd)
            return act()
        except PermissionError as error:
            return Refusal(RefusalReason.CWD_MISSING, f"cwd {process.cwd[:500]!r}: {error.strerror}")
        finally:
            os.fchdir(self.home_fd)
            os.close(cwd_fd)

    def _spawn_here(self, process: Process, descriptors: list[int]) -> int | NotRun | Refusal:
        found = find_command(process.argv[0], process.env.get("PATH", os.defpath))
        if isinstance(found, NotRun):
            return found
        try:
            with self._soft_descriptors():
                pid = self._spawn_as_nice(
                    process.nice,
                    found,
                    process.argv,
                    process.env,
                    file_actions=actions_of(descriptors, process.input),
                    setsid=True,
                    setsigmask=(),
                    setsigdef=_SIGNALS_RESET,
                )
        except OSError as error:
            return failure_of(error, found, process)
        return pid

    def _spawn_as_nice(self, nice: int, *what: Any, **how: Any) -> int:
        """Start a process that has its niceness from its first instruction.

        On Linux that is a thread's own, and a child has it from the thread that starts it; what has made itself nicer
        may not be allowed to go back. So a thread that ends with it makes itself so.
        """
        if nice <= os.getpriority(os.PRIO_PROCESS, 0):
            return os.posix_spawn(*what, **how)
        import threading  # which a keeper without such a job does without

        outcome: list[int | OSError] = []

        def spawn() -> None:
            try:
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)
                outcome.append(os.posix_spawn(*what, **how))
            except OSError as error:
                outcome.append(error)

        thread = threading.Thread(target=spawn)
        thread.start()
        thread.join()
        if isinstance(outcome[0], OSError):
            raise outcome[0]
        return outcome[0]

    @contextlib.contextmanager
    def _soft_descriptors(self) -> Iterator[None]:
        """Lend this process the soft limit of its children while it spawns one: that has it from the beginning."""
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self.descriptors_of_children[0], before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def find_command(name: str, path: str) -> str | NotRun:
    """Find an executable as a shell would: a name with a slash is a path, any other is looked for in PATH."""
    if "/" in name:
        return name
    unusable: str | None = None
    for directory in path.split(os.pathsep):
        candidate = os.path.join(directory or ".", name)  # noqa: PTH118 - the dot of "./x" must stay
        try:
            is_file = stat.S_ISREG(os.stat(candidate).st_mode)  # noqa: PTH116 - thousands of launches, one call each
        except (OSError, ValueError):
            continue
        if is_file and os.access(candidate, os.X_OK):
            return candidate
        unusable = unusable or candidate
    if unusable is not None:
        return NotRun(LaunchFailure.NOT_EXECUTABLE, f"{unusable[:500]}: not an executable file")
    return NotRun(LaunchFailure.COMMAND_NOT_FOUND, f"{name[:200]}: not found in PATH {path[:500]!r}")


def missing_cwd(process: Process) -> Refusal | None:
    """Say whether the working directory is missing; looked at before anything is written down."""
    try:
        if stat.S_ISDIR(os.stat(process.cwd).st_mode):  # noqa: PTH116
            return None
        problem = "not a directory"
    except OSError as error:
        problem = error.strerror or str(error)
    return Refusal(RefusalReason.CWD_MISSING, f"cwd {process.cwd[:500]!r}: {problem}")


def limit_too_high(process: Process) -> Refusal | None:
    """Say whether a limit is above the keeper's own hard one, which it has from its agent."""
    for name, (_, wanted) in process.rlimits.items():
        _, hard = resource.getrlimit(rlimit(name))
        if hard != resource.RLIM_INFINITY and (wanted == resource.RLIM_INFINITY or wanted > hard):
            asked = "unlimited" if wanted == resource.RLIM_INFINITY else wanted
            return Refusal(RefusalReason.RLIMIT_TOO_HIGH, f"{name} {asked} is above the agent's own hard limit, {hard}")
    return None


def key_value(keeper_id: str, key: RankKey) -> str:
    """Answer the value of KEY_VARIABLE: no other keeper ever gives the same."""
    return f"{keeper_id}:{key.name}"


def rlimit(name: str) -> int:
    """Answer the number of a limit."""
    number: int = getattr(resource, f"RLIMIT_{name}")
    return number


def failure_of(error: OSError, found: str, process: Process) -> NotRun | Refusal:
    """Say what it means that a program could not be run."""
    sentence = f"{found[:500]}: {error.strerror}"
    if error.errno == errno.E2BIG:
        return _too_long(process)
    if error.errno in _NOT_FOUND:
        hint = private_hint(process, found) if "/" in found else ""
        return NotRun(LaunchFailure.COMMAND_NOT_FOUND, sentence + _missing_interpreter(found) + hint)
    if error.errno in _NOT_EXECUTABLE:
        hint = " (a script's first line must name its interpreter, like #!/bin/sh)"
        return NotRun(LaunchFailure.NOT_EXECUTABLE, sentence + (hint if error.errno == errno.ENOEXEC else ""))
    return Refusal(RefusalReason.SPAWN_FAILED, sentence)


def private_hint(process: Process, path: str) -> str:
    """Say that a path of an isolated process is in a folder that the process has for itself alone, also by a link."""
    if process.isolation is None or not (private := private_folder_above(_resolved(process.cwd, path))):
        return ""
    return (
        f"; {private} is private to each job on this node, and nothing of the machine's is in it: upload the folder "
        f"with --upload ., or use one that is not in {private}"
    )


def _resolved(folder: str, path: str) -> str:
    return os.path.realpath(os.path.join(folder, path))  # noqa: PTH118 - a keeper does without pathlib


def _unfit_here(process: Process) -> NotRun | Refusal | None:
    found = find_command(process.argv[0], process.env.get("PATH", os.defpath))
    if isinstance(found, NotRun):
        return found
    if _is_too_long([*process.argv, *(f"{name}={value}" for name, value in process.env.items())]):
        return _too_long(process)
    try:
        is_file = stat.S_ISREG(os.stat(found).st_mode)  # noqa: PTH116 - the dot of "./x" must stay
    except OSError as error:
        return failure_of(error, found, process)
    if not is_file or not os.access(found, os.X_OK):
        return NotRun(LaunchFailure.NOT_EXECUTABLE, f"{found[:500]}: {os.strerror(errno.EACCES)}")
    return None


def _is_too_long(words: list[str]) -> bool:
    """Reckon as Linux does: each word with its end, and a pointer to it."""
    sizes = [len(os.fsencode(word)) + 1 for word in words]
    stack, _ = resource.getrlimit(resource.RLIMIT_STACK)
    together = WORDS_BYTES_MAX if stack == resource.RLIM_INFINITY else min(WORDS_BYTES_MAX, stack // 4)
    return max(sizes) > WORD_BYTES_MAX or sum(sizes) + 8 * len(sizes) > max(together, WORD_BYTES_MAX)


def _too_long(process: Process) -> Refusal:
    size = sum(len(os.fsencode(word)) + 1 for word in process.argv)
    detail = f"argv has {size} bytes: together with env, or in one word, more than Linux takes"
    return Refusal(RefusalReason.ARGV_TOO_LONG, detail)


def _missing_interpreter(found: str) -> str:
    """Explain ENOENT for a file that exists: the program its first line names does not."""
    try:
        with open(found, "rb") as file:  # noqa: PTH123
            first = file.readline(256)
    except OSError:
        return ""
    return f" (its first line asks for {os.fsdecode(first[2:].strip())!r})" if first.startswith(b"#!") else ""
