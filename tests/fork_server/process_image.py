"""Makes a forked process look as if exec had started it: command line, environment, descriptors, limits and streams.

Runs in the fork server's children only, and imports the standard library only.
"""

from __future__ import annotations

import ctypes
import fcntl
import io
import mmap
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PR_SET_MM, PR_SET_MM_MAP = 35, 14
CLONE_PARENT = 0x8000
SYS_CLONE = {"x86_64": 56, "aarch64": 220}
THREAD_DESCRIPTOR_BYTES = 2048
"""How much of the C library's descriptor of a thread is searched for the thread's id."""

_python = ctypes.PyDLL(None, use_errno=True)
_python.syscall.restype = ctypes.c_long
_python.sbrk.restype = ctypes.c_void_p
_python.sbrk.argtypes = [ctypes.c_ssize_t]
_python.pthread_self.restype = ctypes.c_void_p
_strings: mmap.mmap | None = None
"""Where the kernel finds the command line and the environment of this process."""


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of linux/prctl.h."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data", "start_brk", "brk")),
        *((name, ctypes.c_uint64) for name in ("start_stack", "arg_start", "arg_end", "env_start", "env_end", "auxv")),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def thread_id_addresses() -> list[int]:
    """Where the C library keeps the id of this thread: exactly one address, or nothing is known.

    fork(2) of the C library updates it, and clone(2) without that does not. pthread_kill(3) to this thread reads it.
    """
    own, begin = os.getpid(), _python.pthread_self()
    words = (ctypes.c_int32 * (THREAD_DESCRIPTOR_BYTES // 4)).from_address(begin)
    return [begin + 4 * index for index, word in enumerate(words) if word == own]


def fork_sibling(thread_ids: Sequence[int]) -> int:
    """Fork a process that is a child of this process's parent; answer its pid, 0 in the new process.

    The parent waits for it, and is its parent by getppid(2), as if it had started the process itself. The
    interpreter's own steps around a fork are those of `os.fork`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    _python.PyOS_BeforeFork()
    number = SYS_CLONE[os.uname().machine]
    pid = int(_python.syscall(ctypes.c_long(number), ctypes.c_long(CLONE_PARENT | signal.SIGCHLD), 0, 0, 0, 0))
    if pid == 0:
        for address in thread_ids:
            ctypes.c_int32.from_address(address).value = os.getpid()
        _python.PyOS_AfterFork_Child()
        return 0
    _python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(ctypes.get_errno(), "clone")
    return pid


def take_descriptors(received: Sequence[int], targets: Sequence[int]) -> None:
    """Move the received descriptors to their numbers, and close every other one."""
    free = max((*received, *targets)) + 1
    moved = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, free) for number in received]
    for number, target in zip(moved, targets, strict=True):
        os.dup2(number, target, inheritable=True)
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208  (for each start)
        if number not in targets:
            try:
                os.close(number)
            except OSError:  # the descriptor of this very listing
                continue


def set_environment(variables: Mapping[str, str]) -> None:
    """Replace the environment, of Python and of the C library."""
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update(variables)
    time.tzset()


def set_limits(limits: Sequence[tuple[int, int, int]]) -> None:
    """Set the limits of setrlimit(2) that differ: number, soft, hard."""
    for number, soft, hard in limits:
        if resource.getrlimit(number) != (soft, hard):
            resource.setrlimit(number, (soft, hard))


def set_strings(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Have /proc/PID/cmdline and /proc/PID/environ show these (PR_SET_MM_MAP of prctl(2))."""
    global _strings
    line = b"".join(os.fsencode(word) + b"\0" for word in words)
    environment = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # the kernel shows no other memory
    _strings = mmap.mmap(-1, len(line) + len(environment) + 1, flags=private)
    _strings.write(line + environment)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(_strings))
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start_code, end_code, start_stack = map(int, stat[23:26])
    start_data, end_data, start_brk = map(int, stat[42:45])
    image = _MemoryMap(
        start_code=start_code,
        end_code=end_code,
        start_data=start_data,
        end_data=end_data,
        start_brk=start_brk,
        brk=_python.sbrk(0),
        start_stack=start_stack,
        arg_start=begin,
        arg_end=begin + len(line),
        env_start=begin + len(line),
        env_end=begin + len(line) + len(environment),
        exe_fd=0xFFFFFFFF,
    )
    size = ctypes.c_ulong(ctypes.sizeof(image))
    failed = _python.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), ctypes.byref(image), size, ctypes.c_ulong(0))
    if failed:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_MM_MAP)")


def open_streams() -> None:
    """Make stdin, stdout and stderr anew on descriptors 0 to 2, as the interpreter does at its start."""
    is_unbuffered = getattr(sys.stdout, "write_through", False)  # PYTHONUNBUFFERED
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, name, getattr(sys, name).errors, is_unbuffered=is_unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _stream(number: int, name: str, errors: str | None, *, is_unbuffered: bool) -> io.TextIOWrapper:
    """What `create_stdio` of CPython's pylifecycle.c makes."""
    mode = "w" if number else "r"
    buffer: Any = open(number, f"{mode}b", 0 if is_unbuffered and number else -1, closefd=False)  # noqa: SIM115
    raw = getattr(buffer, "raw", buffer)
    raw.name = f"<{name}>"
    stream: Any = io.TextIOWrapper(
        buffer,
        encoding=sys.stdout.encoding,
        errors=errors,
        newline="\n" if number else None,
        line_buffering=not is_unbuffered and (number == 2 or raw.isatty()),
        write_through=is_unbuffered,
    )
    stream.mode = mode
    return stream  # type: ignore[no-any-return]
