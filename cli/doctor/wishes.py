"""What `doctor` is to look at, as it was typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..declaring import Option


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """What one call of the doctor is to look at beyond the way to the GPUs."""

    nodes: Annotated[bool, Option("--nodes", help="Also compare Python, torch, CUDA and driver over the nodes.")] = (
        False
    )
    run: Annotated[bool, Option("--run", help="Also run the self-test on a GPU of every node.")] = False
    files: Annotated[
        bool, Option("--files", help="Also try how files come to each node, and how fast: 8 MiB by each way.")
    ] = False
    shared_root: Annotated[
        Path | None,
        Option(
            "--shared-root",
            metavar="DIR",
            help="With --files: the folder that nodes see, too; else GPUCTL_SHARED_ROOT.",
        ),
    ] = None
    python: Annotated[
        str, Option("--python", metavar="PATH", help="The Python of --run on the nodes; this one's by default.")
    ] = ""
    agent_data: Annotated[
        Path | None,
        Option(
            "--agent-data", metavar="DIR", help="The data folder of this machine's agent, if it has one of its own."
        ),
    ] = None
    bundle: Annotated[
        Path | None,
        Option("--bundle", metavar="FILE", help="Pack findings, state and logs, without secrets, for a bug report."),
    ] = None
