"""`monitor`: what GPUs do, live, and what a command used; without a scheduler on this machine."""

from __future__ import annotations

from typing import Annotated

from ..declaring import Argument, Exit, of_class
from ..options import Printing
from .monitor_options import MonitorOptions


@of_class("app.WatchedCommand")
def monitor(
    options: Printing,
    wanted: MonitorOptions,
    command: Annotated[
        list[str] | None, Argument(metavar="COMMAND", help="Run it, after --, and show behind it what was used.")
    ] = None,
) -> None:
    """Watch GPUs until Ctrl-C, or while a command runs, and show what was used.

    Needs no scheduler, but for --node. The command has our input, output, signals and exit code; what it used is told
    behind it on stderr, as gpuctl stats tells it of a job. With -o jsonl each reading is printed, too.
    For instance: gpuctl monitor -o json --to used.json -- python train.py
    """
    from .monitoring import run_monitor

    raise Exit(run_monitor(options.settings(), wanted, command or []))
