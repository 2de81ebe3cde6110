"""`nodes`, `drain`, `resume`: the machines."""

from __future__ import annotations

from typing import Annotated

from typer import Context

from ..app import Family
from ..completion import complete_nodes
from ..declaring import Argument, Option
from ..options import Printing
from ..spreading import spread

nodes = Family("nodes")

Name = Annotated[str, Argument(metavar="NODE", help="The node's name.", autocompletion=complete_nodes)]


@nodes.callback(invoke_without_command=True)
@spread
def list_nodes(
    invoked: Context,
    options: Printing,
    only: Annotated[
        list[str] | None, Option("--node", metavar="NODE", help="Only this node.", autocompletion=complete_nodes)
    ] = None,
    free: Annotated[
        bool, Option("--free", help="The free GPUs of all nodes instead, by availability score, best first.")
    ] = False,
    min_memory: Annotated[
        str | None, Option("--min-memory", metavar="SIZE", help="With --free: with so much memory free: 8GB.")
    ] = None,
    max_utilization: Annotated[
        int | None, Option("--max-utilization", metavar="PERCENT", help="With --free: used no more than this: 50.")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Have the GPUs read anew first; it takes a moment.")] = False,
) -> None:
    """Show the nodes with their GPUs; -o wide shows each GPU.

    FREE 3+0.5: three whole GPUs, and a half in all of those that jobs share. -o wide shows labels, too.

    SCORE, 0 to 1: 0.6 × the free part of the memory + 0.4 × the idle part, unless the scheduler weighs otherwise.
    """
    if invoked.invoked_subcommand is not None:
        return
    from .node_calls import free_request, show_free, show_nodes

    settings = options.settings()
    request = free_request(only or [], min_memory, max_utilization, fresh=fresh, is_free=free)
    if free:
        show_free(settings, request)
    else:
        show_nodes(settings, only or [], fresh=fresh)


@nodes.subcommand("approve")
def approve(name: Name, options: Printing) -> None:
    """Let a node take part that waits for it, or was revoked."""
    from .node_calls import approve_node

    approve_node(options.settings(), name)


@nodes.subcommand("revoke")
def revoke(
    name: Name,
    options: Printing,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why, for those who look.")] = "",
) -> None:
    """Make a node's credential useless at once, and give it no work."""
    from .node_calls import revoke_node

    revoke_node(options.settings(), name, reason)


@nodes.subcommand("forget")
def forget(name: Name, options: Printing) -> None:
    """Drop a node that will not come back.

    What ran there goes back to the queue, or ends as NODE_LOST.
    """
    from .node_calls import forget_node

    forget_node(options.settings(), name)


def drain(
    name: Name,
    options: Printing,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why, for those who look.")] = "",
) -> None:
    """Give a node no new work; what runs there goes on."""
    from .node_calls import update_node

    update_node(options.settings(), name, is_draining=True, reason=reason)


def resume(name: Name, options: Printing) -> None:
    """Give a node work again, and trust its devices again."""
    from .node_calls import update_node

    update_node(options.settings(), name, is_draining=False, reason="")
