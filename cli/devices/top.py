"""`top`: every GPU of the fleet, live."""

from __future__ import annotations

from typing import Annotated

from ..completion import complete_nodes
from ..declaring import Exit, Option
from ..options import Printing

SORTS_IN_WORDS = "node, load, memory, power, temperature, job or user"


def top(
    options: Printing,
    user: Annotated[str, Option("--user", metavar="NAME", help="Only GPUs of this user's jobs; me is you.")] = "",
    only: Annotated[
        list[str] | None,
        Option("--nodes", "--node", metavar="NODE,…", help="Only these nodes.", autocompletion=complete_nodes),
    ] = None,
    sort: Annotated[str, Option("--sort", metavar="BY", help=f"{SORTS_IN_WORDS}; node by default.")] = "node",
) -> None:
    """Watch every GPU: load, memory, power, temperature, whose job.

    Keys: arrows and pages scroll, / filters as you type, o and then n, s, g, p, t, j or u sorts by node, load, memory,
    power, temperature, job or user, h shows all keys, q leaves. Where there is no terminal it is printed once.
    """
    import asyncio

    from gpufleet.fleet.reading import names

    from .top_program import run_top

    raise Exit(asyncio.run(run_top(options.settings(), user, names(only), sort)))
