"""`nodes`, `drain`, `resume`: the machines."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Context, Option

from ..app import Family
from ..completion import complete_nodes
from ..options import Connection, Output, spread

nodes = Family("nodes")

Name = Annotated[str, Argument(metavar="NODE", help="The node's name.", autocompletion=complete_nodes)]


@nodes.callback(invoke_without_command=True)
@spread
def list_nodes(
    invoked: Context,
    output: Output,
    connection: Connection,
    only: Annotated[
        list[str] | None, Option("--node", metavar="NODE", help="Only this node.", autocompletion=complete_nodes)
    ] = None,
) -> None:
    """Show the nodes with their GPUs; -o wide shows each GPU.

    FREE 3+0.5: three whole GPUs, and a half in all of those that jobs share. -o wide shows labels, too.
    """
    if invoked.invoked_subcommand is not None:
        return
    from ..node_calls import show_nodes
    from ..settings import resolve

    show_nodes(resolve(connection, output), only or [])


@nodes.subcommand("forget")
def forget(name: Name, output: Output, connection: Connection) -> None:
    """Drop a node that will not come back.

    What ran there goes back to the queue, or ends as NODE_LOST.
    """
    from ..node_calls import forget_node
    from ..settings import resolve

    forget_node(resolve(connection, output), name)


def drain(
    name: Name,
    output: Output,
    connection: Connection,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Why, for those who look.")] = "",
) -> None:
    """Give a node no new work; what runs there goes on."""
    from ..node_calls import update_node
    from ..settings import resolve

    update_node(resolve(connection, output), name, is_draining=True, reason=reason)


def resume(name: Name, output: Output, connection: Connection) -> None:
    """Give a node work again, and trust its devices again."""
    from ..node_calls import update_node
    from ..settings import resolve

    update_node(resolve(connection, output), name, is_draining=False, reason="")
