"""`doctor`: what is wrong between here and the GPUs, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Exit, Option

from ..options import Connection, Output


def doctor(
    output: Output,
    connection: Connection,
    nodes: Annotated[
        bool, Option("--nodes", help="Also compare Python, torch, CUDA and driver over the nodes.")
    ] = False,
    run: Annotated[bool, Option("--run", help="Also run the self-test on a GPU of every node.")] = False,
    python: Annotated[
        str, Option("--python", metavar="PATH", help="The Python of --run on the nodes; this one's by default.")
    ] = "",
    agent_data: Annotated[
        Path | None,
        Option(
            "--agent-data", metavar="DIR", help="The data folder of this machine's agent, if it has one of its own."
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        Option("--bundle", metavar="FILE", help="Pack findings, state and logs, without secrets, for a bug report."),
    ] = None,
) -> None:
    """Check the way from here to the GPUs, and say how to mend it."""
    from ..doctor.checks import Wishes, run_doctor
    from ..settings import resolve

    wishes = Wishes(compares_nodes=nodes, with_selftest=run, python=python, agent_data=agent_data, bundle=bundle)
    raise Exit(run_doctor(resolve(connection, output), wishes))
