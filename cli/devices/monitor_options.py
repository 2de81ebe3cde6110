"""What `monitor` is to watch and how, as it was typed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..completion import complete_nodes
from ..declaring import Option


@dataclass(frozen=True, kw_only=True)
class MonitorOptions:
    """What is watched and how, as it was typed."""

    node: Annotated[
        str | None,
        Option(
            "--node",
            metavar="NODE",
            help="The GPUs of this node, through the scheduler; else this machine's.",
            autocompletion=complete_nodes,
        ),
    ] = None
    interval: Annotated[
        str | None, Option("--interval", metavar="TIME", help="How often the GPUs are read, 1s by default.")
    ] = None
    to: Annotated[Path | None, Option("--to", metavar="FILE", help="Write the statistics there instead.")] = None
    virtual_load: Annotated[
        Path | None,
        Option("--virtual-load", metavar="FILE", help="To try it without a GPU: virtual ones that play back a load."),
    ] = None
