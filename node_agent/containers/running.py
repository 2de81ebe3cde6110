"""The process that runs a container for its attempt: this program's runner, started without what it does not need."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from gpufleet.jobs.runs import InputMode

from ..core.launch import Container, Launch, Process
from ..keeper.containers import runner

BEGIN = "import sys, importlib; sys.path.append(sys.argv[1]); importlib.import_module(sys.argv[2]).main(sys.argv[3:])"

HOLDS = Path(runner.__file__).resolve().parents[3]
"""What this program's package lies in: by its own name a runner is found without what says where packages are."""

RUNNER = ".".join(Path(runner.__file__).resolve().with_suffix("").relative_to(HOLDS).parts)


def runner_of(launch: Launch, container: Container, mark: str) -> Process:
    """The process that runs a container, which has the `mark` by which its first process is known."""
    modes = {None: "none", InputMode.PIPE: runner.PIPE, InputMode.TERMINAL: runner.TERMINAL}
    process = launch.process
    return replace(
        process,
        argv=(
            sys.executable,
            "-S",
            "-E",
            "-c",
            BEGIN,
            str(HOLDS),
            RUNNER,
            container.engine,
            container.id,
            container.state,
            modes[process.input],
            mark,
        ),
        env={"PATH": os.defpath, "LANG": "C.UTF-8"},
        cwd="/",
        isolation=None,
        group=None,
        rlimits={},
        nice=0,
        output_file="",
        container=container,
    )
