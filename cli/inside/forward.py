"""`forward`: ports of a running job at this machine's loopback address."""

from __future__ import annotations

from typing import Annotated

from ..completion import complete_jobs
from ..declaring import Argument, Exit, Option
from ..options import Connection


def forward(
    options: Connection,
    job: Annotated[str, Argument(metavar="JOB", help="An id, last, or a name.", autocompletion=complete_jobs)],
    ports: Annotated[
        list[str], Argument(metavar="PORT[:LOCAL]…", help="The job's ports; behind : another one here, 0 a free one.")
    ],
    rank: Annotated[
        int, Option("--rank", metavar="N", min=0, help="Of a job on several nodes, the rank whose ports are meant, 0.")
    ] = 0,
    open_: Annotated[
        bool, Option("--open", help="Open a browser on the first port as soon as the job answers there.")
    ] = False,
) -> None:
    """Open ports of a running job on this machine.

    Each connection to 127.0.0.1 here reaches what the job's own processes listen on, through the scheduler and the
    node's agent: no way to the node is needed. Connections that are open end when the scheduler or the agent does, and
    new ones work when it is back. It stays until the job ends, or Ctrl-C.
    For instance: gpuctl forward 41 8888 6006:16006
    """
    import asyncio

    from gpufleet.fleet.client import connected
    from gpufleet.fleet.inside.ports import read_ports
    from gpufleet.fleet.named_jobs import only_id, read_selection

    from .staying import forward_ports

    pairs = read_ports(ports)
    settings = options.settings()
    with connected(settings) as client:
        job_id = only_id(client, read_selection([job]))
    raise Exit(asyncio.run(forward_ports(settings, job_id, pairs, rank=rank, opens=open_)))
