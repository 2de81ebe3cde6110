"""`monitor`: what GPUs do, live, and what a command used; without a scheduler on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from ..app import WatchedCommand
from ..completion import complete_nodes
from ..options import Connection, Output


def monitor(
    output: Output,
    connection: Connection,
    command: Annotated[
        list[str] | None, Argument(metavar="COMMAND", help="Run it, after --, and show behind it what was used.")
    ] = None,
    node: Annotated[
        str | None,
        Option(
            "--node",
            metavar="NODE",
            help="The GPUs of this node, through the scheduler; else this machine's.",
            autocompletion=complete_nodes,
        ),
    ] = None,
    interval: Annotated[
        str | None, Option("--interval", metavar="TIME", help="How often the GPUs are read, 1s by default.")
    ] = None,
    to: Annotated[Path | None, Option("--to", metavar="FILE", help="Write the statistics there instead.")] = None,
    virtual_load: Annotated[
        Path | None,
        Option("--virtual-load", metavar="FILE", help="To try it without a GPU: virtual ones that play back a load."),
    ] = None,
) -> None:
    """Watch GPUs until Ctrl-C, or while a command runs, and show what was used.

    Needs no scheduler, but for --node. The command has our input, output, signals and exit code; what it used is told
    behind it on stderr, as gpuctl stats tells it of a job. With -o jsonl each reading is printed, too.
    For instance: gpuctl monitor -o json --to used.json -- python train.py
    """
    from ..monitoring import Wanted, run_monitor
    from ..settings import resolve

    wanted = Wanted(node=node, interval=interval, command=tuple(command or ()), to=to, virtual_load=virtual_load)
    raise Exit(run_monitor(resolve(connection, output), wanted))


monitor.__dict__["command_class"] = WatchedCommand
