"""Whether the kernel ended a container's processes for want of memory: read of its control group, while that is there.

An engine tells of it, too, but not every one of what its init ran, and not on every version of control groups.
"""

import contextlib
import os
from pathlib import Path

GROUPS = "/sys/fs/cgroup"
TEXT_BYTES_MAX = 4096


def open_kills(pid: int) -> int:
    """Open what counts the kills in the memory group of a process; -1 where there is no such file here."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                file = f"{GROUPS}{path}/memory.events"
            elif "memory" in controllers.split(","):
                file = f"{GROUPS}/memory{path}/memory.oom_control"
            else:
                continue
            with contextlib.suppress(OSError):
                return os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    return -1


def kills(fd: int) -> int:
    """How many processes the kernel has ended there; 0 where nobody knows, as of a group that is gone."""
    if fd >= 0:
        with contextlib.suppress(OSError, ValueError):
            for line in os.pread(fd, TEXT_BYTES_MAX, 0).split(b"\n"):
                name, _, count = line.partition(b" ")
                if name == b"oom_kill":
                    return int(count)
    return 0
