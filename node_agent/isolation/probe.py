"""Whether this agent can keep users apart, tried for real: a process has namespaces and mounts as a job, and ends.

`python -m …isolation_probe STAGE` is that process: it says why not, or nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from ..core.launch import SPACE_PATH
from ..keeper.jail import build
from ..keeper.linux import give_up_privileges
from ..keeper.supervisor import fork_first

PROGRAM = __name__
SECONDS_MAX = 20.0
SAID_CHARS_MAX = 300
NOT_ROOT = "its agent is not root"


def why_not_apart(folder: Path) -> str:
    """Why jobs cannot be kept apart here, in a clause; empty where they can. `folder` is the agent's own."""
    if os.geteuid() != 0:
        return NOT_ROOT
    with tempfile.TemporaryDirectory(prefix=".probe-", dir=folder) as stage:
        command = [sys.executable, "-P", "-m", PROGRAM, stage]
        try:
            tried = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_MAX, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as problem:
            return f"it cannot be tried whether this machine keeps users apart: {problem}"[:SAID_CHARS_MAX]
    if tried.returncode == 0:
        return ""
    lines = (tried.stdout or tried.stderr).decode(errors="replace").strip().splitlines()
    return f"this machine keeps no users apart: {lines[-1] if lines else tried.returncode}"[:SAID_CHARS_MAX]


def _try(stage: str) -> str:
    """Be what a job would be; answers why that is not possible."""
    Path(SPACE_PATH).mkdir(0o755, parents=True, exist_ok=True)
    try:
        pid = fork_first()
        if pid:
            _, status = os.waitpid(pid, 0)
            return "" if status == 0 else "the trial failed"
        build(stage)
        give_up_privileges(os.getuid() + 1, os.getgid() + 1, ())
    except OSError as problem:
        return str(problem)
    return ""


if __name__ == "__main__":
    said = _try(sys.argv[1])
    print(said, end="", flush=True)
    os._exit(1 if said else 0)
