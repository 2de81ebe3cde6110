"""`doctor`: what is wrong between here and the GPUs, and how to mend it."""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option

from ..options import Connection, Output


def doctor(
    output: Output,
    connection: Connection,
    run: Annotated[bool, Option("--run", help="Also run the self-test on a GPU of every node.")] = False,
    python: Annotated[
        str, Option("--python", metavar="PATH", help="The Python of --run on the nodes; this one's by default.")
    ] = "",
) -> None:
    """Check the way from here to the GPUs, and say how to mend it."""
    from ..doctor.checks import run_doctor
    from ..settings import resolve

    raise Exit(run_doctor(resolve(connection, output), with_selftest=run, python=python))
