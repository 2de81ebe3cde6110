"""Runs a notice's command where users are kept apart: as the job's user, in namespaces and a jail as the job's.

`python -m …notice_command` takes what to run as JSON on its stdin, so that no list of processes shows it, and ends with
the command's code. Its child is the first process of a namespace of process ids: what the command leaves ends with it.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from .core.launch import SPACE_PATH, Isolation, NotRun, Process, Refusal
from .keeper.becoming import Becoming
from .keeper.jail import build, furnish, make_space
from .keeper.supervisor import fork_first
from .keeper.values import isolation_from, to_json

CANNOT_RUN = 126
"""The code where the command was not begun; what it prints says why."""

STAGE, SPACE = "stage", "space"
"""In the folder that it is given: where its /dev is built, and what it has for its own."""


def order_of(line: str, cwd: str, env: Mapping[str, str], isolation: Isolation, folder: Path) -> bytes:
    """What is told to this program. `folder` is empty, and whoever tells it removes that afterwards.

    It has no GPU: by now that may be somebody else's.
    """
    process = replace(isolation, devices=())
    told = {"line": line, "cwd": cwd, "env": dict(env), "isolation": to_json(process), "folder": str(folder)}
    return json.dumps(told).encode()


def main() -> int:
    """Run it to its end; answers its code."""
    told = json.load(sys.stdin.buffer)
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    Path(SPACE_PATH).mkdir(0o755, parents=True, exist_ok=True)
    try:
        pid = fork_first()
    except OSError as problem:
        return _said(str(problem))
    if pid == 0:
        _be_first(told)
    _, status = os.waitpid(pid, 0)
    return _code(status)


def _be_first(told: dict[str, Any]) -> NoReturn:
    """Be the first process of the namespace, until the command has ended."""
    code = CANNOT_RUN
    try:
        isolation = isolation_from(told["isolation"])
        assert isolation is not None, "else the agent runs it itself"
        process = Process(
            argv=("/bin/sh", "-c", str(told["line"])),
            env={str(name): str(value) for name, value in dict(told["env"]).items()},
            cwd=str(told["cwd"]),
            isolation=isolation,
        )
        code = _run(process, isolation, Path(str(told["folder"])))
    except OSError as problem:
        code = _said(str(problem))
    finally:
        sys.stderr.flush()
        os._exit(code)


def _run(process: Process, isolation: Isolation, folder: Path) -> int:
    stage, space = folder / STAGE, folder / SPACE
    stage.mkdir(0o700)
    make_space(str(space), isolation)
    furnish(build(str(stage)), str(space), isolation, are_files_new=False)
    descriptors = [os.dup(1), os.dup(2)]
    for fd in descriptors:
        os.fchown(fd, isolation.uid, isolation.gid)  # else /dev/stdout could not be opened
    started = Becoming(resource.getrlimit(resource.RLIMIT_NOFILE)).start(process, descriptors)
    if isinstance(started, NotRun | Refusal):
        return _said(started.detail)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pid, status = os.wait()
        if pid == started:
            return _code(status)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _said(problem: str) -> int:
    print(problem, file=sys.stderr)
    return CANNOT_RUN


if __name__ == "__main__":
    sys.exit(main())
