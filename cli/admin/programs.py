"""`scheduler`, `agent`, `worker` and `gateway`: become that program. All their options are their own."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn

from typer import Context

from ..app import LEADING, Command


class Passed(Command):
    """A command that reads none of its words."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        leading = [
            word for name, value in ctx.meta.get(LEADING, {}).items() for word in (f"--{name.replace('_', '-')}", value)
        ]
        ctx.args = [*leading, *args]
        return args


def scheduler(context: Context) -> None:
    """Be the scheduler: take jobs, place them, keep their output."""
    _become("gpufleet.scheduler", context.args)


def agent(context: Context) -> None:
    """Be this machine's agent: offer its GPUs and run jobs on them."""
    _become("gpufleet.node_agent", context.args)


def worker(context: Context) -> None:
    """Serve live sessions with a model, by hand."""
    _become("gpufleet.inference", context.args)


def gateway(context: Context) -> None:
    """Let people in browsers hold sessions with models."""
    _become("gpufleet.gateway", context.args)


def _become(module: str, arguments: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    # -P keeps the current folder, which may hold a folder of any name, out of the module search path.
    command = [sys.executable, "-P", "-m", module, *arguments]
    if os.name == "nt":
        # There execv would return to the shell at once, and leave the program to itself.
        import subprocess

        sys.exit(subprocess.call(command))
    os.execv(sys.executable, command)


for _command in (scheduler, agent, worker, gateway):
    _command.__dict__.update(command_class="admin.programs.Passed", has_help=False)
